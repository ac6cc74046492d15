"""Indexing with tensors and masks: ``x[i, j]``, index_put, take, put, masked_fill, masked_scatter.

Boolean masks in an index list have data dependent results, so the caller turns them into integer indices before
it calls a lowering. The exception is ``x[mask] = value``: a select for one value; several say how many elements the
mask chooses.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.checks import index_in_range, require
from torch_tpu.lowering.gather_scatter import IN_BOUNDS, cast_like, narrow, scatter_rows, take_rows, widen_half
from torch_tpu.lowering.registry import Meta, register

_SLICE = slice(None)


def _resolve(self: Any, indices: list[Any], what: str) -> tuple[Any, ...]:
    """An index tuple for jax: checked, non-negative, int32 where possible, ``slice`` for None."""
    out: list[Any] = []
    for d, i in enumerate(indices):
        if i is None:
            out.append(_SLICE)
        elif i.dtype == jnp.bool_ or i.dtype == jnp.uint8:
            raise NotImplementedError(
                f"{what}: a mask of shape {i.shape} at position {d} has a data dependent result; "
                "supported: integer indices (mask.nonzero()), or x[mask] = value"
            )
        else:
            out.append(narrow(index_in_range(i, self.shape[d], what, dim=d), self.shape[d]))
    return tuple(out)


def _outer(index: tuple[Any, ...]) -> bool:
    """Whether the index arrays are adjacent and vary along different axes, in order: ``x[:, i[:, None], j]``.

    Then one take a dimension replaces an elementwise gather. Interpolation indexes like this.
    """
    arrays = [(d, i) for d, i in enumerate(index) if not isinstance(i, slice)]
    if len(arrays) < 2 or arrays[-1][0] - arrays[0][0] + 1 != len(arrays):
        return False
    rank = max(i.ndim for _, i in arrays)
    last = -1
    for _, i in arrays:
        axes = [d + rank - i.ndim for d, n in enumerate(i.shape) if n != 1]
        if len(axes) > 1 or (axes and axes[0] <= last):
            return False
        last = axes[0] if axes else last
    return True


@register("aten::index.Tensor", "aten::_unsafe_index.Tensor", meta=True)
def index(self: Any, indices: list[Any], *, meta: tuple[Meta, ...]) -> Any:
    at = _resolve(self, indices, "index")
    shape = meta[0].shape
    if math.prod(shape) == 0 or self.size == 0:
        return jnp.zeros(shape, self.dtype)
    arrays = [d for d, i in enumerate(at) if not isinstance(i, slice)]
    if len(arrays) == 1:
        return take_rows(self, at[arrays[0]], arrays[0])
    if _outer(at):
        for d in arrays:
            self = take_rows(self, at[d].reshape(-1), d)
        return self.reshape(shape)
    return self.at[at].get(mode=IN_BOUNDS, wrap_negative_indices=False)


@register("aten::index_put", "aten::_unsafe_index_put")
def index_put(self: Any, indices: list[Any], values: Any, accumulate: bool = False) -> Any:
    indices = [i.astype(jnp.bool_) if i is not None and i.dtype == jnp.uint8 else i for i in indices]
    if any(map(_is_mask, indices)):
        count = _selected(self, indices, values)
        if count == 1 and sum(i is not None for i in indices) == 1:
            return _masked_put(self, indices, values, accumulate)
        if count != 1:
            indices = _positions(self, indices, count)
    at = _resolve(self, indices, "index_put_")
    if self.size == 0 or values.size == 0:
        return self
    if not at or all(isinstance(i, slice) for i in at):
        values = jnp.broadcast_to(values, self.shape)
        return self + values if accumulate else values
    if not accumulate:
        return self.at[at].set(values, mode=IN_BOUNDS, wrap_negative_indices=False)
    if self.dtype == jnp.bool_:
        return self.at[at].max(values, mode=IN_BOUNDS, wrap_negative_indices=False)
    return widen_half(self).at[at].add(widen_half(values), mode=IN_BOUNDS, wrap_negative_indices=False)


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype == jnp.bool_


def _check_mask(self: Any, mask: Any, first: int) -> None:
    if mask.shape != self.shape[first : first + mask.ndim]:
        raise IndexError(
            f"index_put_: the shape of the mask {mask.shape} at index {first} does not match the shape of the "
            f"indexed tensor {self.shape}"
        )


def _place_of_indices(self: Any, indices: list[Any]) -> tuple[int, int]:
    """(the dimension of ``self[indices]`` that the last dimension of the broadcast indices is, how many follow)."""
    covered = [i.ndim if _is_mask(i) else 1 for i in indices]
    used = [d for d, i in enumerate(indices) if i is not None]
    rank = max(1 if _is_mask(indices[d]) else indices[d].ndim for d in used)
    free = self.ndim - sum(covered[d] for d in used)
    before = used[0] if used[-1] - used[0] + 1 == len(used) else 0
    return before + rank - 1, free - before


def _selected(self: Any, indices: list[Any], values: Any) -> int:
    """How many elements the masks have to choose for ``values`` to fit; 1 if any number may."""
    _, following = _place_of_indices(self, indices)
    at = values.ndim - following - 1
    given = [values.shape[at]] if at >= 0 else []
    given += [i.shape[-1] for i in indices if i is not None and not _is_mask(i) and i.ndim]
    return next((n for n in given if n != 1), 1)


def _positions(self: Any, indices: list[Any], count: int) -> list[Any]:
    """The indices with each mask as the positions of its ``count`` elements that are True."""
    out: list[Any] = []
    for i in indices:
        if not _is_mask(i):
            out.append(i)
            continue
        _check_mask(self, i, len(out))
        chosen = jnp.sum(i, dtype=jnp.int32)
        require(
            chosen != count,
            chosen,
            f"shape mismatch: value tensor of {count} elements cannot be broadcast to an indexing result of {{value}}",
            RuntimeError,
        )
        out.extend(jnp.nonzero(i, size=count, fill_value=0))
    return out


def _masked_put(self: Any, indices: list[Any], values: Any, accumulate: bool) -> Any:
    """``x[:, mask] = value``: one value for all that is chosen, so that no position needs to be known."""
    first = next(d for d, i in enumerate(indices) if i is not None)
    mask = indices[first]
    _check_mask(self, mask, first)
    at, following = _place_of_indices(self, indices)
    rank = at + 1 + following
    shape = (*(1,) * (rank - values.ndim), *values.shape[max(values.ndim - rank, 0) :])
    value = values.reshape(*shape[:at], *(1,) * mask.ndim, *shape[at + 1 :])
    mask = lax.expand_dims(mask, [*range(first), *range(first + mask.ndim, self.ndim)])
    if accumulate:
        value = (self | value) if self.dtype == jnp.bool_ else self + value
    return jnp.where(mask, value, self)


@register("aten::_unsafe_masked_index", meta=True)
def unsafe_masked_index(self: Any, mask: Any, indices: list[Any], fill: Any, *, meta: tuple[Meta, ...]) -> Any:
    """``where(mask, self[indices], fill)``; where the mask is False, an index may be out of bounds."""
    inside = [None if i is None else jnp.clip(i, 0, self.shape[d] - 1) for d, i in enumerate(indices)]
    return jnp.where(mask, index(self, inside, meta=meta), cast_like(fill, self))


@register("aten::_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(self: Any, mask: Any, indices: list[Any], values: Any) -> Any:
    inside = [None if i is None else jnp.clip(i, -self.shape[d], self.shape[d] - 1) for d, i in enumerate(indices)]
    return index_put(self, inside, jnp.where(mask, values, jnp.zeros((), values.dtype)), True)


@register("aten::take")
def take(self: Any, index: Any) -> Any:
    i = index_in_range(index, self.size, "take")
    return take_rows(self.reshape(-1), i, 0)


@register("aten::put")
def put(self: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    i = index_in_range(index.reshape(-1), self.size, "put_")
    x, source = self.reshape(-1), source.reshape(-1)
    if accumulate:
        x, source = widen_half(x), widen_half(source)
    return scatter_rows(x, 0, i, source, "sum" if accumulate else "set").reshape(self.shape)


@register("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(self: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, cast_like(value, self), self)


@register("aten::masked_scatter")
def masked_scatter(self: Any, mask: Any, source: Any) -> Any:
    self, mask = jnp.broadcast_arrays(self, mask)
    flat, source = mask.reshape(-1), source.reshape(-1)
    if flat.size == 0:
        return self
    order = jnp.cumsum(flat, dtype=jnp.int64)
    require(
        order[-1:] > source.size,
        order[-1:],
        f"masked_scatter: expected source to have at least {{value}} elements (ones in mask), got {source.size}",
        RuntimeError,
    )
    if source.size == 0:
        return self
    taken = take_rows(source, jnp.clip(order - 1, 0, source.size - 1), 0)
    return jnp.where(mask, taken.reshape(mask.shape), self)


@register("aten::masked_scatter_backward")
def masked_scatter_backward(grad_output: Any, mask: Any, sizes: list[int]) -> Any:
    grad_output, mask = jnp.broadcast_arrays(grad_output, mask)
    size, flat = math.prod(sizes), mask.reshape(-1)
    zeros = jnp.zeros(size, grad_output.dtype)
    if flat.size == 0 or size == 0:
        return zeros.reshape(sizes)
    order = jnp.cumsum(flat, dtype=jnp.int64) - 1
    target = narrow(jnp.where(flat, order, size), size)
    return zeros.at[target].set(grad_output.reshape(-1), mode="drop", wrap_negative_indices=False).reshape(sizes)
