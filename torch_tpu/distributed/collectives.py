"""Collectives as XLA programs: one small program for each (collective, shapes, dtype, group), kept.

A program spans the devices of the group's members, and every member runs it. What a rank holds is its part of a global
array that is split over the ranks along the first dimension; so the members' values may differ, and nothing is
copied to make the global array.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.distributed.group import Group
from torch_tpu.lowering.collectives import (
    AXIS,
    Among,
    broadcast_from,
    from_bits,
    reduce_over_ranks,
    scatter_sum,
    to_bits,
)
from torch_tpu.runtime import errors, platform

_CHEAP_ELEMENTS = 16384
_CHEAP_OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}

Shape: TypeAlias = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """A collective on arrays of this rank. Shapes are those of this rank's operands and results."""

    kind: str
    reduction: str
    dtype: np.dtype
    ins: tuple[Shape, ...]
    outs: tuple[Shape, ...]

    def words(self, root: int | None) -> str:
        """The same on every rank that runs the same: shapes may differ where the numbers of elements agree."""
        sizes = ",".join(str(math.prod(s)) for s in self.ins)
        reduction = f"({self.reduction})" if self.reduction else ""
        source = "" if root is None else f" of rank {root}"
        return f"{self.kind}{reduction}{source} of {self.dtype.name}[{sizes}]"


def prepare(
    group: Group, call: Call, arrays: Sequence[jax.Array], root: int | None = None
) -> Callable[[], list[jax.Array]]:
    """What dispatches the collective on this rank's arrays, and gives its results.

    Args:
      root: the rank in the group whose values count, where the collective has one. It is an operand.
    """
    program = _program(group, call)
    with jax.enable_x64(True):
        operands = [_whole(group, a, s) for a, s in zip(arrays, call.ins)]
        if call.kind in _ROOTED:
            operands.append(_flag(group, root == group.rank))

    def run() -> list[jax.Array]:
        with jax.enable_x64(True):
            parts = [r.addressable_data(0) for r in program(*operands)]
            return [p if s else p.reshape(()) for p, s in zip(parts, call.outs)]

    return run


def _whole(group: Group, array: jax.Array, shape: Shape) -> jax.Array:
    if shape == ():
        array, shape = array.reshape(1), (1,)
    whole = (shape[0] * group.size, *shape[1:])
    return jax.make_array_from_single_device_arrays(whole, group.sharding, [array])


_flags: dict[tuple[Any, bool], jax.Array] = {}


def _flag(group: Group, on: bool) -> jax.Array:
    key = (group.mesh, on)
    found = _flags.get(key)
    if found is None:
        value = jax.device_put(np.array([on]), platform.device(0))
        found = _flags[key] = _whole(group, value, (1,))
    return found


_programs: dict[Any, Callable[..., Any]] = {}


def _program(group: Group, call: Call) -> Callable[..., Any]:
    key = (group.mesh, call)
    found = _programs.get(key)
    if found is None:
        found = _programs[key] = _compile(group, call)
    return found


def _compile(group: Group, call: Call) -> Callable[..., Any]:
    spec = jax.sharding.PartitionSpec(AXIS)
    size = group.size
    body = jax.shard_map(
        lambda *xs: _bodies[call.kind](call, size, *xs),
        mesh=group.mesh, in_specs=spec, out_specs=spec, check_vma=False,
    )  # fmt: skip
    shapes = [(s or (1,), call.dtype) for s in call.ins]
    if call.kind in _ROOTED:
        shapes.append(((1,), np.dtype(bool)))
    avals = [jax.ShapeDtypeStruct((s[0] * size, *s[1:]), d, sharding=group.sharding) for s, d in shapes]
    options = None
    if platform.name() == "cpu" and sum(math.prod(s) for s in (*call.ins, *call.outs)) <= _CHEAP_ELEMENTS:
        options = _CHEAP_OPTIONS
    with jax.enable_x64(True), errors.translated(f"compiling {call.words(None)}"):
        return jax.jit(body).lower(*avals).compile(compiler_options=options)


def _shaped(x: jax.Array, shape: Shape) -> jax.Array:
    return x.reshape(shape or (1,))


def _all_reduce(call: Call, size: int, *xs: jax.Array) -> list[jax.Array]:
    return [_shaped(reduce_over_ranks(x, call.reduction, Among(size)), s) for x, s in zip(xs, call.outs)]


def _all_gather(call: Call, size: int, *xs: jax.Array) -> list[jax.Array]:
    """One result for each operand, or one for each rank."""
    if len(call.outs) == len(xs):
        return [_shaped(lax.all_gather(x.reshape(-1), AXIS), s) for x, s in zip(xs, call.outs)]
    rows = lax.all_gather(xs[0].reshape(-1), AXIS)
    # Where the parts are uneven, operands are padded to the longest.
    return [_shaped(rows[i, : math.prod(s)], s) for i, s in enumerate(call.outs)]


def _reduce_scatter(call: Call, size: int, *xs: jax.Array) -> list[jax.Array]:
    """One result for each operand, which holds the parts of all ranks; or one result for an operand a rank."""
    if len(call.outs) == len(xs):
        among = Among(size)
        return [_shaped(scatter_sum(x.reshape(size, -1), call.reduction, among), s) for x, s in zip(xs, call.outs)]
    rows = jnp.stack([x.reshape(-1) for x in xs])
    return [_shaped(scatter_sum(rows, call.reduction, Among(size))[: math.prod(call.outs[0])], call.outs[0])]


def _all_to_all(call: Call, size: int, *xs: jax.Array) -> list[jax.Array]:
    if len(xs) == 1:
        return [_shaped(lax.all_to_all(xs[0].reshape(size, -1), AXIS, 0, 0), call.outs[0])]
    rows = lax.all_to_all(jnp.stack([x.reshape(-1) for x in xs]), AXIS, 0, 0)
    return [_shaped(rows[i], s) for i, s in enumerate(call.outs)]


def _broadcast(call: Call, size: int, *xs: jax.Array) -> list[jax.Array]:
    *values, mine = xs
    return [_shaped(broadcast_from(x, mine, Among(size)), s) for x, s in zip(values, call.outs)]


def _scatter(call: Call, size: int, *xs: jax.Array) -> list[jax.Array]:
    """The root's operand holds the parts of all ranks; the others' is not looked at."""
    x, mine = xs
    x = x.reshape(size, -1)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.concatenate([lax.real(x), lax.imag(x)], axis=1)
    bits = to_bits(x)
    bits = lax.psum_scatter(jnp.where(mine, bits, jnp.zeros_like(bits)), AXIS)
    if jnp.issubdtype(call.dtype, jnp.complexfloating):
        bits = bits.reshape(2, -1)
    return [_shaped(from_bits(bits, call.dtype), call.outs[0])]


_bodies: dict[str, Callable[..., list[jax.Array]]] = {
    "all_reduce": _all_reduce, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter, "all_to_all": _all_to_all,
    "broadcast": _broadcast, "scatter": _scatter,
}  # fmt: skip
_ROOTED = frozenset({"broadcast", "scatter"})
