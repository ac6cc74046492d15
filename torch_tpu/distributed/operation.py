"""An operation of a group while it runs: waiting for it, and saying what is wrong when it does not end."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from torch_tpu.distributed import board
from torch_tpu.runtime import cluster

_LOOK_SECONDS = 0.5  # how often a rank that waits looks whether another has failed
_TELL_SECONDS = 1.0  # after which it says where it waits
_GRACE_SECONDS = 2.0  # for a rank that fails to say why, after its connection has gone


class Members(Protocol):
    """What an operation says of a group; a ``Group`` is one."""

    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def rank(self) -> int: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def timeout(self) -> float: ...


class Disagreement(dist.DistBackendError):
    """The ranks do not run the same. Its message says what each one does, and the others know it."""


class Operation:
    """``done()`` says whether it has ended, ``finish()`` puts the results in place or raises.

    ``pause(seconds)`` waits for its end, but no longer; where there is none, ``done`` is asked again and again.

    Attributes:
      what: the operation in words, the same on every rank that runs the same.
      value: the result tensors.
      also: other groups of which it is an operation, each with its number there.
      peers: the members, by their numbers in the world, that it waits for; None for all. Given for what only two
        members take part in, which has no number.
    """

    def __init__(
        self,
        group: Members,
        number: int,
        what: str,
        value: list[torch.Tensor],
        done: Callable[[], bool],
        finish: Callable[[], None],
        timeout: float | None = None,
        pause: Callable[[float], Any] | None = None,
        also: Sequence[tuple[Members, int]] = (),
        peers: Sequence[int] | None = None,
    ):
        self.group, self.number, self.what, self.value = group, number, what, value
        # Where the ranks must stand together; two that send to each other may be anywhere.
        self._places: list[tuple[Members, int]] = [(group, number), *also] if peers is None else []
        self._peers = {r for g, _ in self._places for r in g.ranks} if peers is None else set(peers)
        self.error: BaseException | None = None
        self.source = -1
        self.timeout = timeout or group.timeout
        self._done, self._finish, self._pause = done, finish, pause
        self._finished = False
        self._gone_since: float | None = None
        self._lock = threading.RLock()
        self._since = time.monotonic()

    def poll(self) -> bool:
        if not self._finished and self._done():
            self._conclude()
        return self._finished

    def wait(self, timeout: float | None = None) -> None:
        """Wait, and raise what went wrong. ``timeout`` (seconds) replaces the group's for this wait."""
        if not self._finished:
            try:
                self._await(timeout)
            except dist.DistNetworkError as e:
                error = dist.DistBackendError(self._without_store())
                self._give_up(error)
                raise error from e
            except BaseException as e:
                self._give_up(e)
                raise
            self._conclude()
        if self.error is not None:
            raise self.error

    def _conclude(self) -> None:
        with self._lock:
            if self._finished:
                return
            try:
                self._finish()
            except Disagreement as e:
                self.error = e
            except Exception as e:
                self.error = self._explained(e)
            self._finished = True

    def _give_up(self, error: BaseException) -> None:
        with self._lock:
            self.error, self._finished = error, True
        board.watch(self._still)
        board.current().fail(str(error))

    def _still(self) -> bool:
        """Whether it goes on though nobody waits for it; what cannot be asked any more does not."""
        with contextlib.suppress(dist.DistError):
            return not self._done()
        return False

    def _without_store(self) -> str:
        """The store ends with the rank that made it, which may have ended for the sake of another."""
        return f"{self._where()} cannot end: the store has ended with its rank; {_ended()}"

    def _await(self, timeout: float | None) -> None:
        start = time.monotonic()
        end = start + timeout if timeout else self._since + self.timeout
        look, nap = start + _LOOK_SECONDS, 0.00002
        told = 0.0
        while not self._done():
            now = time.monotonic()
            if now >= look or now >= end:
                look = now + _LOOK_SECONDS
                if now - start >= min(_TELL_SECONDS, (end - start) / 2) and not told:
                    self._stand()
                    told = now
                self._look()
                if now >= end:
                    raise dist.DistBackendError(self._late(timeout or self.timeout))
            rest = max(min(look, end) - now, 0.00001)
            if self._pause is not None:
                self._pause(rest)
            else:
                time.sleep(min(nap, rest))
                nap = min(nap * 1.5, 0.005)

    def _stand(self) -> None:
        """Say where this rank waits."""
        for group, number in self._places:
            if group.rank >= 0:
                board.current().stand(group.name, group.rank, number, self.what)

    def _look(self) -> None:
        """Raise where another rank has failed, or is in another operation than this one."""
        failure = board.current().failure()
        if failure is not None:
            raise dist.DistBackendError(f"{self._where()} cannot end: {failure}")
        self._look_for_gone()
        for group, number in self._places:
            for rank in range(group.size):
                standing = board.current().standing(group.name, rank)
                if standing is not None and standing[0] == number and standing[1] != self.what:
                    raise dist.DistBackendError(mismatch(group, number, self.what, standing[1], rank))

    def _look_for_gone(self) -> None:
        """Raise where a member's process has ended a while ago. What it gave before may still be under way."""
        gone = sorted(self._peers & cluster.gone())
        if not gone:
            self._gone_since = None
            return
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        if now - self._gone_since >= _GRACE_SECONDS:
            raise dist.DistBackendError(
                f"{self._where()} cannot end: the process of rank {', '.join(map(str, gone))} has ended, or was killed"
            )

    def _where(self) -> str:
        g = self.group
        number = f"operation {self.number} of " if self._places else ""
        return f"tpu_dist: {self.what} ({number}group {g.name!r}, ranks {g.ranks}) on rank {g.global_rank}"

    def _missing(self) -> str:
        """The ranks that do not wait in this operation, and where they wait if they do."""
        missing = []
        for rank in range(self.group.size):
            if rank == self.group.rank or self.group.ranks[rank] not in self._peers:
                continue
            standing = board.current().standing(self.group.name, rank)
            name = f"rank {self.group.ranks[rank]}"
            if standing is None or not self._places:
                missing.append(name)
            elif standing[0] < self.number:
                missing.append(f"{name} (last seen waiting in operation {standing[0]}, {standing[1]})")
        return ", ".join(missing)

    def _late(self, seconds: float) -> str:
        missing = self._missing() or "none: all ranks wait in it"
        return f"{self._where()} timed out after {seconds:g} s. Missing: {missing}."

    def _explained(self, error: Exception) -> Exception:
        """A failure of the transport, with the message of the rank that caused it if it left one."""
        text = str(error).strip()
        cause = ""
        try:
            self._stand()
            until = time.monotonic() + _GRACE_SECONDS
            while not cause and time.monotonic() < until:
                time.sleep(0.05)
                cause = board.current().failure() or ""
            if not cause and "imed out" in text:
                return self._chained(self._late(min(self.timeout, round(time.monotonic() - self._since))), error)
            missing = self._missing()
            if not cause and missing:
                cause = f"no answer from {missing}, which may have been killed"
        except Exception:  # the store has gone with its rank
            cause = f"the rank that holds the store has ended; {_ended()}"
        return self._chained(f"{self._where()} failed: {cause}; {text[:1500]}", error)

    @staticmethod
    def _chained(message: str, error: Exception) -> Exception:
        found = dist.DistBackendError(message)
        found.__cause__ = error
        board.current().fail(message)
        return found

    def then(self, call: Callable[[], None]) -> None:
        """Call it when the operation has ended, in this thread if it has."""
        if self._finished:
            call()
        else:
            _watch(self, call)


