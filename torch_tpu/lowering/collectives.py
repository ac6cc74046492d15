"""Collectives over the ranks of a program, which runs on one device of each (inside a ``shard_map`` over ``AXIS``)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.pointwise import quotient

AXIS = "ranks"

_BOOL = np.dtype(np.bool_)


@dataclasses.dataclass(frozen=True)
class Among:
    """The ranks of a collective: all those of the program, or groups of equal size that run it at once.

    Attributes:
      size: of a group.
      groups: the places in the program of each group's members, in the group's order; None for all ranks in order.
    """

    size: int
    groups: tuple[tuple[int, ...], ...] | None = None

    def position(self) -> jax.Array:
        """This rank's place in its group."""
        if self.groups is None:
            return lax.axis_index(AXIS)
        place = {rank: i for group in self.groups for i, rank in enumerate(group)}
        return jnp.asarray([place[r] for r in range(len(place))])[lax.axis_index(AXIS)]


def check_reduction(reduction: str, dtype: np.dtype) -> None:
    """Raises TypeError or NotImplementedError for what a type has not."""
    if reduction.startswith("premul_sum"):
        raise NotImplementedError("tpu_dist: ReduceOp.PREMUL_SUM is not supported: scale the tensor, then use SUM")
    inexact, is_complex = jnp.issubdtype(dtype, jnp.inexact), jnp.issubdtype(dtype, jnp.complexfloating)
    wrong = (
        (reduction in ("band", "bor", "bxor") and inexact)
        or (reduction in ("min", "max") and is_complex)
        or (reduction == "avg" and dtype == _BOOL)
    )
    if wrong:
        raise TypeError(f"tpu_dist: cannot use ReduceOp.{reduction.upper()} with {dtypes.to_torch(dtype)}")


def gathered(x: jax.Array, among: Among, *, tiled: bool = False) -> jax.Array:
    """The ranks' values in a new first dimension, or (``tiled``) one after the other along the first."""
    if among.size == 1:
        return x if tiled else x[None]
    return lax.all_gather(x, AXIS, axis_index_groups=among.groups, tiled=tiled)


def reduce_over_ranks(x: jax.Array, reduction: str, among: Among) -> jax.Array:
    """The reduction over the ranks, on every rank."""
    if among.size == 1:
        return x
    if x.dtype == _BOOL:
        return reduce_over_ranks(x.astype(jnp.uint8), _of_bool(reduction), among).astype(bool)
    if reduction in ("sum", "avg"):
        return _mean(lax.psum(x, AXIS, axis_index_groups=among.groups), reduction, among.size)
    if reduction in ("min", "max"):
        return (lax.pmin if reduction == "min" else lax.pmax)(x, AXIS, axis_index_groups=among.groups)
    return _fold(gathered(x, among), reduction, among.size)


def _of_bool(reduction: str) -> str:
    """What a reduction of truth values is: NCCL's, where a sum is "any" and a product "all"."""
    return {"sum": "max", "max": "max", "bor": "max", "min": "min", "product": "min", "band": "min", "bxor": "bxor"}[
        reduction
    ]


def _mean(total: jax.Array, reduction: str, size: int) -> jax.Array:
    if reduction == "sum":
        return total
    if jnp.issubdtype(total.dtype, jnp.integer):
        return lax.div(total, jnp.asarray(size, total.dtype))  # toward zero, as C divides
    return quotient(total, jnp.asarray(size, total.dtype))


def _fold(stack: jax.Array, reduction: str, size: int) -> jax.Array:
    """Reduce the first dimension, in the order of the ranks."""
    op = {"product": lax.mul, "band": lax.bitwise_and, "bor": lax.bitwise_or, "bxor": lax.bitwise_xor,
          "min": lax.min, "max": lax.max, "sum": lax.add, "avg": lax.add}[reduction]  # fmt: skip
    out = stack[0]
    for i in range(1, size):
        out = op(out, stack[i])
    return _mean(out, reduction, size) if reduction == "avg" else out


def to_bits(x: jax.Array) -> jax.Array:
    """Unsigned integers that sum with zeros to themselves, whatever the value: NaN, -0.0."""
    if x.dtype == _BOOL:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return to_bits(jnp.stack([lax.real(x), lax.imag(x)]))
    return lax.bitcast_convert_type(x, np.dtype(f"uint{x.dtype.itemsize * 8}"))


def from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    if dtype == _BOOL:
        return bits.astype(bool)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = from_bits(bits, np.dtype(f"float{dtype.itemsize * 4}"))
        return lax.complex(parts[0], parts[1])
    return lax.bitcast_convert_type(bits, dtype)


def scatter_sum(x: jax.Array, reduction: str, among: Among) -> jax.Array:
    """This rank's row of the reduction of ``x`` (ranks, ...) over the ranks."""
    if among.size == 1:
        return x[0]
    if reduction in ("sum", "avg") and x.dtype != _BOOL:
        return _mean(lax.psum_scatter(x, AXIS, axis_index_groups=among.groups), reduction, among.size)
    rows = lax.all_to_all(x, AXIS, 0, 0, axis_index_groups=among.groups)
    if x.dtype == _BOOL:
        return _fold(rows.astype(jnp.uint8), _of_bool(reduction), among.size).astype(bool)
    return _fold(rows, reduction, among.size)


def broadcast_from(x: jax.Array, mine: jax.Array, among: Among) -> jax.Array:
    """The value of the rank where ``mine`` is true, bit by bit."""
    bits = to_bits(x)
    bits = lax.psum(jnp.where(mine, bits, jnp.zeros_like(bits)), AXIS, axis_index_groups=among.groups)
    return from_bits(bits, x.dtype)
