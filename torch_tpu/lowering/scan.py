"""Cumulative operators along one dimension: cumsum, cumprod, cummax, cummin, logcumsumexp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.gather_scatter import at_least_1d, widen_half
from torch_tpu.lowering.pointwise import log_of_sum
from torch_tpu.lowering.registry import Meta, register


def _along(x: Any, dim: int, scan: Callable[..., Any]) -> Any:
    flat = at_least_1d(x)
    return scan(flat, axis=dim % flat.ndim).reshape(x.shape)


@register("aten::cumsum", meta=True)
def cumsum(self: Any, dim: int, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _along(dtypes.cast(self, dtypes.compute_type(meta[0].dtype)), dim, lax.cumsum)


@register("aten::cumprod", meta=True)
def cumprod(self: Any, dim: int, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _along(dtypes.cast(self, dtypes.compute_type(meta[0].dtype)), dim, lax.cumprod)


@register("aten::logcumsumexp")
def logcumsumexp(self: Any, dim: int) -> Any:
    if jnp.iscomplexobj(self):
        return _along(self, dim, _complex_log_sums)
    # Fused with the conversion to a half type, it ends libtpu's process ("Reduction Function not modeled").
    return lax.optimization_barrier(_along(widen_half(self), dim, lax.cumlogsumexp))


def _complex_log_sums(x: Any, axis: int) -> Any:
    """One element after the other: which of the angles 2 pi apart the imaginary part is depends on the order."""

    def step(total: Any, element: Any) -> tuple[Any, Any]:
        total = log_of_sum(element, total)
        return total, total

    rows = jnp.moveaxis(x, axis, 0)
    start = jnp.full(rows.shape[1:], -jnp.inf, x.dtype)
    return jnp.moveaxis(lax.scan(step, start, rows)[1], 0, axis)


def _extremum(self: Any, dim: int, scan: Callable[..., Any]) -> tuple[Any, Any]:
    """The running extremum and the last position that reached it (of NaN: the last NaN)."""
    x = at_least_1d(self)
    axis = dim % x.ndim
    if x.size == 0:
        return self, jnp.zeros(self.shape, jnp.int32)
    integer = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    value = scan(integer, axis=axis)
    hit = integer == value
    if jnp.issubdtype(x.dtype, jnp.floating):
        hit |= jnp.isnan(x)
    place = lax.cummax(jnp.where(hit, lax.broadcasted_iota(jnp.int32, x.shape, axis), -1), axis=axis)
    return dtypes.cast(value, dtypes.to_torch(x.dtype)).reshape(self.shape), place.reshape(self.shape)


@register("aten::cummax")
def cummax(self: Any, dim: int) -> tuple[Any, Any]:
    return _extremum(self, dim, lax.cummax)


@register("aten::cummin")
def cummin(self: Any, dim: int) -> tuple[Any, Any]:
    return _extremum(self, dim, lax.cummin)
