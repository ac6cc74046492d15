"""The eager modes, and what is known of work that is on its way: checks whose answer has not been looked at."""

from __future__ import annotations

import collections
import contextlib
import enum
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_tpu.runtime import errors

BLOCKING_VARIABLE = "TORCH_TPU_LAUNCH_BLOCKING"
FUSE_VARIABLE = "TORCH_TPU_DEFER_AND_FUSE"


class EagerMode(enum.Enum):
    """How operators are run outside of ``torch.compile``."""

    DEFER_NEVER = "DEFER_NEVER"
    """Each operator is dispatched at once and runs asynchronously (the default)."""
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "DEFER_NEVER_AND_LAUNCH_BLOCKING"
    """Each operator is awaited and checked: an error points at the line that caused it."""
    DEFER_AND_FUSE = "DEFER_AND_FUSE"
    """Operators are recorded and run as fused programs (not available yet)."""


def _from_environment() -> EagerMode:
    if os.environ.get(BLOCKING_VARIABLE, "0") == "1":
        return EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    return EagerMode.DEFER_NEVER


class _State:
    __slots__ = ("blocking", "mode")

    def __init__(self) -> None:
        self.select(_from_environment())

    def select(self, mode: EagerMode) -> None:
        self.mode = mode
        self.blocking = mode is EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING


state = _State()


def eager_mode() -> EagerMode:
    """The mode in force."""
    return state.mode


class set_eager_mode(contextlib.AbstractContextManager[None]):
    """Select the eager mode, for good when called, for a block when used as a context manager.

    Args:
      mode: an ``EagerMode``, or its name.

    Raises:
      NotImplementedError: for ``DEFER_AND_FUSE``.
    """

    def __init__(self, mode: EagerMode | str):
        wanted = EagerMode[mode] if isinstance(mode, str) else EagerMode(mode)
        if wanted is EagerMode.DEFER_AND_FUSE:
            raise NotImplementedError("EagerMode.DEFER_AND_FUSE is not available yet; use DEFER_NEVER")
        self._before = state.mode
        state.select(wanted)

    def __exit__(self, *exc: object) -> None:
        state.select(self._before)


# Reports of index checks (see lowering/checks.py) of programs that are on their way: (rows of an array, and
# what each of them says).
_reports: collections.deque[tuple[Any, Sequence[tuple[str, type[Exception]]]]] = collections.deque()
_LOOK_AT = 64


def expect(report: Any, message: str, error: type[Exception]) -> None:
    """Remember a report; it is looked at at the next synchronization, or when many have gathered."""
    _reports.append((report, ((message, error),)))
    if len(_reports) > _LOOK_AT:
        raise_failed(len(_reports) // 2)


def expect_all(reports: Any, notes: Sequence[tuple[str, type[Exception]]]) -> None:
    """The same for a program's reports in one array, a row a check."""
    _reports.append((reports, notes))
    if len(_reports) > _LOOK_AT:
        raise_failed(len(_reports) // 2)


def raise_failed(count: int | None = None) -> None:
    """Look at the oldest ``count`` reports (all by default), waiting for them; raise the first failure.

    The reports behind a failed one are dropped: they follow from it, or would be raised at unrelated lines. So are
    those behind one that could not be computed (its program, or one that it follows from, ran out of memory).
    """
    for _ in range(len(_reports) if count is None else count):
        try:
            reports, notes = _reports.popleft()
        except IndexError:
            return
        try:
            rows = np.asarray(reports).reshape(-1, 2)
        except (jax.errors.JaxRuntimeError, MemoryError) as e:
            _reports.clear()
            raise errors.translate(e, "a computation") from e
        if not rows[:, 0].any():  # the common case, in one look
            continue
        for (bad, value), (message, error) in zip(rows, notes, strict=True):
            if bad:
                _reports.clear()
                raise error(message.format(value=int(value)))
