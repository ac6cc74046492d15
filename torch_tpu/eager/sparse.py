"""Sparse tensors: COO and CSR ones that live on the device, made of dense tensors for indices and values.

PyTorch's own kernels for SparseCPU that only look at metadata serve here too. What computes is written with operators
on the dense parts, so that it runs on the device; what is not written here runs on the host, counted, as dense
operators without a lowering do, and what the host has no kernel for either says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu.binding import dispatcher
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager import fallback, refusals
from torch_tpu.eager.spec import find, overload_name

_Kernels = dict[str, Callable[..., Any]]
COO: _Kernels = {}  # by overload, under SparsePrivateUse1
CSR: _Kernels = {}  # under SparseCsrPrivateUse1: all compressed layouts
DENSE: _Kernels = {}  # under PrivateUse1: what makes sparse tensors of dense ones

# CPU's kernels for these serve any device.
_COO_METADATA = (
    "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "empty.memory_format", "sparse_dim",
    "dense_dim", "_dimI", "_dimV", "_nnz", "is_coalesced", "_coalesced_", "_indices", "_values", "indices", "values",
    "copy_sparse_to_sparse_", "zero_", "sparse_resize_", "sparse_resize_and_clear_",
)  # fmt: skip
_CSR_METADATA = (
    "sparse_dim", "dense_dim", "_nnz", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices", "copy_",
    "fill_.Scalar", "zero_", "resize_as_sparse_", "empty.memory_format",
)  # fmt: skip


def _declare(table: _Kernels, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        table.update(dict.fromkeys(names, fn))
        return fn

    return declare


def _borrowed(name: str, key: str) -> Callable[..., Any]:
    found: list[Callable[..., Any]] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.append(dispatcher.cpu_kernel(f"aten::{name}", key))
        return found[0](*args, **kwargs)

    return kernel


COO.update({n: _borrowed(n, "SparseCPU") for n in _COO_METADATA})
CSR.update({n: _borrowed(n, "SparseCsrCPU") for n in _CSR_METADATA})


# What is not written here --------------------------------------------------------------------------------------


def _advice(name: str, kind: str) -> str:
    return f"{name} is not supported for {kind} tensors on tpu; use .to_dense() first, or .cpu()"


def on_host(op: Operator, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on sparse tensors on the host, with copies there and back."""
    name = overload_name(op)
    written = [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    values = {a.name: v for a, v in zip(op._schema.arguments, args, strict=False)} | kwargs
    sparse = [t for a in written for t in refusals.tensors(values.get(a.name)) if t.layout != torch.strided]
    if sparse:
        raise NotImplementedError(_advice(name, "sparse"))
    try:
        return fallback.on_host(op, *args, **kwargs)
    except (NotImplementedError, RuntimeError) as e:
        if "Could not run" in str(e) or "unsupported tensor layout" in str(e):
            raise NotImplementedError(_advice(name, "sparse")) from e
        raise


def host_kernel(name: str) -> Callable[..., Any]:
    """``on_host`` for the operator called ``"aten::packet.overload"``."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        op = find(name)
        assert op is not None
        return on_host(op, *args, **kwargs)

    return kernel


def refuse_nested(op: Operator, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        f"{overload_name(op)}: nested tensors of layout torch.strided are not supported on tpu; use "
        "torch.nested.nested_tensor(..., layout=torch.jagged), or padded tensors with a mask"
    )


# COO -----------------------------------------------------------------------------------------------------------


def _made(indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool) -> torch.Tensor:
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
        indices.shape[0], values.ndim - 1, list(size), indices, values, dtype=values.dtype, layout=torch.sparse_coo,
        device=values.device, is_coalesced=coalesced,
    )  # fmt: skip


def _like(t: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A tensor with elements where ``t`` has them."""
    return _made(t._indices(), values, t.shape, t.is_coalesced())


def _flat(indices: torch.Tensor, size: Any) -> torch.Tensor:
    """One number for the place of each element in the sparse dimensions."""
    flat = torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    for row, n in zip(indices.unbind(0), size, strict=False):
        flat = flat * n + row
    return flat


def _summed(count: int, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values added up by place, in ``count`` places."""
    if values.dtype == torch.bool:
        return _summed(count, at, values.to(torch.int32)) != 0
    made = torch.zeros(count, *values.shape[1:], dtype=values.dtype, device=values.device)
    return made.index_add_(0, at, values)


@_declare(COO, "_coalesce")
def coalesce(self: torch.Tensor) -> torch.Tensor:
    """Elements sorted by place, those of one place added up. Programs are for how many there were, not for how many
    there are then: a new count compiles nothing."""
    indices, values = self._indices(), self._values()
    nnz = indices.shape[1]
    if self.is_coalesced() or nnz == 0:
        return _made(indices, values, self.shape, True)
    places, run = torch.unique(_flat(indices, self.shape), return_inverse=True)
    count = places.shape[0]
    columns = torch.zeros_like(indices).index_copy_(1, run, indices)
    return _made(columns[:, :count], _summed(nnz, run, values)[:count], self.shape, True)


@_declare(COO, "_to_dense")
def to_dense(self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> torch.Tensor:
    values = self._values()
    places = self.shape[: self.sparse_dim()]
    made = _summed(math.prod(places), _flat(self._indices(), places), values).reshape(self.shape)
    return made if dtype is None else made.to(dtype)


@_declare(COO, "clone")
def clone(self: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    return _made(self._indices().clone(), self._values().clone(), self.shape, self.is_coalesced())


@_declare(COO, "_copy_from")
def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if dst.layout == torch.sparse_coo and self.layout == torch.sparse_coo:
        return torch.ops.aten.copy_sparse_to_sparse_.default(dst, self, non_blocking)
    if dst.layout == torch.strided and self.layout == torch.sparse_coo:
        return dst.copy_(self.to_dense())
    raise NotImplementedError(
        f"copy_: from layout {self.layout} to {dst.layout} is not supported on tpu; use .to_dense() or .to_sparse()"
    )


def _number(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) or (x.ndim == 0 and x.layout == torch.strided)


def _scaled(values: torch.Tensor, alpha: Any) -> torch.Tensor:
    return values if alpha == 1 else values * alpha


@_declare(COO, "add.Tensor")
def add(self: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    if self.layout != torch.strided and other.layout != torch.strided:
        return _sum_of_sparse(self, other, alpha)
    if self.layout == torch.strided and not _number(self):
        dtype = torch.result_type(self, other)
        return self.to(dtype, copy=True).add_(other, alpha=alpha)
    raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")


def _sum_of_sparse(a: torch.Tensor, b: torch.Tensor, alpha: Any) -> torch.Tensor:
    """All elements of both, side by side; coalescing adds them up."""
    if a.shape != b.shape or a.sparse_dim() != b.sparse_dim():
        raise RuntimeError(
            f"add: expected sizes and sparse dimensions of self and other to match, but {list(a.shape)} "
            f"({a.sparse_dim()} sparse) != {list(b.shape)} ({b.sparse_dim()} sparse)"
        )
    dtype = torch.result_type(a, b)
    values = torch.cat([a._values().to(dtype), _scaled(b._values().to(dtype), alpha)])
    made = _made(torch.cat([a._indices(), b._indices()], 1), values, a.shape, False)
    return coalesce(made) if a.is_coalesced() and b.is_coalesced() else made


@_declare(COO, "add_.Tensor")
def add_(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    if self.layout != torch.strided:
        return self.copy_(add(self, other, alpha=alpha).to(self.dtype))
    if self.shape != other.shape:
        raise RuntimeError(f"add: expected same sizes of dense and sparse, got {list(self.shape)}, {list(other.shape)}")
    places = other.shape[: other.sparse_dim()]
    values = _scaled(other._values().to(self.dtype), alpha)
    if self.is_contiguous():
        flat = self.view(math.prod(places), *other._values().shape[1:])
        flat.index_add_(0, _flat(other._indices(), places), values)
        return self
    return self.add_(_like(other, values).to_dense())


@_declare(COO, "sub.Tensor")
def sub(self: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    return add(self, other, alpha=-alpha)


@_declare(COO, "mul.Tensor", "mul.Scalar")
def mul(self: Any, other: Any) -> torch.Tensor:
    if _number(other):
        return _like(self, self._values() * other)
    if _number(self):
        return _like(other, self * other._values())
    if self.layout == torch.strided:
        self, other = other, self
    if other.layout == torch.strided and self.shape == other.shape:
        return _like(self, self._values() * _values_at(other, self))
    return on_host(torch.ops.aten.mul.Tensor, self, other)


@_declare(COO, "div.Tensor")
def div(self: torch.Tensor, other: Any) -> torch.Tensor:
    if not _number(other):
        raise RuntimeError("Sparse division requires a scalar or zero-dim dense tensor divisor")
    return _like(self, self._values() / other)


def _values_at(dense: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The values of a dense tensor where a sparse one has elements."""
    places = mask.shape[: mask.sparse_dim()]
    flat = dense.reshape(math.prod(places), *mask.shape[mask.sparse_dim() :])
    return flat.index_select(0, _flat(mask._indices(), places))


@_declare(COO, "sparse_mask")
def sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if self.shape != mask.shape:
        raise RuntimeError(f"sparse_mask(): operands have incompatible sizes; {list(self.shape)}, {list(mask.shape)}")
    return _like(mask, _values_at(self if self.layout == torch.strided else self.to_dense(), mask))


def _unary(name: str) -> Callable[..., Any]:
    op = getattr(torch.ops.aten, name).default

    def kernel(self: torch.Tensor) -> torch.Tensor:
        mine = self if name in ("neg", "positive") else coalesce(self)
        return _like(mine, op(mine._values()))

    return kernel


def _in_place(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self.copy_(fn(self, *args, **kwargs).to(self.dtype))


def _out(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *, out: out.copy_(fn(self))


# Functions that leave zero zero.
_ZERO_STAYS = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "erf", "expm1", "floor", "log1p", "neg", "relu", "round", "sgn",
    "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "isnan", "isinf", "_conj_physical",
)  # fmt: skip
COO.update({name: _unary(name) for name in _ZERO_STAYS})
COO.update({f"{name}_": _in_place(COO[name]) for name in _ZERO_STAYS if find(f"aten::{name}_") is not None})
COO.update({f"{name}.out": _out(COO[name]) for name in _ZERO_STAYS if find(f"aten::{name}.out") is not None})
COO.update({f"{name}_.Tensor": _in_place(COO[f"{name}.Tensor"]) for name in ("sub", "mul", "div")})


@_declare(COO, "sum")
@_declare(CSR, "sum")
def total(self: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return self.values().sum(dtype=dtype) if self.layout == torch.sparse_csr else self._values().sum(dtype=dtype)


@_declare(COO, "mm")
def mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    if self.layout == torch.strided and mat2.layout != torch.strided:
        return mm(mat2.t(), self.t()).t()
    if mat2.layout != torch.strided:
        return on_host(torch.ops.aten._sparse_sparse_matmul.default, self, mat2)
    _check_product(self, mat2)
    if self.dense_dim():
        raise RuntimeError(f"mm: expected a sparse matrix of two sparse dimensions, got {self.sparse_dim()}")
    rows, columns = self._indices().unbind(0)
    products = self._values()[:, None] * mat2.index_select(0, columns)
    return _summed(self.shape[0], rows, products)


def _check_product(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(f"mm: Argument shapes do not fit: {list(a.shape)} and {list(b.shape)}")


@_declare(COO, "mv")
def mv(self: torch.Tensor, vec: torch.Tensor) -> torch.Tensor:
    return mm(self, vec[:, None])[:, 0]


@_declare(COO, "addmm")
def addmm(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if self.layout != torch.strided or (mat1.layout != torch.strided and mat2.layout != torch.strided):
        return on_host(torch.ops.aten.addmm.default, self, mat1, mat2, beta=beta, alpha=alpha)
    made = _scaled(mm(mat1, mat2), alpha)
    return made + self * beta if beta != 0 else made


def _nonzero_of(self: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    mask = self != 0
    return (mask.flatten(sparse_dim).any(-1) if sparse_dim < self.ndim else mask).nonzero().t()


@_declare(DENSE, "_to_sparse.sparse_dim")
def to_sparse_dim(self: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    if not 0 <= sparse_dim <= self.ndim or (sparse_dim == 0 and self.ndim > 0):
        raise RuntimeError(f"to_sparse: sparse_dim must be in 1..{self.ndim}, got {sparse_dim}")
    indices = _nonzero_of(self, sparse_dim).contiguous()
    places = self.shape[:sparse_dim]
    flat = self.reshape(math.prod(places), *self.shape[sparse_dim:])
    return _made(indices, flat.index_select(0, _flat(indices, places)), self.shape, True)


@_declare(DENSE, "_to_sparse")
def to_sparse(
    self: torch.Tensor, *, layout: torch.layout | None = None, blocksize: Any = None, dense_dim: int | None = None
) -> torch.Tensor:
    if layout in (None, torch.sparse_coo):
        return to_sparse_dim(self, self.ndim - (dense_dim or 0))
    if layout == torch.sparse_csr:
        return to_sparse_csr(self, dense_dim)
    return on_host(torch.ops.aten._to_sparse.default, self, layout=layout, blocksize=blocksize, dense_dim=dense_dim)


# Compressed rows -----------------------------------------------------------------------------------------------

# CPU's kernels of functions of one argument call the operators of the dense parts.
CSR.update(
    {
        name: _borrowed(name, "SparseCsrCPU")
        for base in _ZERO_STAYS
        for name in (base, f"{base}_", f"{base}.out", f"{base.removeprefix('_')}.out")
        if find(f"aten::{name}") is not None and dispatcher.has_kernel(f"aten::{name}", "SparseCsrCPU")
    }
)


def _is_matrix(t: torch.Tensor) -> bool:
    return t.layout == torch.sparse_csr and t.ndim == 2


def _made_csr(crow: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, size: Any) -> torch.Tensor:
    return torch.ops.aten._sparse_compressed_tensor_unsafe.default(
        crow, columns, values, list(size), dtype=values.dtype, layout=torch.sparse_csr, device=values.device
    )


def _rows(self: torch.Tensor) -> torch.Tensor:
    """The row of each element."""
    crow = self.crow_indices()
    return torch.repeat_interleave(crow[1:] - crow[:-1], output_size=self._nnz()).to(torch.int64)


@_declare(DENSE, "_to_sparse_csr")
def to_sparse_csr(self: torch.Tensor, dense_dim: int | None = None) -> torch.Tensor:
    if self.ndim != 2 or dense_dim:
        return on_host(torch.ops.aten._to_sparse_csr.default, self, dense_dim)
    rows, columns = _nonzero_of(self, 2).contiguous().unbind(0)
    crow = torch.searchsorted(rows, torch.arange(self.shape[0] + 1, device=self.device))
    values = self.reshape(-1).index_select(0, rows * self.shape[1] + columns)
    return _made_csr(crow, columns, values, self.shape)


@_declare(CSR, "_to_dense")
def to_dense_csr(self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Any:
    if not _is_matrix(self):
        return on_host(torch.ops.aten._to_dense.default, self, dtype, masked_grad)
    rows, n = _rows(self), self.shape[1]
    values = self.values()
    made = _summed(self.shape[0] * n, rows * n + self.col_indices(), values).reshape(*self.shape, *values.shape[1:])
    return made if dtype is None else made.to(dtype)


@_declare(CSR, "clone")
def clone_csr(self: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    if not _is_matrix(self):
        return on_host(torch.ops.aten.clone.default, self)
    return _made_csr(self.crow_indices().clone(), self.col_indices().clone(), self.values().clone(), self.shape)


@_declare(CSR, "sparse_sampled_addmm")
def sampled_addmm(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * self + alpha * (mat1 @ mat2)`` where self has elements."""
    if not (self.dtype.is_floating_point or self.is_complex()):
        raise RuntimeError(
            f"sparse_sampled_addmm: Expected self to be a floating-point or complex tensor, but got {self.dtype}"
        )
    if not _is_matrix(self):
        return on_host(torch.ops.aten.sparse_sampled_addmm.default, self, mat1, mat2, beta=beta, alpha=alpha)
    _check_product(mat1, mat2)
    if self.shape != (mat1.shape[0], mat2.shape[1]):
        raise RuntimeError(
            f"sampled_addmm: Expected self of shape {[mat1.shape[0], mat2.shape[1]]}, but got {list(self.shape)}"
        )
    columns = self.col_indices()
    products = (mat1.index_select(0, _rows(self)) * mat2.index_select(1, columns).t()).sum(1)
    values = _scaled(products, alpha)
    values = values + _scaled(self.values(), beta) if beta != 0 else values
    return _made_csr(self.crow_indices(), columns, values.to(self.dtype), self.shape)


@_declare(CSR, "sparse_sampled_addmm.out")
def sampled_addmm_out(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    made = sampled_addmm(self, mat1, mat2, beta=beta, alpha=alpha)
    return out.resize_as_sparse_(made).copy_(made)


@_declare(CSR, "_sparse_mm_reduce_impl")
def mm_reduce(self: torch.Tensor, other: torch.Tensor, reduce: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The product with the sum replaced; of the extrema also the element that each came from (nnz where none)."""
    _check_product(self, other)
    crow, rows = self.crow_indices(), _rows(self)
    products = self.values()[:, None] * other.index_select(0, self.col_indices())
    lengths = (crow[1:] - crow[:-1]).to(torch.int64)
    made = torch.segment_reduce(products, reduce, lengths=lengths, unsafe=True)
    made = torch.where(lengths[:, None] > 0, made, 0).to(self.dtype)
    if reduce not in ("amax", "amin"):
        return made, torch.empty(0, dtype=torch.int64, device=made.device)
    nnz = self._nnz()
    own = torch.arange(nnz, device=made.device)[:, None]
    chosen = torch.where(products == made.index_select(0, rows), own, nnz)
    first = torch.full(made.shape, nnz, dtype=torch.int64, device=made.device)
    return made, first.scatter_reduce_(0, rows[:, None].expand_as(chosen), chosen, "amin")


@_declare(CSR, "mm")
def mm_csr(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    if not _is_matrix(self) or mat2.layout != torch.strided:
        return on_host(torch.ops.aten.mm.default, self, mat2)
    _check_product(self, mat2)
    products = self.values()[:, None] * mat2.index_select(0, self.col_indices())
    return _summed(self.shape[0], _rows(self), products)


@_declare(CSR, "addmm")
def addmm_csr(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if self.layout != torch.strided or not _is_matrix(mat1) or mat2.layout != torch.strided:
        return on_host(torch.ops.aten.addmm.default, self, mat1, mat2, beta=beta, alpha=alpha)
    made = _scaled(mm_csr(mat1, mat2), alpha)
    return made + self * beta if beta != 0 else made
