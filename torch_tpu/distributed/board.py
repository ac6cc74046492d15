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

_FAILED = "tpu_dist/failed"


class Board:
    def __init__(self, rank: int):
        self.rank = rank
        self._lock = threading.Lock()

    @property
    def store(self) -> Any:
        return process_groups.default_store()

    def fail(self, message: str) -> None:
        """Tell the others why this rank ends; the first rank's message stays."""
        with contextlib.suppress(Exception), self._lock:
            self.store.compare_set(_FAILED, "", f"rank {self.rank}: {message}")

    def failure(self) -> str | None:
        """The message of a rank that failed."""
        with self._lock:
            if not self.store.check([_FAILED]):
                return None
            text = self.store.get(_FAILED).decode()
        return None if text.startswith(f"rank {self.rank}:") else text

    def stand(self, group: str, rank: int, number: int, what: str) -> None:
        """Say that ``rank`` of the group waits in its collective ``number``."""
        with self._lock:
            self.store.set(f"tpu_dist/at/{group}/{rank}", f"{number}|{what}")

    def standing(self, group: str, rank: int) -> tuple[int, str] | None:
        """Where that rank last said it waits."""
        key = f"tpu_dist/at/{group}/{rank}"
        with self._lock:
            if not self.store.check([key]):
                return None
            number, _, what = self.store.get(key).decode().partition("|")
        return int(number), what

    def publish(self, key: str, text: str) -> None:
        with self._lock:
            self.store.set(key, text)

    def has(self, keys: list[str]) -> bool:
        with self._lock:
            return self.store.check(keys)

    def read(self, key: str) -> str:
        """What a key that is there says."""
        with self._lock:
            return self.store.get(key).decode()

    def agree(self, group: str, number: int, what: str) -> str:
        """What the first rank that asked does in collective ``number``."""
        with self._lock:
            return self.store.compare_set(f"tpu_dist/program/{group}/{number}", "", what).decode()


_board: Board | None = None
_running: list[Callable[[], bool]] = []
_MANY = 256
_MOMENT_SECONDS = 2.0
_failed = False


def install(rank: int) -> None:
    """Let an exception that ends this rank be told to the others."""
    global _board
    first = _board is None
    _board = Board(rank)
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
