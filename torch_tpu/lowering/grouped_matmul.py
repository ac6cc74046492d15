"""Grouped matrix products: a matrix an expert, rows (or columns, or the summed dimension) split by ``offs``.

On a TPU bfloat16 and float32 take the project's Pallas kernels (``torch_tpu/ops/grouped_matmul``): XLA's own
``ragged_dot`` multiplies every row by every expert there. Elsewhere, and for other types, a loop goes over blocks of
rows that never cross a group's end: the work is that of the rows there are plus at most one partly filled block a
group. Either way no weight is copied or multiplied that has no rows, nor transposed first where it is given transposed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from torch_tpu.lowering import dtypes, experts
from torch_tpu.lowering.matmul import accumulator, contract, product
from torch_tpu.lowering.provenance import chosen, matrices
from torch_tpu.lowering.registry import register
from torch_tpu.ops import grouped_matmul as kernels

_LARGEST_BLOCK = 256


def _block_size(rows: int, groups: int) -> int:
    """A power of two near the mean size of a group."""
    mean = max(rows // max(groups, 1), 1)
    return min(1 << (mean - 1).bit_length(), _LARGEST_BLOCK)


def _for_each_block(ends: Any, block: int, body: Callable[[Any, Any, Any, Any], Any], state: Any) -> Any:
    """``state = body(group, start, valid, state)`` for each block; ``valid`` says which of its rows are the group's."""
    ends = ends.astype(jnp.int32)
    starts = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends[:-1]])
    blocks = jnp.maximum(ends - starts + (block - 1), 0) // block
    last = jnp.cumsum(blocks, dtype=jnp.int32)
    rows = jnp.arange(block, dtype=jnp.int32)

    def step(i: Any, state: Any) -> Any:
        group = jnp.sum(last <= i, dtype=jnp.int32)
        start = starts[group] + (i - (last[group] - blocks[group])) * block
        return body(group, start, start + rows < ends[group], state)

    return lax.fori_loop(jnp.int32(0), last[-1], step, state)


def _here(group: Any, *arrays: Any) -> tuple[Any, ...]:
    """Arrays as they are, but tied to this turn of the loop: XLA:CPU has no slices of half types, and would otherwise
    convert all experts' weights to float32, once, ahead of the loop."""
    return lax.optimization_barrier((group, *arrays))


def grouped_rows(x: Any, weights: Any, ends: Any, out_dtype: Any = None) -> Any:
    """(rows, k) by (groups, k, n) -> (rows, n); rows past the last end are 0.

    Args:
      ends: int32[groups], the row where each group ends; ascending. Those past the rows count as their number.
      out_dtype: the type of the result; None for the accumulator's.
    """
    rows, (groups, k, n) = x.shape[0], weights.shape
    out_dtype = accumulator(x.dtype) if out_dtype is None else out_dtype
    if 0 in (rows, groups, k, n):
        return jnp.zeros((rows, n), out_dtype)
    if groups == 1:
        mine = jnp.arange(rows, dtype=jnp.int32)[:, None] < ends[0]
        return jnp.where(mine, product(x, weights[0]), 0).astype(out_dtype)
    stored, transposed = matrices(weights)
    spread = experts.of(groups)
    if spread is not None:
        return spread.rows(lambda x, w, e: _rows(x, w, e, transposed, out_dtype), x, stored, jnp.clip(ends, 0, rows))
    return _rows(x, stored, ends, transposed, out_dtype)


def _rows(x: Any, stored: Any, ends: Any, transposed: bool, out_dtype: Any) -> Any:
    """``grouped_rows`` by matrices as they are stored: (groups, k, n), or (groups, n, k) where they are transposed."""
    rows, groups = x.shape[0], stored.shape[0]
    k, n = stored.shape[:0:-1] if transposed else stored.shape[1:]
    if kernels.takes(x.dtype, (rows, groups, k, n)):
        return kernels.rows(x, stored, ends, transposed=transposed, out_dtype=out_dtype)
    block, ends = _block_size(rows, groups), jnp.clip(ends, 0, rows)
    x = jnp.pad(x, ((0, block), (0, 0)))
    out = jnp.zeros((rows + block, n), accumulator(x.dtype))

    def body(group: Any, start: Any, valid: Any, out: Any) -> Any:
        group, every = _here(group, stored)
        matrix = lax.dynamic_index_in_dim(every, group, 0, keepdims=False)
        y = contract(lax.dynamic_slice_in_dim(x, start, block), matrix, (1,), (1 if transposed else 0,))
        # Blocks go in ascending order: what is written past this group's end is overwritten by the next one.
        return lax.dynamic_update_slice_in_dim(out, jnp.where(valid[:, None], y, 0), start, 0)

    return _for_each_block(ends, block, body, out)[:rows].astype(out_dtype)


