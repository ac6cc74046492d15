"""What a launcher says of this process (torchrun's variables), and what libtpu must be told from it.

Nothing here imports JAX: libtpu reads its variables once, when it is loaded, so they are worked out before.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping

FIRST_PORT = 8476  # of the processes of a host, on which libtpu's talk to each other; libtpu's own default
# How chips lie on a host, by their number: x fastest, which is the order of the chips' indices.
_HOST_BOUNDS = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


@dataclasses.dataclass(frozen=True)
class Launch:
    """This process among those that were started together."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @property
    def one_host(self) -> bool:
        return self.local_world_size == self.world_size


def current(environment: Mapping[str, str] | None = None) -> Launch | None:
    """What torchrun (or a launcher that sets its variables) says; None where this process was started alone."""
    env = os.environ if environment is None else environment
    try:
        rank, world, local = int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"])
        local_world = int(env.get("LOCAL_WORLD_SIZE", world if local == rank else 0) or 0)
    except (KeyError, ValueError):
        return None
    if world < 2 or not 0 <= rank < world:
        return None
    return Launch(rank, world, local, local_world or world)


@functools.cache
def _local_rank() -> int:
    launch = current()
    return launch.local_rank if launch is not None else 0


def resolve(index: int) -> int:
    """The index of the device that a program of many processes means by ``index``.

    A launched process has one device, at index 0. Scripts written for GPUs, where every process sees every GPU, name
    it by their local rank; so that number is another name of index 0.
    """
    return 0 if index and index == _local_rank() else index


def forget() -> None:
    """Read the environment again: it has been changed."""
    _local_rank.cache_clear()


def launched() -> bool:
    """Whether this process is one of several, which have one device each."""
    return current() is not None


def _bounds(text: str, name: str) -> tuple[int, int, int]:
    try:
        parts = tuple(int(p) for p in text.replace("x", ",").split(","))
    except ValueError:
        parts = ()
    if not 1 <= len(parts) <= 3 or any(p < 1 for p in parts):
        raise ValueError(f"{name}={text!r}: expected two or three sizes, as in 2,2,1")
    x, y, z = (*parts, 1, 1)[:3]
    return x, y, z


def tpu_variables(launch: Launch, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which libtpu gives each process of ``launch`` one chip of a slice.

    Args:
      environment: what is known of the slice: TPU_WORKER_HOSTNAMES and TPU_HOST_BOUNDS where it has several hosts
        (GKE sets both); TPU_CHIPS_PER_HOST_BOUNDS where a host's chips do not lie as usual. What libtpu reads and is
        already there stays, so a user's own setting wins.

    Raises:
      ValueError: the number of processes does not fit the chips, or the hosts of the slice are not known.
    """
    if "TPU_PROCESS_BOUNDS" in environment and "TPU_VISIBLE_CHIPS" in environment:
        return {}
    per_host = launch.local_world_size
    if launch.world_size % per_host:
        raise ValueError(
            f"tpu: {launch.world_size} processes on hosts of {per_host}: every host must run as many, one a chip"
        )
    text = environment.get("TPU_CHIPS_PER_HOST_BOUNDS")
    on_host = _bounds(text, "TPU_CHIPS_PER_HOST_BOUNDS") if text else _HOST_BOUNDS.get(per_host)
    if on_host is None or on_host[0] * on_host[1] * on_host[2] != per_host:
        raise ValueError(
            f"tpu: {per_host} processes on a host, where a process has one chip: a host has 1, 2, 4 or 8 chips (or as "
            "many as TPU_CHIPS_PER_HOST_BOUNDS says); start one process a chip with torchrun --nproc-per-node"
        )
    nodes = launch.world_size // per_host
    hosts = _hosts(nodes, environment)
    grid = (1, 1, 1)
    if nodes > 1:
        if "TPU_HOST_BOUNDS" not in environment:
            raise ValueError(f"tpu: {nodes} hosts, and TPU_HOST_BOUNDS does not say how they lie (as in 2,2,1)")
        grid = _bounds(environment["TPU_HOST_BOUNDS"], "TPU_HOST_BOUNDS")
        if grid[0] * grid[1] * grid[2] != nodes:
            raise ValueError(f"tpu: TPU_HOST_BOUNDS={environment['TPU_HOST_BOUNDS']!r} are not {nodes} hosts")
    whole = tuple(g * c for g, c in zip(grid, on_host))
    ports = range(FIRST_PORT, FIRST_PORT + per_host)
    addresses = [""] * launch.world_size
    mine = 0
    for node in range(nodes):
        for local in range(per_host):
            task = _task(_place(node, grid), _place(local, on_host), on_host, whole)
            addresses[task] = f"{hosts[node]}:{ports[local]}"
            if node * per_host + local == launch.rank:
                mine = task
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": ",".join(map(str, whole)),
        "TPU_VISIBLE_CHIPS": str(launch.local_rank),
        "TPU_PROCESS_ADDRESSES": ",".join(addresses),
        "TPU_PROCESS_PORT": str(ports[launch.local_rank]),
        "CLOUD_TPU_TASK_ID": str(mine),
    }


def _hosts(nodes: int, environment: Mapping[str, str]) -> list[str]:
    if nodes == 1:
        return ["127.0.0.1"]
    hosts = [h.strip() for h in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if h.strip()]
    if len(hosts) != nodes:
        raise ValueError(
            f"tpu: {nodes} hosts, but TPU_WORKER_HOSTNAMES names {len(hosts)}; set it to their addresses, in the order "
            "of torchrun's nodes"
        )
    return hosts


def _place(index: int, bounds: tuple[int, int, int]) -> tuple[int, int, int]:
    return index % bounds[0], index // bounds[0] % bounds[1], index // (bounds[0] * bounds[1])


def _task(node: tuple[int, ...], chip: tuple[int, ...], on_host: tuple[int, ...], whole: tuple[int, ...]) -> int:
    """The number of the process at a chip, which counts over the whole slice: not its rank, which counts by host."""
    x, y, z = (n * h + c for n, h, c in zip(node, on_host, chip))
    return x + whole[0] * (y + whole[1] * z)


def set_tpu_variables() -> None:
    """Put the variables of this process in its environment; nothing where it was started alone."""
    launch = current()
    if launch is not None:
        for name, value in tpu_variables(launch, os.environ).items():
            os.environ.setdefault(name, value)
