"""Gather and scatter along one dimension: gather, scatter*, index_select/add/copy/fill/reduce.

Indices are checked, then narrowed to int32 where the size allows it (a TPU emulates 64-bit integers), and XLA is
told that they are in bounds. Sums of half types are accumulated in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.checks import index_in_range
from torch_tpu.lowering.registry import register

IN_BOUNDS = "promise_in_bounds"
_SCATTER = {
    "set": lax.scatter,
    "sum": lax.scatter_add,
    "prod": lax.scatter_mul,
    "amax": lax.scatter_max,
    "amin": lax.scatter_min,
}
# On bool, a sum is a logical or, a product a logical and.
_SCATTER_BOOL = {**_SCATTER, "sum": lax.scatter_max, "prod": lax.scatter_min}


def narrow(index: Any, size: int) -> Any:
    """A checked index as int32, if ``size`` fits."""
    return index.astype(jnp.int32) if size <= np.iinfo(np.int32).max else index.astype(jnp.int64)


def cast_like(value: Any, like: Any) -> Any:
    """A tensor or number in the dtype of ``like``."""
    return dtypes.cast(value, dtypes.to_torch(like.dtype))


def widen_half(x: Any) -> Any:
    """float32 for half types, anything else unchanged: the type in which sums are accumulated."""
    return dtypes.cast(x, dtypes.compute_type(dtypes.to_torch(x.dtype)))


def at_least_1d(x: Any) -> Any:
    return x.reshape(1) if x.ndim == 0 else x


def lowest(dtype: Any) -> Any:
    """The identity of max."""
    if dtype == jnp.bool_:
        return False
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    """The identity of min."""
    if dtype == jnp.bool_:
        return True
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


def take_rows(x: Any, index: Any, dim: int) -> Any:
    """``x`` at checked positions of one dimension, which the dimensions of ``index`` replace."""
    if index.size == 0 or x.size == 0:
        return jnp.zeros(x.shape[:dim] + index.shape + x.shape[dim + 1 :], x.dtype)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(*range(dim), *range(dim + index.ndim, x.ndim + index.ndim - 1)),
        collapsed_slice_dims=(dim,),
        start_index_map=(dim,),
    )
    sizes = [1 if d == dim else n for d, n in enumerate(x.shape)]
    return lax.gather(x, narrow(index, x.shape[dim])[..., None], numbers, sizes, mode=IN_BOUNDS)


def scatter_rows(x: Any, dim: int, index: Any, updates: Any, how: str) -> Any:
    """Combine slices of ``updates`` along ``dim`` into ``x`` at the checked positions of a 1-d ``index``."""
    if updates.size == 0:
        return x
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(d for d in range(x.ndim) if d != dim),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
    )
    fn = (_SCATTER_BOOL if x.dtype == jnp.bool_ else _SCATTER)[how]
    return fn(x, narrow(index, x.shape[dim])[:, None], updates, numbers, mode=IN_BOUNDS)


def scatter_elements(x: Any, dim: int, index: Any, updates: Any, how: str) -> Any:
    """Combine elements of ``updates`` into ``x`` at checked positions along ``dim``; all of one rank."""
    if index.size == 0:
        return x
    others = tuple(d for d in range(x.ndim) if d != dim)
    part = tuple(x.shape[d] if d == dim else index.shape[d] for d in range(x.ndim))
    block = lax.slice(x, (0,) * x.ndim, part)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        operand_batching_dims=others,
        scatter_indices_batching_dims=others,
    )
    fn = (_SCATTER_BOOL if x.dtype == jnp.bool_ else _SCATTER)[how]
    block = fn(block, narrow(index, x.shape[dim])[..., None], updates, numbers, mode=IN_BOUNDS)
    return block if part == x.shape else lax.dynamic_update_slice(x, block, (0,) * x.ndim)


def reduce_into(
    x: Any, src: Any, reduce: str, include_self: bool, scatter: Callable[[Any, Any, str], Any], what: str
) -> Any:
    """scatter_reduce and index_reduce: ``scatter(x, updates, how)`` is one of the two scatters above.

    Without ``include_self``, positions that are written start from the reduction's identity.
    """
    x, src = widen_half(x), widen_half(src)
    identities = {
        "sum": lambda: 0,
        "mean": lambda: 0,
        "prod": lambda: 1,
        "amax": lambda: lowest(x.dtype),
        "amin": lambda: highest(x.dtype),
    }
    if reduce not in identities:
        raise NotImplementedError(f"{what}: reduce={reduce!r}; supported: {', '.join(identities)}")
    if not include_self:
        x = scatter(x, jnp.full(src.shape, identities[reduce](), x.dtype), "set")
    if reduce != "mean":
        return scatter(x, src, reduce)
    kind = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int64
    count = jnp.full(x.shape, 1 if include_self else 0, kind)
    count = jnp.maximum(scatter(count, jnp.ones(src.shape, kind), "sum"), 1)
    total = scatter(x, src, "sum")
    return total / count if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.floor_divide(total, count)


def _prepare(self: Any, dim: int, index: Any, what: str) -> tuple[Any, int, Any]:
    x, i = at_least_1d(self), at_least_1d(index)
    dim %= x.ndim
    return x, dim, index_in_range(i, x.shape[dim], what, dim=dim, negative=False)


def _scatter(self: Any, dim: int, index: Any, src: Any, what: str, apply: Callable[..., Any]) -> Any:
    """``apply(x, src, scatter)`` with everything at least 1-d and ``src`` cut to the index's shape."""
    if index.size == 0:
        return self
    x, dim, i = _prepare(self, dim, index, what)
    src = jnp.broadcast_to(src, i.shape) if src.ndim == 0 else lax.slice(src, (0,) * i.ndim, i.shape)
    return apply(x, src, lambda x, u, how: scatter_elements(x, dim, i, u, how)).reshape(self.shape)


