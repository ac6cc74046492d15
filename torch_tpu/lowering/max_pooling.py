"""Max pooling: sliding, adaptive and fractional, its gradient, and unpooling.

The maximum is taken along one dimension after the other, with the flat index of the winner in its plane carried
along: the first of equal maxima in row-major order wins, and the last NaN, as in PyTorch's CPU kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering import checks
from torch_tpu.lowering.matmul import accumulator
from torch_tpu.lowering.registry import register
from torch_tpu.lowering.windows import Taps, adaptive, along, output_size, pick, sliding, tuple_of

# Above this many taps a dimension the taps are visited by a loop in the program.
_UNROLLED = 64
# Up to this many offsets a window, the gradient is a sum of shifted copies; above, a scatter.
_SHIFTED = 16


def _better(value: Any, best: Any) -> Any:
    better = value > best
    return better | jnp.isnan(value) if jnp.issubdtype(value.dtype, jnp.floating) else better


def _best_of(
    count: int, at: Callable[[Any, Any], tuple[Any, Any]], values: Any, index: Any
) -> tuple[Any, Any]:  # fmt: skip
    """The winner among ``at(array, j)`` for j < count: ``at`` gives the candidates and which of them are valid."""
    best, valid = at(values, 0)
    place, _ = at(index, 0)
    found = jnp.broadcast_to(valid, best.shape)

    def step(j: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        best, place, found = state
        value, valid = at(values, j)
        take = valid & (~found | _better(value, best))
        return jnp.where(take, value, best), jnp.where(take, at(index, j)[0], place), found | valid

    if count > _UNROLLED:
        best, place, _ = lax.fori_loop(1, count, step, (best, place, found))
        return best, place
    state = (best, place, found)
    for j in range(1, count):
        state = step(j, state)
    return state[0], state[1]


def _max_along(values: Any, index: Any, taps: Taps, axis: int) -> tuple[Any, Any]:
    count = taps.index.shape[1]

    def known(x: Any, j: int) -> tuple[Any, Any]:
        valid = taps.valid[:, j]
        return pick(x, taps.index[:, j], valid, axis), along(valid, x.ndim, axis)

    if count <= _UNROLLED:
        return _best_of(count, known, values, index)
    table = jnp.asarray(np.where(taps.valid, taps.index, 0).T.astype(np.int32))
    mask = jnp.asarray(taps.valid.T)

    def traced(x: Any, j: Any) -> tuple[Any, Any]:
        shape = [1] * x.ndim
        shape[axis] = taps.index.shape[0]
        return jnp.take(x, table[j], axis=axis, mode="clip"), mask[j].reshape(shape)

    return _best_of(count, traced, values, index)


def _plane_index(x: Any, dims: int) -> Any:
    """For each element its flat index in its plane, int32, of the shape of ``x``."""
    plane = jnp.arange(math.prod(x.shape[-dims:]), dtype=jnp.int32).reshape(x.shape[-dims:])
    return jnp.broadcast_to(plane, x.shape)


def _max_pool(x: Any, taps: Sequence[Taps]) -> tuple[Any, Any]:
    """Maxima and int64 indices over the last ``len(taps)`` dimensions."""
    if x.dtype == jnp.bool_:
        raise NotImplementedError("max_pool: bool input; supported: integer and floating types")
    dims = len(taps)
    shape = (*x.shape[:-dims], *(t.index.shape[0] for t in taps))
    if 0 in shape or x.size == 0:
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    values, index = x, _plane_index(x, dims)
    for d in reversed(range(dims)):
        values, index = _max_along(values, index, taps[d], x.ndim - dims + d)
    return values, index.astype(jnp.int64)


def _geometry(
    dims: int, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[tuple[int, int, int, int]]:
    kernel = tuple_of(kernel_size, dims)
    stride = tuple_of(stride, dims) if len(stride) else kernel
    return list(zip(kernel, stride, tuple_of(padding, dims), tuple_of(dilation, dims), strict=True))


def _sliding_max_pool(dims: int, x: Any, geometry: list[tuple[int, int, int, int]], ceil_mode: bool) -> Any:
    taps = [
        sliding(n, output_size(n, k, s, p, d, ceil_mode), k, s, p, d)
        for n, (k, s, p, d) in zip(x.shape[-dims:], geometry, strict=True)
    ]
    return _max_pool(x, taps)


@register("aten::max_pool2d_with_indices")
def max_pool2d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    return _sliding_max_pool(2, self, _geometry(2, kernel_size, stride, padding, dilation), ceil_mode)


@register("aten::max_pool3d_with_indices")
def max_pool3d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    return _sliding_max_pool(3, self, _geometry(3, kernel_size, stride, padding, dilation), ceil_mode)


def _scatter_add(grad: Any, indices: Any, shape: Sequence[int], dims: int) -> Any:
    """Each gradient added at its index in its plane, in the accumulator's type."""
    plane = math.prod(shape[-dims:])
    planes = math.prod(shape[:-dims])
    out = jnp.zeros((planes * plane,), accumulator(grad.dtype))
    if grad.size == 0:
        return out.reshape(shape)
    at = jnp.arange(planes, dtype=jnp.int32)[:, None] * plane + indices.reshape(planes, -1).astype(jnp.int32)
    return out.at[at.reshape(-1)].add(grad.reshape(-1).astype(out.dtype), mode="promise_in_bounds").reshape(shape)


