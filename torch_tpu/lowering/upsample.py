"""Resizing: nearest, linear, cubic and antialiased interpolation in one to three dimensions, and the gradients.

Each is separable with a table of taps a dimension, made when the program is built (so the scale factors are part
of the program, like the sizes); a gradient is the same with the tables transposed. Source positions follow
aten/src/ATen/native/UpSample.h. Nearest neighbours are found in float32, as there: a wider type would pick another
neighbour now and then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_tpu.lowering.norm import widen
from torch_tpu.lowering.registry import register
from torch_tpu.lowering.windows import Taps, separable_sum, transpose, weighted_sum

_SCALES = ("scales", "scales_d", "scales_h", "scales_w")
_Table = Callable[[int, int, "float | None"], Taps]


def _step(size: int, out: int, scale: float | None, align_corners: bool = False) -> float:
    """How far apart in the input two neighbours in the result are."""
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else size / out


def _nearest(size: int, out: int, scale: float | None, *, exact: bool) -> Taps:
    o = np.arange(out, dtype=np.float32)
    if size == out:
        index = np.arange(out)
    elif out == 2 * size and not exact:
        index = np.arange(out) // 2
    else:
        step = np.float32(1 / scale if scale is not None and scale > 0 else np.float32(size) / np.float32(out))
        index = np.floor((o + np.float32(0.5)) * step if exact else o * step).astype(np.int64)
    index = np.minimum(index, size - 1)[:, None]
    return Taps(index, np.ones(index.shape, bool))


def _positions(size: int, out: int, scale: float | None, align_corners: bool) -> np.ndarray:
    step = _step(size, out, scale, align_corners)
    o = np.arange(out, dtype=np.float64)
    return o * step if align_corners else (o + 0.5) * step - 0.5


def _linear(size: int, out: int, scale: float | None, *, align_corners: bool) -> Taps:
    if size == out:
        index = np.arange(out)[:, None]
        return Taps(index, np.ones(index.shape, bool))
    source = np.maximum(_positions(size, out, scale, align_corners), 0)
    low = np.minimum(np.floor(source).astype(np.int64), size - 1)
    upper = np.clip(source - low, 0, 1)
    index = np.stack([low, np.minimum(low + 1, size - 1)], axis=1)
    return Taps(index, np.ones(index.shape, bool), np.stack([1 - upper, upper], axis=1))


def cubic_weights(t: Any, a: float = -0.75) -> list[Any]:
    """The weights of the four neighbours at -1, 0, 1, 2 of a point at ``t`` in [0, 1)."""

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic(size: int, out: int, scale: float | None, *, align_corners: bool) -> Taps:
    source = _positions(size, out, scale, align_corners)
    low = np.floor(source).astype(np.int64)
    index = np.clip(low[:, None] + np.arange(-1, 3), 0, size - 1)
    return Taps(index, np.ones(index.shape, bool), np.stack(cubic_weights(source - low), axis=1))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _keys(x: np.ndarray) -> np.ndarray:
    """The cubic filter with a = -0.5 that antialiasing uses."""
    x, a = np.abs(x), -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos3(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _antialiased(
    size: int,
    out: int,
    scale: float | None,
    *,
    align_corners: bool,
    kernel: Callable[[np.ndarray], np.ndarray],
    radius: int,
) -> Taps:
    """The filter stretched over what one element of the result covers."""
    step = _step(size, out, scale, align_corners)
    stretch = max(step, 1.0)
    center = step * (np.arange(out) + 0.5)
    first = np.maximum((center - radius * stretch + 0.5).astype(np.int64), 0)
    count = np.minimum((center + radius * stretch + 0.5).astype(np.int64), size) - first
    index = first[:, None] + np.arange(int(count.max(initial=0)))[None]
    valid = index < (first + count)[:, None]
    weight = np.where(valid, kernel((index - center[:, None] + 0.5) / stretch), 0)
    total = weight.sum(axis=1, keepdims=True)
    return Taps(index, valid, weight / np.where(total == 0, 1, total))


def _tables(table: _Table, sizes: Sequence[int], out: Sequence[int], scales: Sequence[float | None]) -> list[Taps]:
    return [table(n, o, s) for n, o, s in zip(sizes, out, scales, strict=True)]


def _resize(self: Any, output_size: Sequence[int], table: _Table, scales: Sequence[float | None]) -> Any:
    taps = _tables(table, self.shape[-len(output_size) :], output_size, scales)
    if all(t.weight is None for t in taps):
        return separable_sum(self, taps)
    if jnp.issubdtype(self.dtype, jnp.inexact):
        return separable_sum(widen(self), taps)
    if len(taps) == 2 and self.dtype == jnp.uint8:
        return _resize_bytes(self, taps)
    # PyTorch rounds and clips integers after each dimension, the last one first.
    x, info = self.astype(jnp.float32), jnp.iinfo(self.dtype)
    for d in reversed(range(len(taps))):
        x = weighted_sum(x, taps[d], x.ndim - len(taps) + d)
        x = jnp.clip(jnp.floor(x + 0.5), info.min, info.max)
    return x.astype(self.dtype)


def _resize_bytes(x: Any, taps: Sequence[Taps]) -> Any:
    """Images of bytes, in the fixed point of aten/src/ATen/native/cpu/UpSampleKernel.cpp, the last dimension first."""
    for d in reversed(range(len(taps))):
        weights = _merged(taps[d])
        if weights.weight is None:
            x = weighted_sum(x, weights, x.ndim - len(taps) + d)
            continue
        bits = _precision(float(weights.weight.max(initial=0)))
        fixed = np.trunc(weights.weight * 2**bits + np.copysign(0.5, weights.weight))
        total = weighted_sum(x.astype(jnp.int32), weights._replace(weight=fixed), x.ndim - len(taps) + d)
        x = jnp.clip((total + 2 ** (bits - 1)) >> bits, 0, 255).astype(jnp.uint8)
    return x


def _precision(greatest: float) -> int:
    """How many bits behind the point the greatest weight leaves room for in 16 bits."""
    return next((b for b in range(22) if int(0.5 + greatest * 2 ** (b + 1)) >= 2**15), 22)


def _merged(taps: Taps) -> Taps:
    """The same with the weights of one element added up: those beyond the border count for the one at the border."""
    if taps.weight is None:
        return taps
    weight = np.where(taps.valid, taps.weight, 0)
    k = weight.shape[1]
    for j in range(k - 1):
        same = taps.index[:, j] == taps.index[:, j + 1]
        weight[:, j + 1] += np.where(same, weight[:, j], 0)
        weight[:, j] = np.where(same, 0, weight[:, j])
    return Taps(taps.index, taps.valid, weight)


def _resize_backward(
    grad: Any, output_size: Sequence[int], input_size: Sequence[int], table: _Table, scales: Sequence[float | None]
) -> Any:
    sizes = input_size[-len(output_size) :]
    taps = _tables(table, sizes, output_size, scales)
    return separable_sum(widen(grad), [transpose(t, n) for t, n in zip(taps, sizes, strict=True)])


def _register(name: str, dims: Sequence[int], table: Callable[..., Taps], *, aligned: bool, **fixed: Any) -> None:
    """Declare ``name`` and its gradient in each number of dimensions; ``aligned``: it has align_corners."""

    def forward(self: Any, output_size: Sequence[int], *rest: Any) -> Any:
        how = functools.partial(table, **fixed, **({"align_corners": rest[0]} if aligned else {}))
        return _resize(self, output_size, how, rest[int(aligned) :])

    def backward(grad_output: Any, output_size: Sequence[int], input_size: Sequence[int], *rest: Any) -> Any:
        how = functools.partial(table, **fixed, **({"align_corners": rest[0]} if aligned else {}))
        return _resize_backward(grad_output, output_size, input_size, how, rest[int(aligned) :])

    names = ["aten::" + name.format(d) for d in dims]
    register(*names, static=_SCALES)(forward)
    register(*(n + "_backward" for n in names), static=_SCALES)(backward)


_register("upsample_nearest{}d", (1, 2, 3), _nearest, aligned=False, exact=False)
_register("_upsample_nearest_exact{}d", (1, 2, 3), _nearest, aligned=False, exact=True)
_register("upsample_linear{}d", (1,), _linear, aligned=True)
_register("upsample_bilinear{}d", (2,), _linear, aligned=True)
_register("upsample_trilinear{}d", (3,), _linear, aligned=True)
_register("upsample_bicubic{}d", (2,), _cubic, aligned=True)
_register("_upsample_bilinear{}d_aa", (2,), _antialiased, aligned=True, kernel=_triangle, radius=1)
_register("_upsample_bicubic{}d_aa", (2,), _antialiased, aligned=True, kernel=_keys, radius=2)
_register("_upsample_lanczos{}d_aa", (2,), _antialiased, aligned=True, kernel=_lanczos3, radius=3)
