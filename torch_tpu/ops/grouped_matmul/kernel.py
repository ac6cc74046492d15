"""Grouped matrix products as Pallas TPU kernels: rows by an expert's matrix, and the sum over each expert's rows.

Rows lie sorted by group. Both kernels walk over *visits*: a visit is one tile of rows for one group, so that a tile
with the rows of three groups is visited three times, and a group without rows never. How many there are is known when
the program runs; it is the size of a dynamic grid dimension, and which tile and group each one has comes as scalars,
ahead of the tiles. Consecutive visits of a group find its weights in VMEM: where one tile holds all of ``k``, each
weight of an expert with rows is read from HBM once, one of an expert without rows never.

JAX's own ``megablox.gmm`` has the same walk. These differ in what PyTorch asks for: float32 at float32's precision,
zeros in rows behind the last group, groups that reach past the rows, any number of rows, 64-bit mode around them.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from torch_tpu.ops.grouped_matmul.sizes import RowTiles, SumTiles

Passes = Literal["highest", "high", "medium"]


class _Visits(NamedTuple):
    """int32: where groups start and end; the group and the tile of rows of each visit; how many visits there are."""

    starts: Any
    ends: Any
    groups: Any
    tiles: Any
    count: Any


def _bounds(ends: Any, rows: int) -> tuple[Any, Any]:
    """Starts and ends within the rows, ascending, whatever was given."""
    ends = lax.cummax(jnp.clip(ends.astype(jnp.int32), 0, rows))
    return jnp.concatenate([jnp.zeros((1,), jnp.int32), ends[:-1]]), ends


def _walk(starts: Any, ends: Any, tile: int, most: int, *, visit_empty: bool) -> _Visits:
    """The visits of all groups in order; at most ``most``, which is what the arrays are long."""
    first = starts // tile
    number = jnp.where(ends > starts, (ends - 1) // tile - first + 1, 1 if visit_empty else 0)
    upto = jnp.cumsum(number, dtype=jnp.int32)
    visit = jnp.arange(most, dtype=jnp.int32)
    group = jnp.minimum(jnp.sum(upto[None, :] <= visit[:, None], axis=1, dtype=jnp.int32), starts.shape[0] - 1)
    tiles = first[group] + visit - (upto - number)[group]
    return _Visits(starts, ends, group, tiles, upto[-1])


def _in_32_bits(fn: Any) -> Any:
    """Mosaic has no 64-bit integers, and PyTorch programs are traced in JAX's 64-bit mode."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(False):
            return fn(*args, **kwargs)

    return wrapped


def _dot(a: Any, b: Any, dims: Any, passes: Passes) -> Any:
    """``dot_general`` with a float32 sum; float32 operands in six, three or one bfloat16 passes."""
    one = functools.partial(lax.dot_general, dimension_numbers=(dims, ((), ())), preferred_element_type=jnp.float32)
    if a.dtype != jnp.float32 or passes == "medium":
        return one(a, b, precision=lax.Precision.DEFAULT)
    if passes == "highest":
        return one(a, b, precision=lax.Precision.HIGHEST)
    (high_a, low_a), (high_b, low_b) = _split(a), _split(b)
    one = functools.partial(one, precision=lax.Precision.DEFAULT)
    return one(high_a, low_b) + one(low_a, high_b) + one(high_a, high_b)


def _split(x: Any) -> tuple[Any, Any]:
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)


def _keep(x: Any, mask: Any) -> Any:
    """``x`` where the mask says so, else 0. In float32, which every chip can select."""
    return jnp.where(mask, x.astype(jnp.float32), 0).astype(x.dtype)


def _up_to(x: Any, axis: int, limit: Any) -> Any:
    """What lies past ``limit`` along the axis as 0: the last tile reaches past the array, into anything."""
    return _keep(x, lax.broadcasted_iota(jnp.int32, x.shape, axis) < limit)


