"""The chip that a program is traced for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch_tpu.runtime import interpretation, platform


class _State(threading.local):
    partitioned = False


_state = _State()


@contextlib.contextmanager
def partitioned(by_xla: bool = True) -> Iterator[None]:
    """Programs traced inside are split over devices by XLA, which cannot split a kernel."""
    before, _state.partitioned = _state.partitioned, by_xla
    try:
        yield
    finally:
        _state.partitioned = before


def current() -> str | None:
    """The chip that kernels are for ("v6e"); None where the program is not for a TPU, or cannot have kernels."""
    if _state.partitioned:
        return None
    where, chip = interpretation.target(platform.name())
    if where != "tpu":
        return None
    if chip is not None:
        return chip
    kind = platform.devices()[0].device_kind
    return next((name for name, said in interpretation.CHIPS.items() if said == kind), "v5e")
