"""How a model's tensors are laid over the devices of a slice."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch_tpu.aot.chips import Topology
from torch_tpu.aot.compiler import Partitioning
from torch_tpu.aot.program import Program, Value

# By dimension: None (whole), the name of a mesh axis, or several names.
Partition = Sequence[str | Sequence[str] | None]


@dataclasses.dataclass(frozen=True)
class Shardings:
    """A mesh and rules: the first pattern that an operand's name matches says how it is split.

    Names are those of ``named_parameters()``; inputs are ``args.0``, ``kwargs.name``. What no rule matches is whole on
    every device::

        Shardings({"tensor": 4}, {"*.q_proj.weight": ("tensor", None), "*.o_proj.weight": (None, "tensor")})

    A pattern that matches nothing is an error, but for those in ``optional``. ``experts`` names the axis along which
    whole experts lie (their weights' first dimension): grouped products then move rows and not weights.
    """

    mesh: Mapping[str, int]
    rules: Mapping[str, Partition]
    optional: Collection[str] = ()
    experts: str | None = None

    def __post_init__(self) -> None:
        for axis, size in self.mesh.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"mesh axis {axis!r}: expected a number of devices, got {size!r}")
        if self.experts is not None and self.experts not in self.mesh:
            raise ValueError(f"experts: no mesh axis {self.experts!r}; there are: {', '.join(self.mesh)}")
        for pattern, partition in self.rules.items():
            if isinstance(partition, str) or not isinstance(partition, Sequence):
                raise TypeError(
                    f"sharding by {pattern!r}: expected a tuple with an entry a dimension, as in ('tensor', None), got "
                    f"{partition!r}"
                )

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())

    def partition(self, value: Value) -> Partition | None:
        """Raises ValueError where a rule does not fit the operand's shape."""
        for pattern, partition in self.rules.items():
            if fnmatch.fnmatchcase(value.name, pattern):
                self._check(value, pattern, partition)
                return partition
        return None

    def check(self, programs: Iterable[Program]) -> None:
        """Raises ValueError for a pattern that no operand of the programs matches."""
        names = list(dict.fromkeys(v.name for p in programs for v in p.operands))
        for pattern in self.rules:
            if pattern in self.optional or any(fnmatch.fnmatchcase(n, pattern) for n in names):
                continue
            plain = pattern.replace("*", "").strip(".")
            near = sorted(names, key=lambda n: difflib.SequenceMatcher(None, plain, n).ratio(), reverse=True)[:3]
            raise ValueError(f"sharding {pattern!r} matches no operand; the nearest are: {', '.join(near) or 'none'}")

    def parts(self, value: Value) -> int:
        """How many parts an operand is split into."""
        return Partitioning(self.mesh, ()).parts(self.partition(value))

    def _check(self, value: Value, pattern: str, partition: Partition) -> None:
        if len(partition) > len(value.shape):
            raise ValueError(
                f"sharding of {value.name} by {pattern!r}: {len(partition)} entries for shape {list(value.shape)}"
            )
        for size, axes in zip(value.shape, partition, strict=False):
            names = [axes] if isinstance(axes, str) else list(axes or ())
            unknown = [n for n in names if n not in self.mesh]
            if unknown:
                raise ValueError(
                    f"sharding of {value.name}: no mesh axis {unknown[0]!r}; there are: {', '.join(self.mesh)}"
                )
            parts = math.prod(self.mesh[n] for n in names)
            if size % parts:
                raise ValueError(
                    f"sharding of {value.name}: size {size} of {list(value.shape)} is no multiple of {parts}"
                )


def partitioning(shardings: Shardings, program: Program, where: Topology) -> Partitioning:
    """The mesh and every operand's partition.

    Raises:
      ValueError: the mesh has more devices than the slice, or a rule does not fit.
    """
    if shardings.devices > where.devices:
        raise ValueError(
            f"a mesh of {shardings.devices} devices ({dict(shardings.mesh)}) on {where.name}, which has {where.devices}"
        )
    partitions: list[Any] = [shardings.partition(v) for v in program.operands]
    return Partitioning(shardings.mesh, partitions)