@_in_32_bits
def grouped_rows(
    x: Any, weights: Any, ends: Any, *, tiles: RowTiles, transposed: bool = False, out_dtype: Any = jnp.float32,
    passes: Passes = "highest", interpret: Any = False,
) -> Any:  # fmt: skip
    """(rows, k) by (groups, k, n) -> (rows, n): each row by the matrix of its group.

    Args:
      x: (rows, k) bfloat16 or float32.
      weights: (groups, k, n) of the same type; with ``transposed`` (groups, n, k), as ``nn.Linear`` keeps weights.
      ends: int[groups], ascending: the row where each group ends. Ends past the rows count as the number of rows.
      tiles: sizes of the tiles (``sizes.row_tiles``).
      passes: bfloat16 passes of a float32 product: six, three or one.
      interpret: as ``pallas_call`` has it.

    Returns:
      (rows, n) of ``out_dtype``, rounded once; rows past the last end are 0.
    """
    (rows, k), groups = x.shape, weights.shape[0]
    n = weights.shape[1 if transposed else 2]
    tm, tk, tn, part = tiles.rows, tiles.k, tiles.n, tiles.part
    steps = pl.cdiv(k, tk)
    starts, stops = _bounds(ends, rows)
    # What no group has is a group of its own, of zeros: every tile of the result is written.
    starts = jnp.concatenate([starts, stops[-1:]])
    stops = jnp.concatenate([stops, jnp.full((1,), rows, jnp.int32)])
    walk = _walk(starts, stops, tm, pl.cdiv(rows, tm) + groups, visit_empty=False)
    dims = ((1,), (1 if transposed else 0,))

    def product(a: Any, b: Any, step: Any) -> Any:
        if k % tk:
            a, b = _up_to(a, 1, k - step * tk), _up_to(b, dims[1][0], k - step * tk)
        return _dot(a, b, dims, passes)

    def kernel(starts: Any, stops: Any, group: Any, tile: Any, x_ref: Any, w_ref: Any, out_ref: Any, *sum_ref: Any):
        visit, step = pl.program_id(1), pl.program_id(2)
        g, base = group[visit], tile[visit] * tm

        def multiply(i: Any, _: Any) -> None:
            """The i-th part of the tile. Rows of other groups keep what is there: each has a group that writes it."""
            at = i * part
            here = pl.ds(pl.multiple_of(at, part), part)
            row = base + at + lax.broadcasted_iota(jnp.int32, (part, tn), 0)
            mine = (row >= starts[g]) & (row < stops[g])

            def store(total: Any) -> None:
                out_ref[here, :] = jnp.where(mine, total, out_ref[here, :].astype(jnp.float32)).astype(out_ref.dtype)

            @pl.when((g == groups) & (step == steps - 1))
            def _() -> None:
                store(jnp.zeros((part, tn), jnp.float32))

            @pl.when(g < groups)
            def _() -> None:
                total = product(x_ref[here, :], w_ref[...], step)
                if not sum_ref:
                    store(total)
                    return

                @pl.when(step == 0)
                def _() -> None:
                    sum_ref[0][here, :] = total

                @pl.when(step > 0)
                def _() -> None:
                    sum_ref[0][here, :] += total

                @pl.when(step == steps - 1)
                def _() -> None:
                    store(sum_ref[0][here, :])

        if part == tm:
            multiply(0, None)
        else:
            first, last = jnp.maximum(starts[g] - base, 0), jnp.minimum(stops[g] - base, tm) + part - 1
            lax.fori_loop(lax.div(first, jnp.int32(part)), lax.div(last, jnp.int32(part)), multiply, None)

    def weight_at(j: Any, v: Any, s: Any, starts: Any, stops: Any, group: Any, tile: Any) -> Any:
        g = jnp.minimum(group[v], groups - 1)
        return (g, j, s) if transposed else (g, s, j)

    size = np.dtype(x.dtype).itemsize
    hit = min(groups, rows)
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, n), out_dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(pl.cdiv(n, tn), walk.count, steps),
            in_specs=[
                pl.BlockSpec((tm, tk), lambda j, v, s, starts, stops, group, tile: (tile[v], s)),
                pl.BlockSpec((None, tn, tk) if transposed else (None, tk, tn), weight_at),
            ],
            out_specs=pl.BlockSpec((tm, tn), lambda j, v, s, starts, stops, group, tile: (tile[v], j)),
            scratch_shapes=[pltpu.VMEM((tm, tn), jnp.float32)] if steps > 1 else [],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=tiles.vmem
        ),
        # What is useful: the rows there are, the weights of as many experts as they can hit.
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * k * n, transcendentals=0,
            bytes_accessed=size * (rows * k * pl.cdiv(n, tn) + hit * k * n) + rows * n * np.dtype(out_dtype).itemsize,
        ),
        interpret=interpret,
        name="grouped_rows",
    )  # fmt: skip
    return call(walk.starts, walk.ends, walk.groups, walk.tiles, x, weights)