@register("aten::gather")
def gather(self: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    if index.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    x, dim, i = _prepare(self, dim, index, "gather")
    x = lax.slice(x, (0,) * x.ndim, [x.shape[d] if d == dim else i.shape[d] for d in range(x.ndim)])
    if x.size == 0:  # out of range, and reported by the check
        return jnp.zeros(index.shape, self.dtype)
    return jnp.take_along_axis(x, narrow(i, x.shape[dim]), dim, mode=IN_BOUNDS).reshape(index.shape)


@register("aten::scatter.src", "aten::scatter.value")
def scatter(self: Any, dim: int, index: Any, src: Any) -> Any:
    src = cast_like(src, self)
    return _scatter(self, dim, index, src, "scatter", lambda x, src, put: put(x, src, "set"))


@register("aten::scatter_add")
def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    return _scatter(
        self, dim, index, widen_half(src), "scatter_add", lambda x, src, put: put(widen_half(x), src, "sum")
    )


@register("aten::scatter.reduce", "aten::scatter.value_reduce")
def scatter_combine(self: Any, dim: int, index: Any, src: Any, *, reduce: str) -> Any:
    how = {"add": "sum", "multiply": "prod"}.get(reduce)
    if how is None:
        raise NotImplementedError(f"aten::scatter: reduce={reduce!r}; supported: add, multiply")
    src = cast_like(src, self)
    return _scatter(
        self, dim, index, src, "scatter", lambda x, src, put: reduce_into(x, src, how, True, put, "aten::scatter")
    )


@register("aten::scatter_reduce.two")
def scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Any:
    return _scatter(
        self, dim, index, src, "scatter_reduce",
        lambda x, src, put: reduce_into(x, src, reduce, include_self, put, "aten::scatter_reduce"),
    )  # fmt: skip


@register("aten::index_select")
def index_select(self: Any, dim: int, index: Any) -> Any:
    x, dim, i = _prepare(self, dim, index, "index_select")
    out = take_rows(x, i, dim)
    return out.reshape(()) if self.ndim == 0 else out


def _index_rows(self: Any, dim: int, index: Any, source: Any, what: str, apply: Callable[..., Any]) -> Any:
    """``apply(x, source, scatter)`` for the index_* family: a 1-d index and a source of self's rank."""
    x, dim, i = _prepare(self, dim, index, what)
    i = i.reshape(-1)
    rows = source.reshape(x.shape[:dim] + i.shape + x.shape[dim + 1 :])
    return apply(x, rows, lambda x, u, how: scatter_rows(x, dim, i, u, how)).reshape(self.shape)


@register("aten::index_add")
def index_add(self: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    source = widen_half(source)
    if not (isinstance(alpha, int) and alpha == 1):
        source = source & cast_like(alpha, source) if source.dtype == jnp.bool_ else source * cast_like(alpha, source)
    return _index_rows(self, dim, index, source, "index_add", lambda x, rows, put: put(widen_half(x), rows, "sum"))


@register("aten::index_copy")
def index_copy(self: Any, dim: int, index: Any, source: Any) -> Any:
    return _index_rows(self, dim, index, source, "index_copy", lambda x, rows, put: put(x, rows, "set"))


@register("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(self: Any, dim: int, index: Any, value: Any) -> Any:
    x, i = at_least_1d(self), index.reshape(-1)
    dim %= x.ndim
    size = x.shape[dim]
    i = index_in_range(i, size, "index_fill", dim=dim)
    # Marking the positions of one dimension and selecting is cheaper than scattering whole slices.
    hit = scatter_rows(jnp.zeros(size, jnp.bool_), 0, i, jnp.ones(i.shape, jnp.bool_), "set")
    hit = hit.reshape([size if d == dim else 1 for d in range(x.ndim)])
    return jnp.where(hit, cast_like(value, x), x).reshape(self.shape)


@register("aten::index_reduce")
def index_reduce(self: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    return _index_rows(
        self, dim, index, source, "index_reduce",
        lambda x, rows, put: reduce_into(x, rows, reduce, include_self, put, "aten::index_reduce"),
    )  # fmt: skip
