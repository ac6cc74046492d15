"""Padding: constant, reflection, replication, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering.gather_scatter import cast_like, widen_half
from torch_tpu.lowering.registry import register


@register("aten::constant_pad_nd")
def constant_pad_nd(self: Any, pad: list[int], value: Any = 0) -> Any:
    """``pad`` is (low, high) pairs from the last dimension backwards; negative ones crop."""
    pairs = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)]
    return lax.pad(self, cast_like(value, self), [(0, 0, 0)] * (self.ndim - len(pairs)) + pairs[::-1])


def _crop(x: Any, axis: int, low: int, high: int) -> Any:
    """``x`` without what negative pads cut off."""
    return lax.slice_in_dim(x, max(-low, 0), x.shape[axis] - max(-high, 0), axis=axis)


def _reflect(x: Any, axis: int, low: int, high: int) -> Any:
    n = x.shape[axis]
    parts = [lax.rev(lax.slice_in_dim(x, 1, low + 1, axis=axis), (axis,))] if low > 0 else []
    parts.append(x)
    if high > 0:
        parts.append(lax.rev(lax.slice_in_dim(x, n - 1 - high, n - 1, axis=axis), (axis,)))
    return _crop(jnp.concatenate(parts, axis), axis, min(low, 0), min(high, 0))


def _replicate(x: Any, axis: int, low: int, high: int) -> Any:
    n = x.shape[axis]
    if max(-low, 0) + max(-high, 0) >= n:  # nothing would be left to replicate: ATen reads what it cuts off
        source = np.clip(np.arange(n + low + high), low, n + low - 1) - low
        return jnp.take(x, source, axis=axis, mode="clip")
    x = _crop(x, axis, low, high)
    n, parts = x.shape[axis], [x]
    for size, at, place in ((low, 0, 0), (high, n - 1, 2)):
        if size > 0:
            edge = lax.slice_in_dim(x, at, at + 1, axis=axis)
            edge = jnp.broadcast_to(edge, [size if d == axis else s for d, s in enumerate(x.shape)])
            parts.insert(place and len(parts), edge)
    return jnp.concatenate(parts, axis)


def _pad(x: Any, padding: list[int], one: Callable[..., Any]) -> Any:
    for i in range(0, len(padding), 2):
        x = one(x, x.ndim - 1 - i // 2, padding[i], padding[i + 1])
    return x


def _pad_backward(grad_output: Any, self: Any, padding: list[int], one: Callable[..., Any]) -> Any:
    """Padding is linear: its gradient is its transpose."""
    grad = widen_half(grad_output)
    if grad.size == 0 or self.size == 0:
        return jnp.zeros(self.shape, self.dtype)
    (out,) = jax.linear_transpose(lambda x: _pad(x, padding, one), jax.ShapeDtypeStruct(self.shape, grad.dtype))(grad)
    return out


@register("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d", format_of=["self"])
def reflection_pad(self: Any, padding: list[int]) -> Any:
    return _pad(self, padding, _reflect)


@register("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")
def replication_pad(self: Any, padding: list[int]) -> Any:
    return _pad(self, padding, _replicate)


@register("aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::reflection_pad3d_backward")
def reflection_pad_backward(grad_output: Any, self: Any, padding: list[int]) -> Any:
    return _pad_backward(grad_output, self, padding, _reflect)


@register("aten::replication_pad1d_backward", "aten::replication_pad2d_backward", "aten::replication_pad3d_backward")
def replication_pad_backward(grad_output: Any, self: Any, padding: list[int]) -> Any:
    return _pad_backward(grad_output, self, padding, _replicate)