def _shifted_sum(
    grad: Any, indices: Any, shape: Sequence[int], geometry: list[tuple[int, int, int, int]]
) -> Any:  # fmt: skip
    """The same for sliding windows: for each offset in the window, the gradients whose winner is there, moved there."""
    dims = len(geometry)
    grad = grad.astype(accumulator(grad.dtype))
    indices = indices.astype(jnp.int32)
    total = jnp.zeros(shape, grad.dtype)
    for offset in np.ndindex(*(k for k, *_ in geometry)):
        place = np.zeros((1,) * dims, np.int64)
        padding = [(0, 0, 0)] * (grad.ndim - dims)
        for d, (j, (_, s, p, dilation)) in enumerate(zip(offset, geometry, strict=True)):
            n, out = shape[-dims + d], grad.shape[-dims + d]
            low = j * dilation - p
            place = place * n + along(np.arange(out) * s + low, dims, d)
            padding.append((low, n - low - (out - 1) * s - 1, s - 1))
        # A position in the padding may have the flat index of another: it is cropped by lax.pad.
        mine = jnp.where(indices == place.astype(np.int32), grad, 0)
        total = total + lax.pad(mine, jnp.zeros((), grad.dtype), padding)
    return total


def _max_pool_backward(dims: int, grad: Any, self: Any, geometry: Any, indices: Any) -> Any:
    if grad.size and math.prod(k for k, *_ in geometry) <= _SHIFTED and all(d == 1 for *_, d in geometry):
        return _shifted_sum(grad, indices, self.shape, geometry)
    return _scatter_add(grad, indices, self.shape, dims)


@register("aten::max_pool2d_with_indices_backward")
def max_pool2d_backward(
    grad_output: Any,
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Any,
) -> Any:
    return _max_pool_backward(2, grad_output, self, _geometry(2, kernel_size, stride, padding, dilation), indices)


@register("aten::max_pool3d_with_indices_backward")
def max_pool3d_backward(
    grad_output: Any,
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Any,
) -> Any:
    return _max_pool_backward(3, grad_output, self, _geometry(3, kernel_size, stride, padding, dilation), indices)


