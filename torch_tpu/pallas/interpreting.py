"""How kernels are interpreted where there is no TPU: the user's side of ``runtime/interpretation.py``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from torch_tpu.runtime import interpretation


@contextlib.contextmanager
def interpret(
    *,
    mode: Literal["simulate", "plain"] | None = None,
    detect_races: bool | None = None,
    out_of_bounds_reads: Literal["raise", "uninitialized"] | None = None,
    bounds: Literal["logical", "padded"] | None = None,
    dma: Literal["on_wait", "eager"] | None = None,
    uninitialized: Literal["nan", "zero"] | None = None,
    seed: int | None = None,
) -> Iterator[None]:
    """Say how Pallas TPU kernels are interpreted inside the block; what is not given is as around it.

    ::

        with torch.tpu.pallas.interpret(detect_races=True):
            my_kernel(x)

    A kernel that was called before is compiled again for other options. On a TPU there is no effect: kernels are
    compiled. The chip that kernels find is v6e, or that of the environment variable ``TORCH_TPU_INTERPRET_CHIP``.

    Args:
      mode: "simulate" (the default) simulates the chip's memories, DMAs and semaphores, and checks accesses; "plain"
        runs the kernel's arithmetic as an XLA program: fast, without any of this, and not for every kernel.
      detect_races: raise ``KernelRaceError`` where two accesses to the same memory are not ordered.
      out_of_bounds_reads: "raise" (the default), or "uninitialized": such a read gives what unwritten memory holds.
      bounds: "logical" (the default) or "padded": an access up to the tile that the chip pads a buffer to is allowed.
      dma: when a DMA moves its data: "on_wait" (the default: as late as can be, which finds missing waits), "eager".
      uninitialized: what unwritten memory holds: "nan" (the default), "zero".
      seed: shuffles the order of grid dimensions that are "parallel".

    Raises:
      ValueError: an option has no such value.
    """
    given: dict[str, Any] = {
        "mode": mode, "detect_races": detect_races, "out_of_bounds_reads": out_of_bounds_reads, "bounds": bounds,
        "dma": dma, "uninitialized": uninitialized, "seed": seed,
    }  # fmt: skip
    chosen = {k: v for k, v in given.items() if v is not None}
    with interpretation.use(dataclasses.replace(interpretation.options(), **chosen)):
        yield
