"""What ranks tell each other when something is wrong: who failed, and where each one stands.

It is the c10d store of the default group. A collective that is quick never looks at it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torch_tpu.binding import process_groups

_FAILED = "failed"


class Board:
    """Keys have the number of the default group in this process before them, so that a group which is made anew finds
    nothing that one before has left: under torchrun the store stays."""

    def __init__(self, rank: int, number: int = 0):
        self.rank = rank
        self._keys = f"tpu_dist/{number}/"
        self._lock = threading.Lock()

    @property
    def store(self) -> Any:
        return process_groups.default_store()

    def fail(self, message: str) -> None:
        """Tell the others why this rank ends; the first rank's message stays."""
        with contextlib.suppress(Exception), self._lock:
            self.store.compare_set(self._keys + _FAILED, "", f"rank {self.rank}: {message}")

    def failure(self) -> str | None:
        """The message of a rank that failed."""
        with self._lock:
            if not self.store.check([self._keys + _FAILED]):
                return None
            text = self.store.get(self._keys + _FAILED).decode()
        return None if text.startswith(f"rank {self.rank}:") else text

    def stand(self, group: str, rank: int, number: int, what: str) -> None:
        """Say that ``rank`` of the group waits in its collective ``number``."""
        with self._lock:
            self.store.set(f"{self._keys}at/{group}/{rank}", f"{number}|{what}")

    def standing(self, group: str, rank: int) -> tuple[int, str] | None:
        """Where that rank last said it waits."""
        key = f"{self._keys}at/{group}/{rank}"
        with self._lock:
            if not self.store.check([key]):
                return None
            number, _, what = self.store.get(key).decode().partition("|")
        return int(number), what

    def publish(self, key: str, text: str) -> None:
        with self._lock:
            self.store.set(self._keys + key, text)

    def has(self, keys: list[str]) -> bool:
        with self._lock:
            return self.store.check([self._keys + k for k in keys])

    def read(self, key: str) -> str:
        """What a key that is there says."""
        with self._lock:
            return self.store.get(self._keys + key).decode()

    def first(self, key: str, text: str, before: str = "") -> str:
        """Write ``text`` where the key says ``before`` (or is not there); what it then says."""
        with self._lock:
            return self.store.compare_set(self._keys + key, before, text).decode()

    def count(self, key: str, more: int = 0) -> int:
        """What a counter says, after ``more`` is added to it."""
        with self._lock:
            return self.store.add(self._keys + key, more)


_board: Board | None = None
_boards = 0  # default groups that this process has made
_running: list[Callable[[], bool]] = []
_MANY = 256
_MOMENT_SECONDS = 2.0
_failed = False


def install(rank: int) -> None:
    """Let an exception that ends this rank be told to the others."""
    global _board, _boards
    first = _board is None
    _board = Board(rank, _boards)
    _boards += 1
    if first:
        _hook()
        atexit.register(_leave)


def current() -> Board:
    assert _board is not None
    return _board


def _hook() -> None:
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        global _failed
        _failed = True
        if not issubclass(kind, KeyboardInterrupt) and _board is not None:
            _board.fail(f"{kind.__name__}: {error}"[:2000])
        before(kind, error, trace)

    sys.excepthook = tell


def watch(still: Callable[[], bool]) -> None:
    """Something runs in another thread as long as ``still`` says so. Python must not end under it."""
    _running.append(still)
    if len(_running) > _MANY:
        _running[:] = [s for s in _running if s()]


def _leave() -> None:
    """At the end: what has begun gets a moment to finish; what then still waits, for a rank that has gone or will not
    come, cannot be ended by XLA or gloo, so the process ends without it."""
    until = time.monotonic() + (0.0 if _failed else _MOMENT_SECONDS)
    while any(still() for still in _running):
        if time.monotonic() >= until:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(1 if _failed else 0)
        time.sleep(0.01)