@register("aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(self: Any, output_size: Sequence[int]) -> Any:
    return _max_pool(self, [adaptive(n, o) for n, o in zip(self.shape[-len(output_size) :], output_size, strict=True)])


@register("aten::adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad_output: Any, self: Any, indices: Any) -> Any:
    return _scatter_add(grad_output, indices, self.shape, 2)


@register("aten::adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad_output: Any, self: Any, indices: Any) -> Any:
    return _scatter_add(grad_output, indices, self.shape, 3)


def _fractional_starts(sample: Any, size: int, out: int, window: int) -> Any:
    """Where each window starts: int32, (..., out), for random samples in [0, 1) of shape (...)."""
    steps = jnp.arange(out - 1, dtype=sample.dtype)
    alpha = jnp.asarray((size - window) / max(out - 1, 1), sample.dtype)
    sample = sample[..., None]
    starts = ((steps + sample) * alpha).astype(jnp.int32) - (sample * alpha).astype(jnp.int32)
    last = jnp.full((*sample.shape[:-1], 1), size - window, jnp.int32)
    return jnp.concatenate([starts, last], axis=-1)


def _fractional_max_pool(dims: int, self: Any, kernel_size: Any, output_size: Any, samples: Any) -> Any:
    kernel, out = tuple_of(kernel_size, dims), tuple_of(output_size, dims)
    x = self if self.ndim == dims + 2 else self[None]
    values, index = x, _plane_index(x, dims)
    # In two dimensions PyTorch's first sample is for the width, in three the first is for the depth.
    order = (1, 0) if dims == 2 else (0, 1, 2)
    for d in reversed(range(dims)):
        axis = 2 + d
        starts = _fractional_starts(samples[..., order[d]], x.shape[axis], out[d], kernel[d])
        starts = starts.reshape(*starts.shape[:2], *(out[d] if e == d else 1 for e in range(dims)))

        def at(array: Any, j: Any, starts: Any = starts, axis: int = axis) -> tuple[Any, Any]:
            return jnp.take_along_axis(array, starts + j, axis=axis, mode="clip"), np.ones((1,) * x.ndim, bool)

        values, index = _best_of(kernel[d], at, values, index)
    shape = (*self.shape[:-dims], *out)
    return values.reshape(shape), index.astype(jnp.int64).reshape(shape)


@register("aten::fractional_max_pool2d")
def fractional_max_pool2d(
    self: Any, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Any
) -> Any:  # fmt: skip
    return _fractional_max_pool(2, self, kernel_size, output_size, random_samples)


@register("aten::fractional_max_pool3d")
def fractional_max_pool3d(
    self: Any, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Any
) -> Any:  # fmt: skip
    return _fractional_max_pool(3, self, kernel_size, output_size, random_samples)


@register("aten::fractional_max_pool2d_backward")
def fractional_max_pool2d_backward(
    grad_output: Any, self: Any, kernel_size: Sequence[int], output_size: Sequence[int], indices: Any
) -> Any:
    return _scatter_add(grad_output, indices, self.shape, 2)


@register("aten::fractional_max_pool3d_backward")
def fractional_max_pool3d_backward(
    grad_output: Any, self: Any, kernel_size: Sequence[int], output_size: Sequence[int], indices: Any
) -> Any:
    return _scatter_add(grad_output, indices, self.shape, 3)


def _max_unpool(dims: int, self: Any, indices: Any, output_size: Sequence[int]) -> Any:
    shape = (*self.shape[:-dims], *output_size)
    plane, planes = math.prod(output_size), math.prod(self.shape[:-dims])
    out = jnp.zeros((planes * plane,), self.dtype)
    if self.size == 0:
        return out.reshape(shape)
    message = f"max_unpool{dims}d: found an invalid max index: {{value}} (output volumes are of size {plane})"
    checks.require((indices < 0) | (indices >= plane), indices, message, RuntimeError)
    at = jnp.arange(planes, dtype=jnp.int32)[:, None] * plane + indices.reshape(planes, -1).astype(jnp.int32)
    return out.at[at.reshape(-1)].set(self.reshape(-1), mode="drop").reshape(shape)


@register("aten::max_unpool2d")
def max_unpool2d(self: Any, indices: Any, output_size: Sequence[int]) -> Any:
    return _max_unpool(2, self, indices, output_size)


@register("aten::max_unpool3d")
def max_unpool3d(
    self: Any, indices: Any, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Any:  # fmt: skip
    return _max_unpool(3, self, indices, output_size)
