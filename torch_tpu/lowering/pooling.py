"""Average pooling, sliding and adaptive, and its gradient. Max pooling is in max_pooling.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering.norm import widen
from torch_tpu.lowering.registry import register
from torch_tpu.lowering.windows import (
    Taps,
    adaptive,
    along,
    output_size,
    separable_sum,
    sliding,
    transpose,
    tuple_of,
)


def _sliding_average(
    shape: Sequence[int],
    dims: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> tuple[list[Taps], list[np.ndarray]]:
    """For each pooled dimension the windows, and the factor of the divisor of each window."""
    kernel, padding = tuple_of(kernel_size, dims), tuple_of(padding, dims)
    stride = tuple_of(stride, dims) if len(stride) else kernel
    taps, counts = [], []
    for n, k, s, p in zip(shape[-dims:], kernel, stride, padding, strict=True):
        out = output_size(n, k, s, p, 1, ceil_mode)
        taps.append(sliding(n, out, k, s, p))
        if divisor_override is not None:
            counts.append(np.full(out, 1))
        elif count_include_pad:
            start = np.arange(out) * s - p
            counts.append(np.minimum(start + k, n + p) - start)
        else:
            # A window of padding only gives 0, not 0/0.
            counts.append(np.maximum(taps[-1].valid.sum(axis=1), 1))
    if divisor_override is not None:
        counts[0] = counts[0] * divisor_override
    return taps, counts


def _divide(x: Any, counts: Sequence[np.ndarray]) -> Any:
    divisor = np.ones((1,) * x.ndim, np.int64)
    for d, c in enumerate(counts):
        divisor = divisor * along(c, x.ndim, x.ndim - len(counts) + d)
    divisor = jnp.asarray(divisor.astype(x.dtype))
    if jnp.issubdtype(x.dtype, jnp.integer):
        return lax.div(x, jnp.broadcast_to(divisor, x.shape))
    return x / divisor


def _avg_pool(dims: int, self: Any, *geometry: Any) -> Any:
    x = widen(self)
    taps, counts = _sliding_average(x.shape, dims, *geometry)
    return _divide(separable_sum(x, taps), counts)


def _avg_pool_backward(dims: int, grad: Any, self: Any, *geometry: Any) -> Any:
    taps, counts = _sliding_average(self.shape, dims, *geometry)
    grad = _divide(widen(grad), counts)
    return separable_sum(grad, [transpose(t, n) for t, n in zip(taps, self.shape[-dims:], strict=True)])


@register("aten::avg_pool2d")
def avg_pool2d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    return _avg_pool(2, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@register("aten::avg_pool3d")
def avg_pool3d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    return _avg_pool(3, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@register("aten::avg_pool2d_backward")
def avg_pool2d_backward(grad_output: Any, self: Any, *geometry: Any) -> Any:
    return _avg_pool_backward(2, grad_output, self, *geometry)


@register("aten::avg_pool3d_backward")
def avg_pool3d_backward(grad_output: Any, self: Any, *geometry: Any) -> Any:
    return _avg_pool_backward(3, grad_output, self, *geometry)


def _adaptive_taps(shape: Sequence[int], out: Sequence[int]) -> tuple[list[Taps], list[np.ndarray]]:
    taps = [adaptive(n, o) for n, o in zip(shape, out, strict=True)]
    return taps, [np.maximum(t.valid.sum(axis=1), 1) for t in taps]


@register("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def adaptive_avg_pool(self: Any, output_size: Sequence[int]) -> Any:
    x = widen(self)
    taps, counts = _adaptive_taps(x.shape[-len(output_size) :], output_size)
    return _divide(separable_sum(x, taps), counts)


def _adaptive_avg_pool_backward(dims: int, grad: Any, self: Any) -> Any:
    taps, counts = _adaptive_taps(self.shape[-dims:], grad.shape[-dims:])
    grad = _divide(widen(grad), counts)
    return separable_sum(grad, [transpose(t, n) for t, n in zip(taps, self.shape[-dims:], strict=True)])


@register("aten::_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Any, self: Any) -> Any:
    return _adaptive_avg_pool_backward(2, grad_output, self)


@register("aten::_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad_output: Any, self: Any) -> Any:
    return _adaptive_avg_pool_backward(3, grad_output, self)