def grouped_sum(a: Any, b: Any, ends: Any, out_dtype: Any = None) -> Any:
    """(rows, m) and (rows, n) -> (groups, m, n): the product over each group's own rows."""
    rows, groups = a.shape[0], ends.shape[0]
    shape = (groups, a.shape[1], b.shape[1])
    out_dtype = accumulator(a.dtype) if out_dtype is None else out_dtype
    if rows == 0 or 0 in shape:
        return jnp.zeros(shape, out_dtype)
    spread = experts.of(groups)
    if spread is not None:
        return spread.total(lambda a, b, e: _total(a, b, e, out_dtype), a, b, jnp.clip(ends, 0, rows))
    return _total(a, b, ends, out_dtype)


def _total(a: Any, b: Any, ends: Any, out_dtype: Any) -> Any:
    rows, groups = a.shape[0], ends.shape[0]
    shape = (groups, a.shape[1], b.shape[1])
    if kernels.takes(a.dtype, (rows, *shape)):
        return kernels.total(a, b, ends, out_dtype=out_dtype)
    block, ends = _block_size(rows, groups), jnp.clip(ends, 0, rows)
    a, b = (jnp.pad(x, ((0, block), (0, 0))) for x in (a, b))

    def body(group: Any, start: Any, valid: Any, out: Any) -> Any:
        # Both sides are masked: 0 times the NaN of a neighbour's row would be NaN.
        left, right = (jnp.where(valid[:, None], lax.dynamic_slice_in_dim(x, start, block), 0) for x in (a, b))
        return out.at[group].add(contract(left, right, (0,), (0,)), mode="promise_in_bounds")

    return _for_each_block(ends, block, body, jnp.zeros(shape, accumulator(a.dtype))).astype(out_dtype)


def _check(self: Any, mat2: Any, offs: Any, bias: Any) -> None:
    if bias is not None:
        raise NotImplementedError("_grouped_mm: a bias was given; supported: bias=None, as in PyTorch")
    if mat2.dtype != self.dtype:
        raise RuntimeError(f"_grouped_mm: expected operands of one type, got {self.dtype} and {mat2.dtype}")
    if self.ndim not in (2, 3) or mat2.ndim not in (2, 3):
        raise RuntimeError(f"_grouped_mm: expected operands of 2 or 3 dimensions, got {self.ndim} and {mat2.ndim}")
    if self.shape[-1] != mat2.shape[-2]:
        shapes = f"{list(self.shape)} and {list(mat2.shape)}"
        raise RuntimeError(f"_grouped_mm: contraction dimension of self and mat2 must match, got {shapes}")
    three = [x.shape[0] for x in (self, mat2) if x.ndim == 3]
    if len(three) == 2 and offs is not None:
        raise RuntimeError("_grouped_mm: offs was given for operands of 3 and 3 dimensions; it has to be None")
    if len(three) < 2 and offs is None:
        raise NotImplementedError(
            f"_grouped_mm: offs=None for operands of {self.ndim} and {mat2.ndim} dimensions; supported: 3 and 3"
        )
    if offs is not None and (offs.ndim != 1 or offs.dtype != jnp.int32):
        raise RuntimeError(
            f"_grouped_mm: offs has to be an int32 tensor of 1 dimension, got {offs.dtype}{list(offs.shape)}"
        )
    if len({*three, *([] if offs is None else offs.shape)}) != 1:
        raise RuntimeError(
            f"_grouped_mm: operands and offs are not of one number of groups: {list(self.shape)}, {list(mat2.shape)}"
            f"{'' if offs is None else f', {list(offs.shape)}'}"
        )


_TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


def refused_types(a: torch.dtype, b: torch.dtype, out: torch.dtype | None) -> str | None:
    """What CPU says of operands and a result of these types; None for those that it takes."""
    for name, dtype in (("mat_a", a), ("mat_b", b)):
        if dtype not in _TYPES:
            return f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got {dtype}"
    if a != b:
        return f"expected mat_a and mat_b to have the same dtype, but got: {a} != {b}"
    if out not in (None, a):
        return f"Grouped gemm output dtype must match `mat_a` dtype, got {out} and {a}"
    return None


