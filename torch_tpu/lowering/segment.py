"""Reductions of consecutive segments of a dimension."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torch_tpu.lowering.checks import require
from torch_tpu.lowering.registry import register
from torch_tpu.lowering.search import insertion_points

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_COMBINE = {
    "sum": jax.ops.segment_sum, "mean": jax.ops.segment_sum, "prod": jax.ops.segment_prod,
    "max": jax.ops.segment_max, "min": jax.ops.segment_min,
}  # fmt: skip


def _check_integers(x: Any) -> None:
    if x.dtype not in (jnp.int32, jnp.int64):
        raise NotImplementedError(f"segment_reduce: lengths and offsets are int32 or int64, got {x.dtype}")


class _Segments:
    """Where the segments lie: the data as [batch, along the axis, the rest], and for each row its segment.

    Rows of no segment have the number ``count``, one behind the last.
    """

    def __init__(self, data: Any, lengths: Any, offsets: Any, axis: int, unsafe: bool = True):
        given = lengths if offsets is None else offsets
        if given is None:
            raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
        _check_integers(given)
        self.axis = axis % data.ndim
        self.batch = math.prod(data.shape[: self.axis])
        self.rows, self.inner = data.shape[self.axis], math.prod(data.shape[self.axis + 1 :])
        flat = given.reshape(self.batch, given.shape[-1]).astype(jnp.int64)
        if offsets is not None:
            self.ends, first, self.lengths = flat[:, 1:], flat[:, :1], flat[:, 1:] - flat[:, :-1]
        else:
            self.ends, first, self.lengths = jnp.cumsum(flat, 1), jnp.zeros((self.batch, 1), jnp.int64), flat
            if not unsafe:
                self._check_lengths()
        self.count = self.lengths.shape[1]
        self.shape = (*data.shape[: self.axis], self.count, *data.shape[self.axis + 1 :])
        at = jnp.broadcast_to(jnp.arange(self.rows, dtype=jnp.int64), (self.batch, self.rows))
        segment = insertion_points(self.ends, at, True).astype(jnp.int64)
        self.segment = jnp.where(at < first, self.count, segment)

    def _check_lengths(self) -> None:
        require(self.lengths < 0, self.lengths, "lengths contains negative value! ({value})", RuntimeError)
        totals = jnp.sum(self.lengths, 1)
        message = "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when "
        require(totals != self.rows, totals, f"{message}!unsafe, got {{value}} for {self.rows}.", RuntimeError)

    def rows_of(self, data: Any) -> Any:
        return data.reshape(self.batch, self.rows, self.inner)

    def reduce(self, rows: Any, how: str) -> Any:
        """[batch, segments, the rest]; an empty segment has the neutral element."""
        width = self.count + 1
        numbers = self.segment + width * jnp.arange(self.batch, dtype=jnp.int64)[:, None]
        made = _COMBINE[how](rows.reshape(self.batch * self.rows, self.inner), numbers.reshape(-1), self.batch * width)
        return made.reshape(self.batch, width, self.inner)[:, : self.count]

    def spread(self, by_segment: Any, outside: Any = 0) -> Any:
        """A value a segment ([batch, segments, the rest]) -> the value of each row's segment."""
        padded = jnp.pad(by_segment, ((0, 0), (0, 1), (0, 0)), constant_values=outside)
        return jnp.take_along_axis(padded, self.segment[:, :, None], 1)


def _opmath(x: Any) -> Any:
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


@register("aten::segment_reduce", own_shapes=True)
def segment_reduce(
    data: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
    unsafe: bool = False, initial: Any = None,
) -> Any:  # fmt: skip
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    how = _name(reduce)
    if not jnp.issubdtype(data.dtype, jnp.floating):
        raise NotImplementedError(f"segment_reduce is not implemented for {data.dtype}; supported: floating types")
    segments = _Segments(data, lengths, offsets, axis, unsafe)
    if data.size == 0 and math.prod(segments.shape) == 0:
        return jnp.zeros(segments.shape, data.dtype)
    made = segments.reduce(segments.rows_of(_opmath(data)), how)
    if initial is not None:
        start = jnp.asarray(initial).astype(made.dtype)
        join = {"sum": jnp.add, "mean": jnp.add, "prod": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}[how]
        made = join(made, start)
    if how == "mean":
        length = segments.lengths[:, :, None]
        empty = jnp.full_like(made, jnp.nan) if initial is None else made
        made = jnp.where(length > 0, made / jnp.maximum(length, 1).astype(made.dtype), empty)
    return made.reshape(segments.shape).astype(data.dtype)


def _name(reduce: str) -> str:
    how = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    if how not in _START:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    return how


@register("aten::_segment_reduce_backward")
def segment_reduce_backward(
    grad: Any, output: Any, data: Any, reduce: str, *, lengths: Any = None, offsets: Any = None, axis: int = 0,
    initial: Any = None,
) -> Any:  # fmt: skip
    how = _name(reduce)
    if data.size == 0:
        return jnp.zeros(data.shape, data.dtype)
    segments = _Segments(data, lengths, offsets, axis)
    rows = segments.rows_of(_opmath(data))
    by_segment = (segments.batch, segments.count, segments.inner)
    grads, outputs = (_opmath(x).reshape(by_segment) for x in (grad, output))
    if how == "mean":
        grads = grads / jnp.maximum(segments.lengths, 1)[:, :, None].astype(grads.dtype)
    if how in ("sum", "mean"):
        made = segments.spread(grads)
    elif how == "prod":
        made = segments.spread(grads) * _others(segments, rows, initial)
    else:
        # Equal extrema share the gradient. (CPU's kernel shares positive gradients only.)
        chosen = (rows == segments.spread(outputs, jnp.nan)) | jnp.isnan(rows)
        share = grads / jnp.maximum(segments.reduce(chosen.astype(grads.dtype), "sum"), 1)
        made = jnp.where(chosen, segments.spread(share), 0)
    return made.reshape(data.shape).astype(data.dtype)


def _others(segments: _Segments, rows: Any, initial: Any) -> Any:
    """For each element the product of the others of its segment, also where it is zero or NaN itself."""
    odd = (rows == 0) | jnp.isnan(rows)
    plain = segments.spread(segments.reduce(jnp.where(odd, 1, rows), "prod"))
    if initial is not None:
        plain = plain * jnp.asarray(initial).astype(rows.dtype)

    def how_many(which: Any) -> Any:
        return segments.spread(segments.reduce(which.astype(jnp.int32), "sum")) - which

    others = jnp.where(how_many(rows == 0) > 0, plain * 0, plain)
    others = jnp.where(how_many(jnp.isnan(rows)) > 0, jnp.nan, others)
    return jnp.where(odd, others, others / jnp.where(odd, 1, rows))
