"""Searching: searchsorted, bucketize, isin, repeat_interleave, nonzero_static."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering.checks import require
from torch_tpu.lowering.gather_scatter import IN_BOUNDS, scatter_rows
from torch_tpu.lowering.registry import Meta, Promotion, register

# Up to this many boundaries, comparing with all of them is faster than a binary search (whose steps are gathers).
COMPARE_ALL = 64


def insertion_points(sequence: Any, values: Any, right: bool, *, nan_last: bool = False) -> Any:
    """How many elements of the sorted last dimension of ``sequence`` go before each value (int32 or int64).

    ``sequence`` is 1-d, or has the leading dimensions of ``values``. It is ATen's binary search step by step, which
    finds the same also in what is not sorted: a value that is NaN goes after everything, and so does any value that
    the search compares with a NaN, unless ``nan_last`` says that the sequence is sorted with NaN behind everything.
    """
    n = sequence.shape[-1]
    kind = jnp.int32 if n < 2**31 else jnp.int64
    if nan_last:
        before = (lambda s, v: s <= v) if right else (lambda s, v: s < v)
    else:
        before = (lambda s, v: ~(s > v)) if right else (lambda s, v: ~(s >= v))
    if n == 0 or values.size == 0:
        return jnp.zeros(values.shape, kind)
    if n <= COMPARE_ALL:
        return _without_gathers(sequence, values, before, kind)

    def halve(_: int, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = (low + high) // 2
        at = jnp.minimum(middle, n - 1)
        if sequence.ndim == 1:
            found = sequence.at[at].get(mode=IN_BOUNDS, wrap_negative_indices=False)
        else:
            found = jnp.take_along_axis(sequence, at, -1, mode=IN_BOUNDS)
        above = before(found, values) & (low < high)
        return jnp.where(above, middle + 1, low), jnp.where(above | (low >= high), high, middle)

    start = jnp.zeros(values.shape, kind), jnp.full(values.shape, n, kind)
    return lax.fori_loop(0, math.ceil(math.log2(n)) + 1, halve, start)[0]


def _without_gathers(sequence: Any, values: Any, before: Callable[[Any, Any], Any], kind: Any) -> Any:
    """The binary search where each step compares with every element that it may have come to.

    Over all steps these are the elements of the sequence, each once.
    """
    n = sequence.shape[-1]
    low, high = jnp.zeros(values.shape, kind), jnp.full(values.shape, n, kind)
    spans = [(0, n)]
    while spans:
        middles = np.asarray([(a + b) // 2 for a, b in spans])
        row = sequence[..., middles]
        above = before(row[..., None, :] if sequence.ndim > 1 else row, values[..., None])
        middle = (low + high) // 2
        open_ = low < high
        above = open_ & jnp.any(above & (middle[..., None] == middles), -1)
        low, high = jnp.where(above, middle + 1, low), jnp.where(open_ & ~above, middle, high)
        halves = ((a, m, b) for (a, b), m in zip(spans, middles.tolist(), strict=True))
        spans = [s for a, m, b in halves for s in ((a, m), (m + 1, b)) if s[0] < s[1]]
    return low


@register("aten::bucketize.Tensor", "aten::bucketize.Scalar", promote=Promotion.NO_OPMATH)
def bucketize(self: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    if boundaries.ndim != 1:
        raise RuntimeError(f"bucketize: boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return insertion_points(boundaries, self, right)


@register("aten::searchsorted.Tensor", "aten::searchsorted.Scalar", promote=Promotion.NO_OPMATH, own_types=["sorter"])
def searchsorted(
    sorted_sequence: Any, self: Any, *, out_int32: bool = False, right: bool = False, side: Any = None,
    sorter: Any = None,
) -> Any:  # fmt: skip
    if sorter is not None:
        outside = (sorter < 0) | (sorter >= sorter.shape[-1])
        require(outside, sorter, "torch.searchsorted(): sorter index out of range, got {value}", RuntimeError)
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1, mode=IN_BOUNDS)
    return insertion_points(sorted_sequence, self, right or side == "right")


@register(
    "aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor", promote=Promotion.NO_OPMATH
)
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    flat = test_elements.reshape(-1)
    if flat.size == 0:
        return jnp.full(elements.shape, invert)
    if flat.size <= COMPARE_ALL:
        found = jnp.any(elements[..., None] == flat, -1)
    else:
        flat = lax.sort(flat)
        place = jnp.minimum(insertion_points(flat, elements, False, nan_last=True), flat.size - 1)
        found = flat.at[place].get(mode=IN_BOUNDS, wrap_negative_indices=False) == elements
    return ~found if invert else found


@register("aten::repeat_interleave.Tensor", meta=True)
def repeat_interleave(repeats: Any, *, output_size: int | None = None, meta: tuple[Meta, ...]) -> Any:
    """Position i repeated ``repeats[i]`` times; the number of results is the caller's (output_size)."""
    (size,) = meta[0].shape
    if size == 0:
        return jnp.zeros(0, jnp.int32)
    ends = jnp.cumsum(repeats, dtype=jnp.int64)
    require(repeats < 0, repeats, "repeat_interleave: repeats can not be negative, got {value}", RuntimeError)
    require(
        ends[-1:] != size,
        ends[-1:],
        f"repeat_interleave: output_size is {size}, but the repeats add up to {{value}}",
        RuntimeError,
    )
    return repeated_positions(ends, size)


def repeated_positions(ends: Any, size: int) -> Any:
    """The first ``size`` of: 0 up to ``ends[0]``, then 1 up to ``ends[1]``, and so on, the last one without end."""
    # Each row starts where the rows before it end: mark the starts and count.
    starts = jnp.minimum(ends[:-1], size)
    marks = scatter_rows(jnp.zeros(size + 1, jnp.int32), 0, starts, jnp.ones(starts.shape, jnp.int32), "sum")
    return jnp.cumsum(marks[:size], dtype=jnp.int32)


@register("aten::nonzero_static")
def nonzero_static(self: Any, *, size: int, fill_value: int = -1) -> Any:
    """Coordinates of the first ``size`` non-zero elements, padded with ``fill_value``."""
    if self.ndim == 0:
        return jnp.zeros((size, 0), jnp.int64)
    if size == 0 or self.size == 0:
        return jnp.full((size, self.ndim), fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(self, size=size, fill_value=fill_value), 1)
