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
from typing import Any

from jax._src import distributed, xla_bridge
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

from torch_tpu.runtime import coordinator, platform

LOOPBACK = "127.0.0.1"
_HEARTBEAT_SECONDS = 100


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
        try:
            self.store.wait([key], self.timeout)
        except Exception as e:
            seconds = self.timeout.total_seconds()
            raise RuntimeError(
                f"tpu_dist: rank {self.rank} waited {seconds:g} s in init_process_group; {who} did not come: {e}"
            ) from e
        return self.store.get(key)


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


def _connect(exchange: _Exchange, one_host: bool) -> None:
    """JAX's coordination service, which rank 0 starts, and this process's connections to it."""
    address: list[Any] = []
    if exchange.rank == 0:
        host = LOOPBACK if one_host else os.environ.get("MASTER_ADDR") or socket.gethostname()
        address = [host, *_start_service(LOOPBACK if one_host else "[::]", exchange.size)]
        _lifelines.append(socket.create_connection((host, address[2])))
    host, port, lifeline = exchange.from_first("coordinator", address)
    if exchange.rank != 0:
        _lifelines.append(socket.create_connection((host, lifeline)))
    client = _jax.get_distributed_runtime_client(
        f"{host}:{port}",
        exchange.rank,
        init_timeout=max(int(exchange.timeout.total_seconds()), 1),
        heartbeat_timeout=_HEARTBEAT_SECONDS,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state = distributed.global_state
    state.client, state.process_id, state.num_processes = client, exchange.rank, exchange.size
    state.coordinator_address = f"{host}:{port}"
    if platform.wanted() == "cpu":
        _use_gloo(client, one_host)


def _start_service(host: str, size: int) -> tuple[int, int]:
    """(the service's port, the port of the connection that says a rank lives)"""
    command = [sys.executable, "-P", coordinator.__file__, host, str(size), str(_HEARTBEAT_SECONDS)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
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
