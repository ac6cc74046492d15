"""Sorting and order statistics: sort, topk, kthvalue, median, mode. NaN is the greatest value, as in PyTorch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.checks import require_elements
from torch_tpu.lowering.gather_scatter import IN_BOUNDS, at_least_1d
from torch_tpu.lowering.registry import register


def sort_with_index(x: Any, dim: int, descending: bool = False) -> tuple[Any, Any]:
    """A stable sort and the positions the values come from.

    A descending sort is an ascending one of the reversed array, reversed: so equal values keep their order and
    no key needs to be negated.
    """
    place = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    if x.shape[dim] <= 1:
        return x, place
    if descending:
        x, place = lax.rev(x, (dim,)), lax.rev(place, (dim,))
    x, place = lax.sort((x, place), dimension=dim, num_keys=1, is_stable=True)
    return (lax.rev(x, (dim,)), lax.rev(place, (dim,))) if descending else (x, place)


@register("aten::sort")
def sort(self: Any, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    x = at_least_1d(self)
    values, place = sort_with_index(x, dim % x.ndim, descending)
    return values.reshape(self.shape), place.reshape(self.shape)


@register("aten::sort.stable")
def sort_stable(self: Any, *, stable: Any = None, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    return sort(self, dim, descending)


def _order_key(x: Any) -> Any:
    """Integers in the order of ``x`` (anything but float64, whose bits a TPU does not show), with NaN greatest."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    x = x.astype(jnp.float32)
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.int32)  # -0.0 equals 0.0
    bits = jnp.where(bits < 0, bits ^ jnp.iinfo(jnp.int32).max, bits)
    return jnp.where(jnp.isnan(x), jnp.iinfo(jnp.int32).max, bits)


@register("aten::topk")
def topk(self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Any, Any]:
    if self.ndim == 0:
        shape = () if k else (0,)
        return jnp.broadcast_to(self, shape), jnp.zeros(shape, jnp.int32)
    x = jnp.moveaxis(self, dim, -1)
    if k == 0:
        empty = jnp.moveaxis(x[..., :0], -1, dim)
        return empty, jnp.zeros(empty.shape, jnp.int32)
    if largest and jnp.issubdtype(x.dtype, jnp.floating):
        # Only the sign of a NaN is in the way: a negative one would come last.
        values, place = lax.top_k(jnp.where(jnp.isnan(x), jnp.asarray(jnp.nan, x.dtype), x), k)
    elif x.dtype == jnp.float64:
        values, place = (a[..., :k] for a in sort_with_index(x, x.ndim - 1))
    else:
        key = _order_key(x)
        _, place = lax.top_k(key if largest else ~key, k)
        values = jnp.take_along_axis(x, place, -1, mode=IN_BOUNDS)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(place, -1, dim)


def _pick(values: Any, place: Any, position: Any, dim: int, keepdim: bool, ndim: int) -> tuple[Any, Any]:
    """Sorted values and their origins at one position (int32, a row each) along ``dim``."""

    def pick(a: Any) -> Any:
        picked = jnp.take_along_axis(a, position, dim, mode=IN_BOUNDS)
        if ndim == 0:
            return picked.reshape(())
        return picked if keepdim else lax.squeeze(picked, (dim,))

    return pick(values), pick(place)


@register("aten::kthvalue", operands=["k"])
def kthvalue(self: Any, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    x = at_least_1d(self)
    dim %= x.ndim
    require_elements(x, dim, "kthvalue")
    values, place = sort_with_index(x, dim)
    shape = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    position = jnp.broadcast_to(jnp.asarray(k, jnp.int32) - 1, shape)
    return _pick(values, place, position, dim, keepdim, self.ndim)


def _median(self: Any, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Any, Any]:
    """The lower median. NaN in a row is its median, unless ignored."""
    x = at_least_1d(self)
    dim %= x.ndim
    require_elements(x, dim, "median")
    values, place = sort_with_index(x, dim)
    n = x.shape[dim]
    count = n - jnp.sum(x != x, dim, dtype=jnp.int32, keepdims=True)
    if ignore_nan:
        position = jnp.maximum(count - 1, 0) // 2
    else:
        position = jnp.where(count < n, count, (n - 1) // 2)  # the first NaN follows all numbers
    return _pick(values, place, position.astype(jnp.int32), dim, keepdim, self.ndim)


def _median_of_all(self: Any, ignore_nan: bool) -> Any:
    if self.size == 0:
        floating = jnp.issubdtype(self.dtype, jnp.floating)
        return jnp.asarray(jnp.nan if floating else jnp.iinfo(self.dtype).min, self.dtype)
    return _median(self.reshape(-1), 0, False, ignore_nan)[0]


@register("aten::median")
def median(self: Any) -> Any:
    return _median_of_all(self, False)


@register("aten::nanmedian")
def nanmedian(self: Any) -> Any:
    return _median_of_all(self, True)


@register("aten::median.dim")
def median_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _median(self, dim, keepdim, False)


@register("aten::nanmedian.dim")
def nanmedian_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _median(self, dim, keepdim, True)


@register("aten::mode")
def mode(self: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The most frequent value (the smallest of several) and the last position that holds it."""
    x = at_least_1d(self)
    dim %= x.ndim
    require_elements(x, dim, "mode")
    values, place = sort_with_index(x, dim)
    step = lax.broadcasted_iota(jnp.int32, x.shape, dim)
    new = jnp.concatenate(
        [jnp.ones_like(lax.slice_in_dim(values, 0, 1, axis=dim), jnp.bool_),
         lax.slice_in_dim(values, 1, None, axis=dim) != lax.slice_in_dim(values, 0, -1, axis=dim)], dim
    )  # fmt: skip
    length = step - lax.cummax(jnp.where(new, step, 0), axis=dim)
    position = jnp.expand_dims(lax.argmax(length, dim, jnp.int32), dim)  # where the longest run ends
    return _pick(values, place, position, dim, keepdim, self.ndim)
