"""Reductions over dimensions: sums, products, extrema, variances, vector norms, logsumexp, counts.

Half types are summed in float32 and rounded once. A dimension list that is None or empty means every dimension,
unless the operator says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.checks import index_in_range, require, require_elements
from torch_tpu.lowering.elements import is_complex, is_floating, is_integer, modulus
from torch_tpu.lowering.gather_scatter import highest, lowest, scatter_rows, widen_half
from torch_tpu.lowering.registry import Meta, Promotion, register


def dims_of(x: Any, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Non-negative dimensions to reduce; all of them for None and for an empty list. None of a 0-d array."""
    if x.ndim == 0:
        return ()
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    return tuple(d % x.ndim for d in ([dim] if isinstance(dim, int) else dim))


def count_of(x: Any, dims: tuple[int, ...]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _as_result(x: Any, meta: tuple[Meta, ...]) -> Any:
    """``x`` in the dtype of the result, half types widened."""
    return dtypes.cast(x, dtypes.compute_type(meta[0].dtype))


@register("aten::sum", "aten::sum.dim_IntList", meta=True)
def sum_(
    self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, meta: tuple[Meta, ...]
) -> Any:  # fmt: skip
    x = _as_result(self, meta)
    return jnp.sum(x, dims_of(x, dim), dtype=x.dtype, keepdims=keepdim)


@register("aten::nansum", meta=True)
def nansum(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    x = _as_result(self, meta)
    x = jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x) if jnp.issubdtype(x.dtype, jnp.inexact) else x
    return jnp.sum(x, dims_of(x, dim), dtype=x.dtype, keepdims=keepdim)


@register("aten::mean", "aten::mean.dim", meta=True)
def mean(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _mean(_as_result(self, meta), dim, keepdim)


def _mean(x: Any, dim: Any, keepdim: bool) -> Any:
    dims = dims_of(x, dim)
    return jnp.sum(x, dims, dtype=x.dtype, keepdims=keepdim) / jnp.asarray(count_of(x, dims), x.dtype)


@register("aten::prod", "aten::prod.dim_int", meta=True)
def prod(self: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    x = _as_result(self, meta)
    return jnp.prod(x, dims_of(x, dim), dtype=x.dtype, keepdims=keepdim)


def _truth_dims(x: Any, dim: Any) -> tuple[int, ...]:
    return () if isinstance(dim, (list, tuple)) and not dim else dims_of(x, dim)  # any and all: () reduces nothing


@register("aten::any", "aten::any.dim", "aten::any.dims")
def any_(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.any(self != 0, _truth_dims(self, dim), keepdims=keepdim)


@register("aten::all", "aten::all.dim", "aten::all.dims")
def all_(self: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return jnp.all(self != 0, _truth_dims(self, dim), keepdims=keepdim)


@register("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(self: Any, dim: Any = None) -> Any:
    return jnp.sum(self != 0, dims_of(self, dim), dtype=jnp.int64)


# ---- extrema: NaN wins, and the first of equal values


def _max(x: Any, dim: Any, keepdim: bool) -> Any:
    return jnp.max(x, dims_of(x, dim), keepdims=keepdim, initial=_of_none(x, lowest))


def _min(x: Any, dim: Any, keepdim: bool) -> Any:
    return jnp.min(x, dims_of(x, dim), keepdims=keepdim, initial=_of_none(x, highest))


def _of_none(x: Any, bound: Any) -> Any:
    """Complex numbers have no order; the CPU only sees that where there are any."""
    return 0 if is_complex(x) else bound(x.dtype)


def _with_index(x: Any, dim: int, keepdim: bool, extremum: Any) -> tuple[Any, Any]:
    """An extremum along one dimension and its first position.

    Two plain reductions: XLA:CPU does not vectorize the paired one of ``lax.argmax`` (4 times slower).
    """
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int32)
    (d,) = dims_of(x, dim)
    require_elements(x, d, "max" if extremum is _max else "min")
    value = extremum(x, d, True)
    hit = x == value
    if jnp.issubdtype(x.dtype, jnp.floating):
        hit |= jnp.isnan(x)
    kind = jnp.int32 if x.shape[d] < 2**31 else jnp.int64
    place = jnp.where(hit, lax.broadcasted_iota(kind, x.shape, d), jnp.asarray(max(x.shape[d] - 1, 0), kind))
    place = jnp.min(place, d, keepdims=True, initial=jnp.iinfo(kind).max)
    return (value, place) if keepdim else (lax.squeeze(value, (d,)), lax.squeeze(place, (d,)))


@register("aten::amax")
def amax(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _max(self, dim, keepdim)


@register("aten::amin")
def amin(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _min(self, dim, keepdim)


@register("aten::aminmax", "aten::_aminmax", "aten::_aminmax.dim")
def aminmax(self: Any, dim: int | None = None, keepdim: bool = False) -> tuple[Any, Any]:
    return _min(self, dim, keepdim), _max(self, dim, keepdim)


@register("aten::max")
def max_(self: Any) -> Any:
    if not self.size:
        raise RuntimeError("max(): Expected reduction dim to be specified for input.numel() == 0.")
    return _max(self, None, False)


@register("aten::min")
def min_(self: Any) -> Any:
    if not self.size:
        raise RuntimeError("min(): Expected reduction dim to be specified for input.numel() == 0.")
    return _min(self, None, False)


@register("aten::max.dim")
def max_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _with_index(self, dim, keepdim, _max)


@register("aten::min.dim")
def min_dim(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _with_index(self, dim, keepdim, _min)


def _arg(self: Any, dim: int | None, keepdim: bool, extremum: Any, meta: tuple[Meta, ...]) -> Any:
    x = self.reshape(-1) if dim is None else self
    return _with_index(x, 0 if dim is None else dim, keepdim, extremum)[1].reshape(meta[0].shape)


@register("aten::argmax", meta=True)
def argmax(self: Any, dim: int | None = None, keepdim: bool = False, *, meta: tuple[Meta, ...]) -> Any:
    return _arg(self, dim, keepdim, _max, meta)


@register("aten::argmin", meta=True)
def argmin(self: Any, dim: int | None = None, keepdim: bool = False, *, meta: tuple[Meta, ...]) -> Any:
    return _arg(self, dim, keepdim, _min, meta)


# ---- variances


def _var_mean(self: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Two passes, as accuracy asks: the mean, then the squared distances from it."""
    x = widen_half(self)
    dims = dims_of(x, dim)
    center = _mean(x, dims, True) if x.ndim else x
    apart = x - center
    square = jnp.real(apart) ** 2 + jnp.imag(apart) ** 2 if jnp.iscomplexobj(x) else apart * apart
    freedom = jnp.maximum(count_of(x, dims) - jnp.asarray(1 if correction is None else correction), 0)
    total = jnp.sum(square, dims, dtype=square.dtype, keepdims=keepdim)
    return total / freedom.astype(square.dtype), center if keepdim else lax.squeeze(center, dims)


@register("aten::var.correction", specialize={"correction": (0, 1)})
def var(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _var_mean(self, dim, correction, keepdim)[0]


@register("aten::std.correction", specialize={"correction": (0, 1)})
def std(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return jnp.sqrt(_var_mean(self, dim, correction, keepdim)[0])


@register("aten::var_mean.correction", specialize={"correction": (0, 1)})
def var_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Any, Any]:
    return _var_mean(self, dim, correction, keepdim)


@register("aten::std_mean.correction", specialize={"correction": (0, 1)})
def std_mean(self: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Any, Any]:
    variance, center = _var_mean(self, dim, correction, keepdim)
    return jnp.sqrt(variance), center


# ---- norms

NORM_ORDERS = (0, 0.5, 1, 2, 3, math.inf, -math.inf)


def vector_norm(x: Any, order: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
    """The ``order`` norm over ``dims`` of an array that is not of half type.

    An order that is an operand of the program gets the general formula, so the special ones are Python numbers.
    """
    size = modulus(x) if is_complex(x) else jnp.abs(x)
    if isinstance(order, (int, float)):
        if order == math.inf:
            return jnp.max(size, dims, keepdims=keepdim, initial=0)
        if order == -math.inf:
            return jnp.min(size, dims, keepdims=keepdim, initial=math.inf)
        if order == 0:
            return jnp.sum(x != 0, dims, dtype=size.dtype, keepdims=keepdim)
        if order == 1 or count_of(x, dims) == 1:
            return jnp.sum(size, dims, dtype=size.dtype, keepdims=keepdim)
        if order == 2:
            square = jnp.real(x) ** 2 + jnp.imag(x) ** 2 if jnp.iscomplexobj(x) else x * x
            return jnp.sqrt(jnp.sum(square, dims, dtype=size.dtype, keepdims=keepdim))
    order = jnp.asarray(order, size.dtype)
    return jnp.sum(size**order, dims, dtype=size.dtype, keepdims=keepdim) ** (1 / order)


@register("aten::linalg_vector_norm", specialize={"ord": NORM_ORDERS}, meta=True)
def linalg_vector_norm(
    self: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, meta: tuple[Meta, ...]
) -> Any:
    x = widen_half(self if dtype is None else dtypes.cast(self, dtype))
    return vector_norm(x, ord, dims_of(x, dim), keepdim)


@register(
    "aten::norm.Scalar", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype", specialize={"p": NORM_ORDERS}
)
def norm(self: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = widen_half(self if dtype is None else dtypes.cast(self, dtype))
    return vector_norm(x, 2 if p is None else p, dims_of(x, dim), keepdim)


@register("aten::norm.ScalarOpt_dtype", specialize={"p": NORM_ORDERS})
def norm_dtype(self: Any, p: Any, *, dtype: Any) -> Any:
    return norm(self, p, dtype=dtype)


@register("aten::dist", specialize={"p": NORM_ORDERS}, promote=Promotion.DEFAULT, own_types=["p"])
def dist(self: Any, other: Any, p: Any = 2) -> Any:
    x = self - other
    return vector_norm(x, p, dims_of(x, None), False)


@register("aten::renorm", specialize={"p": NORM_ORDERS})
def renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    """Slices along ``dim`` whose norm exceeds ``maxnorm``, scaled down to it."""
    x = widen_half(self)
    size = vector_norm(x, p, tuple(d for d in range(x.ndim) if d != dim % x.ndim), True)
    limit = jnp.asarray(maxnorm).astype(size.dtype)
    return x * jnp.where(size > limit, limit / (size + 1e-7), 1)


@register("aten::embedding_renorm", specialize={"norm_type": NORM_ORDERS})
def embedding_renorm(self: Any, indices: Any, max_norm: Any, norm_type: Any) -> Any:
    """The table with the rows that are looked up scaled down to ``max_norm``."""
    place = index_in_range(indices.reshape(-1), self.shape[0], "embedding_renorm_", negative=False)
    used = scatter_rows(jnp.zeros(self.shape[0], jnp.bool_), 0, place, jnp.ones(place.shape, jnp.bool_), "set")
    return jnp.where(used[:, None], renorm(self, norm_type, 0, max_norm), widen_half(self))


@register("aten::logsumexp", meta=True)
def logsumexp(self: Any, dim: Any, keepdim: bool = False, *, meta: tuple[Meta, ...]) -> Any:
    x = _as_result(self, meta)
    dims = dims_of(x, dim)
    top = jnp.max(jnp.real(x), dims, keepdims=True, initial=-jnp.inf)
    top = jnp.where(jnp.abs(top) == jnp.inf, jnp.zeros((), top.dtype), top)
    out = jnp.log(jnp.sum(jnp.exp(x - top), dims, dtype=x.dtype, keepdims=keepdim))
    return out + (top if keepdim else lax.squeeze(top, dims))


@register("aten::trace")
def trace(self: Any) -> Any:
    rows, columns = self.shape
    diagonal = self.reshape(-1)[: min(rows, columns) * (columns + 1) : columns + 1]
    x = diagonal if jnp.issubdtype(self.dtype, jnp.inexact) else diagonal.astype(jnp.int64)
    x = widen_half(x)
    return jnp.sum(x, dtype=x.dtype)


@register("aten::histc")
def histc(self: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Counts in equal bins of [min, max]; of the data's own range where min == max.

    Integers, which CPU has no kernel for, are divided into bins as integers, as on CUDA.
    """
    whole = is_integer(self)
    if not whole and not is_floating(self):
        raise NotImplementedError(f"histc is not implemented for {self.dtype}; supported: floating and integer types")
    x = (self.astype(jnp.int64) if whole else widen_half(self)).reshape(-1)
    low, high = jnp.asarray(min).astype(x.dtype), jnp.asarray(max).astype(x.dtype)
    require(low > high, low, "histc: max must be larger than min, got min={value}", RuntimeError)
    if x.size == 0:
        return jnp.zeros(bins, x.dtype)
    own = low == high
    low, high = jnp.where(own, jnp.min(x), low), jnp.where(own, jnp.max(x), high)
    if not whole:
        require(~jnp.isfinite(high - low), low * 0, "histc: the range of the values is not finite", RuntimeError)
    point = low == high
    low, high = jnp.where(point, low - 1, low), jnp.where(point, high + 1, high)
    inside = (x >= low) & (x <= high)
    scaled = jnp.where(inside, (x - low) * bins, 0)
    place = jnp.clip((scaled // (high - low) if whole else scaled / (high - low)).astype(jnp.int32), 0, bins - 1)
    return scatter_rows(jnp.zeros(bins, jnp.int32), 0, place, inside.astype(jnp.int32), "sum")
