"""The chip that a program is traced for, and the devices that XLA splits it over."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from torch_tpu.runtime import interpretation, platform


@dataclasses.dataclass(frozen=True)
class Split:
    """How a program lies over a mesh (axis name -> size): the axes of the batch, and those of everything else."""

    mesh: Mapping[str, int]
    batch: Sequence[str] = ()

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.mesh if name not in self.batch)

    def parts(self, axes: Sequence[str]) -> int:
        return math.prod(self.mesh[name] for name in axes)

    def mapped(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """``fn`` of each device's part of the arrays: XLA cannot split a kernel, so it is told how."""
        mesh = jax.sharding.AbstractMesh(tuple(self.mesh.values()), tuple(self.mesh))
        return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


class _State(threading.local):
    partitioned = False
    split: Split | None = None


_state = _State()


@contextlib.contextmanager
def partitioned(by_xla: bool = True, split: Split | None = None) -> Iterator[None]:
    """Programs traced inside are split over devices by XLA, which cannot split a kernel by itself.

    With ``split``, a kernel that knows how to may be called on each device's part.
    """
    before = _state.partitioned, _state.split
    _state.partitioned, _state.split = by_xla, split
    try:
        yield
    finally:
        _state.partitioned, _state.split = before


def current() -> str | None:
    """The chip that kernels are for ("v6e"); None where the program is not for a TPU, or cannot have kernels."""
    return None if _state.partitioned else _chip()


def across() -> tuple[str, Split | None] | None:
    """(chip, split) for a kernel that can be called on each device's part; None where there can be no kernel.

    The split is None where the program is one device's.
    """
    if _state.partitioned and _state.split is None:
        return None
    chip = _chip()
    return None if chip is None else (chip, _state.split)


def _chip() -> str | None:
    where, chip = interpretation.target(platform.name())
    if where != "tpu":
        return None
    if chip is not None:
        return chip
    kind = platform.devices()[0].device_kind
    return next((name for name, said in interpretation.CHIPS.items() if said == kind), "v5e")