@_in_32_bits
def grouped_sum(
    a: Any, b: Any, ends: Any, *, tiles: SumTiles, out_dtype: Any = jnp.float32, passes: Passes = "highest",
    interpret: Any = False,
) -> Any:  # fmt: skip
    """(rows, m) and (rows, n) -> (groups, m, n): the sum over each group's rows of the outer products.

    Args:
      a, b: bfloat16 or float32, of one type.
      ends: int[groups], ascending: the row where each group ends.

    Returns:
      (groups, m, n) of ``out_dtype``, rounded once; 0 for a group without rows.
    """
    (rows, m), n, groups = a.shape, b.shape[1], ends.shape[0]
    tr, tm, tn = tiles.rows, tiles.m, tiles.n
    starts, stops = _bounds(ends, rows)
    # A group without rows is visited, to write its zeros; the last tile is as good as any.
    last = pl.cdiv(rows, tr) - 1
    walk = _walk(starts, stops, tr, pl.cdiv(rows, tr) + groups, visit_empty=True)
    walk = walk._replace(tiles=jnp.clip(walk.tiles, 0, last))

    def kernel(starts: Any, stops: Any, group: Any, tile: Any, a_ref: Any, b_ref: Any, out_ref: Any, sum_ref: Any):
        visit, visits = pl.program_id(2), pl.num_programs(2)
        g = group[visit]
        row = tile[visit] * tr
        whole = (row >= starts[g]) & (row + tr <= stops[g])

        @pl.when((visit == 0) | (group[jnp.maximum(visit - 1, 0)] != g))
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        def mine(ref: Any) -> Any:
            at = row + lax.broadcasted_iota(jnp.int32, ref.shape, 0)
            return _keep(ref[...], (at >= starts[g]) & (at < stops[g]))

        @pl.when(whole)
        def _() -> None:
            sum_ref[...] += _dot(a_ref[...], b_ref[...], ((0,), (0,)), passes)

        # Both sides are masked: 0 times the NaN of a neighbour's row would be NaN.
        @pl.when(jnp.logical_not(whole) & (stops[g] > starts[g]))
        def _() -> None:
            sum_ref[...] += _dot(mine(a_ref), mine(b_ref), ((0,), (0,)), passes)

        @pl.when((visit == visits - 1) | (group[jnp.minimum(visit + 1, visits - 1)] != g))
        def _() -> None:
            out_ref[...] = sum_ref[...].astype(out_ref.dtype)

    size = np.dtype(a.dtype).itemsize
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((groups, m, n), out_dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(pl.cdiv(m, tm), pl.cdiv(n, tn), walk.count),
            in_specs=[
                pl.BlockSpec((tr, tm), lambda i, j, v, starts, stops, group, tile: (tile[v], i)),
                pl.BlockSpec((tr, tn), lambda i, j, v, starts, stops, group, tile: (tile[v], j)),
            ],
            out_specs=pl.BlockSpec((None, tm, tn), lambda i, j, v, starts, stops, group, tile: (group[v], i, j)),
            scratch_shapes=[pltpu.VMEM((tm, tn), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"), vmem_limit_bytes=tiles.vmem
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * m * n, transcendentals=0,
            bytes_accessed=size * rows * (m * pl.cdiv(n, tn) + n * pl.cdiv(m, tm))
            + groups * m * n * np.dtype(out_dtype).itemsize,
        ),
        interpret=interpret,
        name="grouped_sum",
    )  # fmt: skip
    return call(walk.starts, walk.ends, walk.groups, walk.tiles, a, b)