def _ended() -> str:
    return f"ranks that have ended: rank {', '.join(map(str, sorted(cluster.gone()))) or 'not known'}"


def mismatch(group: Members, number: int, what: str, other: str, rank: int | None = None) -> str:
    who = "another rank" if rank is None else f"rank {group.ranks[rank]}"
    return (
        f"tpu_dist: ranks disagree on operation {number} of group {group.name!r}: rank {group.global_rank} "
        f"runs {what}, {who} runs {other}"
    )


_queue: queue.SimpleQueue[tuple[Operation, Callable[[], None]]] = queue.SimpleQueue()
_watcher: list[threading.Thread] = []


def _watch(operation: Operation, call: Callable[[], None]) -> None:
    if not _watcher:
        _watcher.append(threading.Thread(target=_run, daemon=True, name="tpu_dist"))
        _watcher[0].start()
    _queue.put((operation, call))


def _run() -> None:
    """Wait for operations whose end something is to follow, in their order, which is the device's."""
    while True:
        operation, call = _queue.get()
        with contextlib.suppress(Exception):  # the call tells it on
            operation.wait()
        call()
        del operation, call


@dataclasses.dataclass
class Running:
    """A call that runs in another thread."""

    call: Callable[[], Any]
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)
    value: Any = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        ended = self.ended  # the call holds arrays and groups, which what only looks at the event must not keep
        board.watch(lambda: not ended.is_set())

    def run(self) -> None:
        try:
            self.value = self.call()
        except BaseException as e:
            self.error = e
        del self.call
        self.ended.set()

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def in_thread(call: Callable[[], Any]) -> Running:
    """Run it in a thread of its own."""
    running = Running(call)
    threading.Thread(target=running.run, daemon=True, name="tpu_dist p2p").start()
    return running


_programs: queue.SimpleQueue[Running] = queue.SimpleQueue()
_runner: list[threading.Thread] = []


def in_order(call: Callable[[], Any]) -> Running:
    """Run it after all that came before it, in the one thread that runs collective programs.

    XLA:CPU runs a collective in the thread that calls it, and returns when the other ranks have come: what waits there
    can neither see that another rank has failed nor stop after a timeout.
    """
    if not _runner:
        _runner.append(threading.Thread(target=_run_programs, daemon=True, name="tpu_dist programs"))
        _runner[0].start()
    running = Running(call)
    _programs.put(running)
    return running


def _run_programs() -> None:
    while True:
        running = _programs.get()
        running.run()
        del running  # while it waits for the next, it keeps nothing of this one
