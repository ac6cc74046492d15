"""Sliding windows along one dimension, as small constant tables: what pooling and resizing have in common.

Both are separable: along each dimension, element ``o`` of the result comes from a few elements of the input,
``index[o, 0..k-1]``, known when the program is built. A step takes one column of the table: that is a strided
slice, a repetition, or else a gather with a constant index. Nothing is multiplied by zero to leave it out, so that
infinity and NaN stay where PyTorch has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

# More taps than this become one gather and one reduction, not as many additions.
_UNROLLED = 32


class Taps(NamedTuple):
    """Row ``o`` says where element ``o`` of the result comes from; all arrays are (out, k)."""

    index: np.ndarray  # int; any value where not valid
    valid: np.ndarray  # bool
    weight: np.ndarray | None = None  # float64; None is one everywhere


def output_size(size: int, window: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The length of a sliding window's result (PyTorch's pooling_output_shape)."""
    span = size + 2 * padding - dilation * (window - 1) - 1
    out = (-(-span // stride) if ceil_mode else span // stride) + 1
    # With ceil_mode, a window that would start in the padding on the right is left out.
    return out - 1 if ceil_mode and (out - 1) * stride >= size + padding else out


def sliding(size: int, out: int, window: int, stride: int, padding: int, dilation: int = 1) -> Taps:
    index = np.arange(out)[:, None] * stride - padding + np.arange(window)[None] * dilation
    return Taps(index, (index >= 0) & (index < size))


def adaptive(size: int, out: int) -> Taps:
    """From floor(o * size / out) to ceil((o + 1) * size / out)."""
    o = np.arange(out)
    start, end = o * size // max(out, 1), -(-(o + 1) * size // max(out, 1))
    index = start[:, None] + np.arange(int((end - start).max(initial=0)))[None]
    return Taps(index, index < end[:, None])


def transpose(taps: Taps, size: int) -> Taps:
    """The taps of the adjoint map: for each of ``size`` inputs, the results that it is part of."""
    weight = np.ones(taps.index.shape) if taps.weight is None else taps.weight
    out, column = np.nonzero(taps.valid)
    source, weight = taps.index[out, column], weight[out, column]
    order = np.argsort(source, kind="stable")
    source, out, weight = source[order], out[order], weight[order]
    counts = np.bincount(source, minlength=size)
    place = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    k = int(counts.max(initial=0))
    index, valid, weights = np.zeros((size, k), np.int64), np.zeros((size, k), bool), np.zeros((size, k))
    index[source, place], valid[source, place], weights[source, place] = out, True, weight
    return Taps(index, valid, None if taps.weight is None else weights)


def along(vector: np.ndarray, ndim: int, axis: int) -> np.ndarray:
    """A vector shaped to broadcast along ``axis``."""
    shape = [1] * ndim
    shape[axis] = len(vector)
    return vector.reshape(shape)


def pick(x: Any, index: np.ndarray, valid: np.ndarray, axis: int) -> Any:
    """``x[index]`` along ``axis``; anything where not valid."""
    n = len(index)
    if n == 0:
        return lax.slice_in_dim(x, 0, 0, axis=axis)
    steps = np.diff(index)
    if n == 1 or (steps[0] >= 1 and np.all(steps == steps[0])):
        step = int(steps[0]) if n > 1 else 1
        low, high = max(-int(index[0]), 0), max(int(index[-1]) + 1 - x.shape[axis], 0)
        if low or high:
            x = lax.pad(x, jnp.zeros((), x.dtype), [(low, high, 0) if d == axis else (0, 0, 0) for d in range(x.ndim)])
        start = int(index[0]) + low
        return lax.slice_in_dim(x, start, start + (n - 1) * step + 1, step, axis)
    index = np.clip(np.where(valid, index, 0), 0, x.shape[axis] - 1)
    repeats = n // x.shape[axis]
    if repeats > 1 and np.array_equal(index, np.arange(n) // repeats):
        return jnp.repeat(x, repeats, axis=axis)
    return jnp.take(x, index.astype(np.int32), axis=axis, mode="clip")


def weighted_sum(x: Any, taps: Taps, axis: int) -> Any:
    """The sum over each element's taps, in the dtype of ``x``."""
    out, k = taps.index.shape
    shape = (*x.shape[:axis], out, *x.shape[axis + 1 :])
    if k == 0 or x.size == 0 or out == 0:
        return jnp.zeros(shape, x.dtype)
    if k > _UNROLLED:
        return _gathered_sum(x, taps, axis)
    total = None
    for j in range(k):
        index, valid = taps.index[:, j], taps.valid[:, j]
        term = pick(x, index, valid, axis)
        if taps.weight is not None:
            term = term * along(taps.weight[:, j], x.ndim, axis).astype(x.dtype)
        if not valid.all():
            term = jnp.where(along(valid, x.ndim, axis), term, 0)
        total = term if total is None else total + term
    return total


def _gathered_sum(x: Any, taps: Taps, axis: int) -> Any:
    out, k = taps.index.shape
    flat = np.where(taps.valid, taps.index, 0).reshape(-1)
    if not (out == 1 and np.array_equal(flat, np.arange(x.shape[axis]))):
        x = jnp.take(x, flat.astype(np.int32), axis=axis, mode="clip")
    x = x.reshape(*x.shape[:axis], out, k, *x.shape[axis + 1 :])
    shape = [1] * x.ndim
    shape[axis : axis + 2] = out, k
    if taps.weight is not None:
        x = x * taps.weight.reshape(shape).astype(x.dtype)
    if not taps.valid.all():
        x = jnp.where(taps.valid.reshape(shape), x, 0)
    return jnp.sum(x, axis=axis + 1, dtype=x.dtype)


def separable_sum(x: Any, taps: Sequence[Taps]) -> Any:
    """``weighted_sum`` over the last ``len(taps)`` dimensions, those that shrink most first."""
    axes = [x.ndim - len(taps) + d for d in range(len(taps))]
    growth = [t.index.shape[0] / max(x.shape[a], 1) for t, a in zip(taps, axes, strict=True)]
    for d in sorted(range(len(taps)), key=lambda d: (growth[d], -d)):
        x = weighted_sum(x, taps[d], axes[d])
    return x


def tuple_of(value: Sequence[int], dims: int) -> tuple[int, ...]:
    """A list parameter of one number or one a dimension."""
    return tuple(value) * dims if len(value) == 1 else tuple(value)