@register("aten::_grouped_mm", precision=True, own_shapes=True)
def grouped_mm(
    self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> Any:  # fmt: skip
    """The four forms of ``_grouped_mm``, of the types that PyTorch's CPU kernel takes (its meta kernel knows bfloat16
    alone)."""
    refused = refused_types(dtypes.JAX_TO_TORCH[self.dtype], dtypes.JAX_TO_TORCH[mat2.dtype], out_dtype)
    if refused is not None:
        raise RuntimeError(refused)
    _check(self, mat2, offs, bias)
    return _grouped(self, mat2, offs, self.dtype)


def _grouped(self: Any, mat2: Any, offs: Any, dtype: Any) -> Any:
    if self.ndim == 3 and mat2.ndim == 3:
        return product(self, mat2).astype(dtype)
    if self.ndim == 2 and mat2.ndim == 3:
        return grouped_rows(self, mat2, offs, dtype)
    if self.ndim == 3 and mat2.ndim == 2:
        return grouped_rows(_turned(mat2), _turned(self), offs, dtype).T
    return grouped_sum(_turned(self), mat2, offs, dtype)


def _turned(x: Any) -> Any:
    """The last two dimensions exchanged; what was given transposed is taken as it was before."""
    stored, transposed = matrices(x)
    return stored if transposed else jnp.swapaxes(x, -1, -2)


@register("aten::_scaled_grouped_mm", precision=True, own_shapes=True)
def scaled_grouped_mm(
    self: Any,
    mat2: Any,
    scale_a: Any,
    scale_b: Any,
    offs: Any = None,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """float8 rows by float8 experts, with a float32 scale a row and one an expert's column; bfloat16 by default.

    float8 is exact in bfloat16, in which the products are made.
    """
    _check(self, mat2, offs, bias)
    rows, groups, n = self.shape[0], mat2.shape[0], mat2.shape[-1]
    eight = all(x.dtype.itemsize == 1 and jnp.issubdtype(x.dtype, jnp.floating) for x in (self, mat2))
    fits = self.ndim == 2 and mat2.ndim == 3 and scale_result is None
    if not fits or not eight or scale_a.shape != (rows,) or scale_b.shape != (groups, n):
        raise NotImplementedError(
            f"_scaled_grouped_mm: {self.dtype}{list(self.shape)} by {mat2.dtype}{list(mat2.shape)} with scales of "
            f"{list(scale_a.shape)} and {list(scale_b.shape)}; supported: float8 (rows, k) by (groups, k, n), scales "
            "of (rows,) and (groups, n), no scale_result"
        )
    out = grouped_rows(self.astype(jnp.bfloat16), _widened(mat2), offs)
    row = jnp.arange(rows, dtype=jnp.int32)
    group = jnp.minimum(jnp.sum(offs[None, :] <= row[:, None], axis=1, dtype=jnp.int32), groups - 1)
    out = out * scale_a.astype(jnp.float32)[:, None] * scale_b.astype(jnp.float32)[group]
    return out.astype(jnp.bfloat16 if out_dtype is None else dtypes.to_jax(out_dtype))


def _widened(x: Any) -> Any:
    """float8 matrices as bfloat16, in the layout that they were given in."""
    stored, transposed = matrices(x)
    stored = stored.astype(jnp.bfloat16)
    return jnp.swapaxes(stored, -1, -2) if transposed else stored


@register("aten::bmm", precision=True)
def bmm(self: Any, mat2: Any) -> Any:
    """A stack of products. Vectors by matrices that were chosen from a stack (the experts of tokens in decode, as
    Transformers' "batched_mm" writes it) are a grouped product: no copy of a matrix is made for each vector."""
    if self.dtype != mat2.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {self.dtype} != {mat2.dtype}")
    if jnp.issubdtype(self.dtype, jnp.floating):
        if self.shape[1] == 1 and (found := chosen(mat2)) is not None:
            return by_chosen(self[:, 0], *found)[:, None]
        if mat2.shape[2] == 1 and (found := chosen(self)) is not None:
            stack, index = found
            return by_chosen(mat2[:, :, 0], jnp.swapaxes(stack, 1, 2), index)[:, :, None]
    return product(self, mat2)


def by_chosen(x: Any, stack: Any, index: Any) -> Any:
    """(rows, k) by (groups, k, n) -> (rows, n): each row by the matrix of its index, in the accumulator's type."""
    groups = stack.shape[0]
    index = jnp.clip(index.astype(jnp.int32), 0, groups - 1)
    order = jnp.argsort(index)
    ends = jnp.sum(index[None, :] <= jnp.arange(groups, dtype=jnp.int32)[:, None], axis=1, dtype=jnp.int32)
    return grouped_rows(x[order], stack, ends)[jnp.argsort(order)]
