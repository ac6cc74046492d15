"""Programs that span the devices of several processes, each of which runs the same one on arrays of its own.

What a process holds is its part of a global array that is split over the processes along the first dimension. So their
values may differ, nothing is copied, and XLA assumes of no operand that it is the same everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from torch_tpu.lowering.collectives import AXIS


@dataclasses.dataclass(frozen=True)
class Span:
    """The devices of a program, in the order in which their ranks count."""

    devices: tuple[Any, ...]

    @property
    def size(self) -> int:
        return len(self.devices)

    @property
    def key(self) -> tuple[int, ...]:
        return tuple(d.id for d in self.devices)

    def mesh(self) -> jax.sharding.Mesh:
        return jax.sharding.Mesh(np.array(self.devices), (AXIS,))

    def avals(self, local: Sequence[jax.ShapeDtypeStruct]) -> list[jax.ShapeDtypeStruct]:
        """The global arrays of which these are the parts; a number is a part of one element."""
        place = jax.sharding.NamedSharding(self.mesh(), jax.sharding.PartitionSpec(AXIS))
        shapes = [a.shape or (1,) for a in local]
        return [
            jax.ShapeDtypeStruct((s[0] * self.size, *s[1:]), a.dtype, sharding=place)
            for s, a in zip(shapes, local, strict=True)
        ]

    def spread(
        self, fn: Callable[..., list[Any]], local: Sequence[jax.ShapeDtypeStruct]
    ) -> Callable[..., list[Any]]:  # fmt: skip
        """``fn`` of this process's arrays as a function of the global ones; inside, ``AXIS`` names the processes."""

        def body(*parts: Any) -> list[Any]:
            given = [p if a.shape else p.reshape(()) for p, a in zip(parts, local, strict=True)]
            return [r if r.shape else r.reshape(1) for r in fn(*given)]

        spec = jax.sharding.PartitionSpec(AXIS)
        return jax.shard_map(body, mesh=self.mesh(), in_specs=spec, out_specs=spec, check_vma=False)

    def entry(self, compiled: jax.stages.Compiled) -> Callable[..., list[Any]]:
        """What runs the program on this process's arrays, without global ones around them, which cost 7 us each. A
        result of no dimensions has one element in one dimension."""
        executable: Any = compiled.runtime_executable()

        def call(*arrays: Any) -> list[Any]:
            parts = [a if a.ndim else a.reshape(1) for a in arrays]
            made = executable.execute_sharded(parts)
            return [part for (part,) in made.disassemble_into_single_device_arrays()]

        return call
