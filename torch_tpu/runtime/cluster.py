"""Processes that share one JAX world, so that a program can span their devices.

JAX must know the world before its backend starts. ``join`` is called by every rank at the same point (where the
default process group is made), before or after the device was used: if any rank has used it, no rank joins, and
collectives go through the hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jax._src import distributed, xla_bridge
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

from torch_tpu.runtime import coordinator, platform

LOOPBACK = "127.0.0.1"
_HEARTBEAT_SECONDS = 100
_LOOK_SECONDS = 2.0  # how often a rank that waits for others to join looks whether they live


@dataclasses.dataclass
class Cluster:
    """The ranks of the world, and the device of each; no devices where they could not be joined."""

    rank: int
    size: int
    one_host: bool
    devices: tuple[platform.Device, ...] | None
    used_before: tuple[int, ...]  # ranks that had used the device already


_cluster: Cluster | None = None


def current() -> Cluster | None:
    return _cluster


class _Exchange:
    """What the ranks tell each other through a c10d store, with a message that says who is missing."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta):
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        store.set(f"process/{rank}", json.dumps([_namespace(), os.getpid()]))

    def all(self, name: str, value: Any) -> list[Any]:
        """The value of every rank. Rank 0 collects them, so that the store is asked 2N times and not N * N."""
        if self.rank == 0:
            values = [value, *(json.loads(self._get(f"{name}/{r}", f"rank {r}")) for r in range(1, self.size))]
            self.store.set(f"{name}/all", json.dumps(values))
            return values
        self.store.set(f"{name}/{self.rank}", json.dumps(value))
        return json.loads(self._get(f"{name}/all", "rank 0, or another rank that it waits for,"))

    def from_first(self, name: str, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.rank == 0:
            self.store.set(name, json.dumps(value))
            return value
        return json.loads(self._get(name, "rank 0"))

    def _get(self, key: str, who: str) -> bytes:
        end = time.monotonic() + self.timeout.total_seconds()
        while True:
            left = min(_LOOK_SECONDS, max(end - time.monotonic(), 0.001))
            try:
                self.store.wait([key], datetime.timedelta(seconds=left))
            except Exception as e:
                dead = self._dead() if left == _LOOK_SECONDS else []
                if dead:
                    raise RuntimeError(self._ended(dead)) from e
                if time.monotonic() >= end or "imeout" not in f"{type(e).__name__} {e}":
                    seconds = self.timeout.total_seconds()
                    raise RuntimeError(
                        f"tpu_dist: rank {self.rank} waited {seconds:g} s in init_process_group; {who} did not come: "
                        f"{e}"
                    ) from e
            else:
                return self.store.get(key)

    def during(self, call: Callable[[], Any]) -> None:
        """A call that waits for all ranks in C++, in a thread, so that one whose process ends is noticed."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as e:
                failed.append(e)

        thread = threading.Thread(target=run, daemon=True, name="tpu_dist join")
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            if thread.is_alive() and (dead := self._dead()):
                raise RuntimeError(self._ended(dead))
        if failed:
            raise failed[0]

    def _ended(self, ranks: list[int]) -> str:
        return (
            f"tpu_dist: rank {self.rank} waited in init_process_group; the process of rank {ranks[0]} has ended, or "
            "was killed"
        )

    def _dead(self) -> list[int]:
        """Ranks on this host whose process has ended."""
        found = []
        for r in range(self.size):
            if self.store.check([f"process/{r}"]):
                where, number = json.loads(self.store.get(f"process/{r}"))
                if where == _namespace() and not _lives(number):
                    found.append(r)
        return found


@functools.cache
def _namespace() -> str:
    """Where a process's number means something: this host, and no container with numbers of its own."""
    with contextlib.suppress(OSError):
        return _host() + os.readlink("/proc/self/ns/pid")
    return _host()


def _lives(process: int) -> bool:
    """Whether it does; one that has ended and was not yet asked for by its parent does not."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/stat") as f:
        return f.read().rpartition(")")[2].split()[0] not in "ZX"
    return os.path.isdir(f"/proc/{process}") or not os.path.isdir("/proc/self")


def _host() -> str:
    """What tells this machine from others, also from one with the same name."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as f:
        return f.read().strip() + socket.gethostname()
    return socket.gethostname()


def join(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Cluster:
    """Make one world of all ranks, once in a process; every rank calls it.

    Raises:
      RuntimeError: a rank did not come in time, or this process belongs to another world already.
    """
    global _cluster
    if _cluster is not None:
        if (_cluster.rank, _cluster.size) != (rank, size):
            raise RuntimeError(
                f"tpu_dist: this process was rank {_cluster.rank} of {_cluster.size} and cannot become rank {rank} of "
                f"{size}: XLA's devices are joined once. Start new processes."
            )
        return _cluster
    exchange = _Exchange(store, rank, size, timeout)
    used = platform.started() or xla_bridge.backends_are_initialized()
    states = exchange.all("state", [used, _host()])
    before = tuple(r for r, (was_used, _) in enumerate(states) if was_used)
    one_host = len({host for _, host in states}) == 1
    if before:
        platform.start()
        _cluster = Cluster(rank, size, one_host, None, before)
        return _cluster
    _connect(exchange, one_host)
    platform.start()
    ids = exchange.all("device", platform.device(0).id)
    everywhere = {d.id: d for d in platform.device(0).client.devices()}
    _cluster = Cluster(rank, size, one_host, tuple(everywhere[i] for i in ids), ())
    return _cluster


_lifelines: list[socket.socket] = []  # open while this process lives
_gone: set[int] = set()
_heard = b""
_listening = threading.Lock()


def _hold(host: str, port: int, rank: int) -> None:
    """Open the connection that says that this rank lives."""
    line = socket.create_connection((host, port))
    line.sendall(b"%d\n" % rank)
    line.setblocking(False)
    _lifelines.append(line)


def gone() -> frozenset[int]:
    """The ranks whose process has ended, however it did."""
    global _heard
    with _listening:
        for line in _lifelines:
            with contextlib.suppress(OSError):
                while said := line.recv(4096):
                    _heard += said
        *whole, _heard = _heard.split(b"\n")
        _gone.update(map(int, filter(None, whole)))
        return frozenset(_gone)


def _connect(exchange: _Exchange, one_host: bool) -> None:
    """JAX's coordination service, which rank 0 starts, and this process's connections to it."""
    address: list[Any] = []
    if exchange.rank == 0:
        host = LOOPBACK if one_host else os.environ.get("MASTER_ADDR") or socket.gethostname()
        address = [host, *_start_service(LOOPBACK if one_host else "[::]", exchange.size)]
        _hold(host, address[2], exchange.rank)
    host, port, lifeline = exchange.from_first("coordinator", address)
    if exchange.rank != 0:
        _hold(host, lifeline, exchange.rank)
    client = _jax.get_distributed_runtime_client(
        f"{host}:{port}",
        exchange.rank,
        init_timeout=max(int(exchange.timeout.total_seconds()), 1),
        heartbeat_timeout=_HEARTBEAT_SECONDS,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    exchange.during(client.connect)
    state = distributed.global_state
    state.client, state.process_id, state.num_processes = client, exchange.rank, exchange.size
    state.coordinator_address = f"{host}:{port}"
    if platform.wanted() == "cpu":
        _use_gloo(client, one_host)


def _start_service(host: str, size: int) -> tuple[int, int]:
    """(the service's port, the port of the connection that says a rank lives)"""
    command = [sys.executable, "-P", coordinator.__file__, host, str(size), str(_HEARTBEAT_SECONDS)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    line = process.stdout.readline().split()
    if len(line) != 2:
        raise RuntimeError(f"tpu_dist: JAX's coordination service did not start on {host} (exit code {process.wait()})")
    _services.append(process)
    return int(line[0]), int(line[1])


_services: list[subprocess.Popen[bytes]] = []  # held, so that Python does not warn that one still runs


def _use_gloo(client: Any, one_host: bool) -> None:
    """Let XLA:CPU's collectives go through gloo, on loopback where all ranks are on this machine."""
    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=client, hostname=LOOPBACK if one_host else None, interface=None
    )
    factories = xla_bridge._backend_factories
    make = functools.partial(xla_bridge.make_cpu_client, collectives=collectives)
    factories["cpu"] = dataclasses.replace(factories["cpu"], factory=make)
