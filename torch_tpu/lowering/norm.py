"""Layer, group, RMS and weight normalization, and their gradients. Batch normalization is in batch_norm.py.

Statistics of half types are held in float32. Variances are computed in two passes (mean first), which is
stable where the mean is large. A gradient that ``output_mask`` does not ask for is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.registry import register


def widen(x: Any) -> Any:
    """``x`` (or None) in the type its formula is evaluated in: float32 for half types."""
    return None if x is None else dtypes.cast(x, dtypes.compute_type(dtypes.to_torch(x.dtype)))


def common_type(*xs: Any) -> list[Any]:
    """Every array widened to the widest of their compute types; None stays."""
    wide = [widen(x) for x in xs]
    dtype = jnp.result_type(*(x.dtype for x in wide if x is not None))
    return [None if x is None else x.astype(dtype) for x in wide]


def number(value: Any, like: Any) -> Any:
    """A float parameter (traced or not) in the dtype of ``like``."""
    return dtypes.cast(value, dtypes.to_torch(like.dtype))


def mean_and_variance(x: Any, axes: Sequence[int]) -> tuple[Any, Any]:
    """Mean and biased variance over ``axes``, which are kept."""
    mean = jnp.mean(x, axis=tuple(axes), keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axis=tuple(axes), keepdims=True)


def _scale_shift(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _rows(x: Any, normalized_shape: Sequence[int]) -> Any:
    """``x`` as (rows, elements normalized together)."""
    n = math.prod(normalized_shape)
    return x.reshape(math.prod(x.shape[: x.ndim - len(normalized_shape)]), n)


def _flat(x: Any) -> Any:
    return None if x is None else x.reshape(1, -1)


@register("aten::native_layer_norm")
def layer_norm(input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: Any) -> Any:
    x, weight, bias = common_type(input, weight, bias)
    rows = _rows(x, normalized_shape)
    mean, variance = mean_and_variance(rows, (1,))
    rstd = lax.rsqrt(variance + number(eps, x))
    y = _scale_shift((rows - mean) * rstd, _flat(weight), _flat(bias))
    statistics = (*input.shape[: input.ndim - len(normalized_shape)], *[1] * len(normalized_shape))
    return y.reshape(input.shape), mean.reshape(statistics), rstd.reshape(statistics)


@register("aten::native_layer_norm_backward")
def layer_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: Sequence[int],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> Any:
    grad, x, mean, rstd, weight = common_type(grad_out, input, mean, rstd, weight)
    grad, x = _rows(grad, normalized_shape), _rows(x, normalized_shape)
    normalized = (x - mean.reshape(-1, 1)) * rstd.reshape(-1, 1)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = _scale_shift(grad, _flat(weight), None)
        along = jnp.mean(scaled * normalized, axis=1, keepdims=True)
        grad_input = rstd.reshape(-1, 1) * (scaled - jnp.mean(scaled, axis=1, keepdims=True) - normalized * along)
        grad_input = grad_input.reshape(input.shape)
    if output_mask[1] and weight is not None:
        grad_weight = jnp.sum(grad * normalized, axis=0).reshape(tuple(normalized_shape))
    if output_mask[2] and bias is not None:
        grad_bias = jnp.sum(grad, axis=0).reshape(tuple(normalized_shape))
    return grad_input, grad_weight, grad_bias


@register("aten::_fused_rms_norm")
def rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any, eps: Any) -> Any:
    x, weight = common_type(input, weight)
    rows = _rows(x, normalized_shape)
    eps = jnp.finfo(widen(input).dtype).eps if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(rows), axis=1, keepdims=True) + number(eps, x))
    y = _scale_shift(rows * rstd, _flat(weight), None)
    statistics = (*input.shape[: input.ndim - len(normalized_shape)], *[1] * len(normalized_shape))
    return y.reshape(input.shape), rstd.reshape(statistics)


@register("aten::_fused_rms_norm_backward")
def rms_norm_backward(
    grad_out: Any, input: Any, normalized_shape: Sequence[int], rstd: Any, weight: Any, output_mask: Sequence[bool]
) -> Any:
    grad, x, rstd, weight = common_type(grad_out, input, rstd, weight)
    grad, x, rstd = _rows(grad, normalized_shape), _rows(x, normalized_shape), rstd.reshape(-1, 1)
    normalized = x * rstd
    grad_input = grad_weight = None
    if output_mask[0]:
        scaled = _scale_shift(grad, _flat(weight), None)
        along = jnp.mean(scaled * normalized, axis=1, keepdims=True)
        grad_input = ((scaled - normalized * along) * rstd).reshape(input.shape)
    if output_mask[1] and weight is not None:
        grad_weight = jnp.sum(grad * normalized, axis=0).reshape(tuple(normalized_shape))
    return grad_input, grad_weight


@register("aten::native_group_norm")
def group_norm(input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: Any) -> Any:
    x, weight, bias = common_type(input, weight, bias)
    rows = x.reshape(N, group, (C // group) * HxW)
    mean, variance = mean_and_variance(rows, (2,))
    rstd = lax.rsqrt(variance + number(eps, x))
    y = ((rows - mean) * rstd).reshape(N, C, HxW)
    y = _scale_shift(y, *(None if p is None else p.reshape(1, C, 1) for p in (weight, bias)))
    return y.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@register("aten::native_group_norm_backward")
def group_norm_backward(
    grad_out: Any,
    input: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Any:
    grad, x, mean, rstd, weight = common_type(grad_out, input, mean, rstd, weight)
    shape = (N, group, C // group, HxW)
    grad, x = grad.reshape(shape), x.reshape(shape)
    mean, rstd = mean.reshape(N, group, 1, 1), rstd.reshape(N, group, 1, 1)
    normalized = (x - mean) * rstd
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scaled = grad if weight is None else grad * weight.reshape(1, group, C // group, 1)
        along = jnp.mean(scaled * normalized, axis=(2, 3), keepdims=True)
        grad_input = rstd * (scaled - jnp.mean(scaled, axis=(2, 3), keepdims=True) - normalized * along)
        grad_input = grad_input.reshape(input.shape)
    if output_mask[1]:
        grad_weight = jnp.sum(grad * normalized, axis=(0, 3)).reshape(C)
    if output_mask[2]:
        grad_bias = jnp.sum(grad, axis=(0, 3)).reshape(C)
    return grad_input, grad_weight, grad_bias


def _weight_norm_axes(v: Any, dim: int) -> tuple[int, ...]:
    if dim not in (0, v.ndim - 1):
        raise NotImplementedError(f"_weight_norm_interface: dim={dim} of {v.ndim}; supported: the first or the last")
    return tuple(d for d in range(v.ndim) if d != dim)


@register("aten::_weight_norm_interface")
def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    wide, scale = common_type(v, g)
    norm = jnp.sqrt(jnp.sum(jnp.square(wide), axis=_weight_norm_axes(v, dim), keepdims=True))
    return wide * (scale / norm), norm


@register("aten::_weight_norm_interface_backward")
def weight_norm_backward(grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int) -> Any:
    grad, v, g, norm = common_type(grad_w, saved_v, saved_g, saved_norms)
    along = jnp.sum(grad * v, axis=_weight_norm_axes(v, dim), keepdims=True)
    return (g / norm) * (grad - v * (along / jnp.square(norm))), along / norm
