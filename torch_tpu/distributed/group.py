"""A process group as its kernels see it: who is in it, their devices, and how many operations it has run."""

from __future__ import annotations

import collections
import functools
import os
import time
import weakref
from typing import Any

import jax
import numpy as np
import torch.distributed as dist

from torch_tpu.binding import process_groups
from torch_tpu.distributed import board, turns
from torch_tpu.distributed.operation import Running, in_order
from torch_tpu.distributed.turns import Turn
from torch_tpu.lowering.collectives import AXIS
from torch_tpu.runtime import cluster, platform

_NAP_SECONDS = 0.05
_meetings: collections.Counter[tuple[board.Board, tuple[int, ...]]] = collections.Counter()  # of ranks, in a world


class Group:
    """``ranks`` are the members' global ranks; ``rank`` is this process's place among them."""

    def __init__(self, group: Any):
        backend = process_groups.backend_of(group)
        self.name: str = group.group_name
        self.ranks = process_groups.ranks_of(group)
        self.rank, self.size = group.rank(), group.size()
        self.global_rank = self.ranks[self.rank]
        self.timeout: float = backend.options._timeout.total_seconds()
        self.number = 0
        # CPU copies go through this: the gloo that stands for the device in PyTorch's own group.
        self.host = process_groups.host_group(group.get_group_store(), self.rank, self.size, backend)
        self._agreed: set[Any] = set()
        self._turns = turns.Turns(self)
        self._asked: list[Running] = []

    @functools.cached_property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The members' devices; None where programs cannot span them, and values go through the hosts."""
        if self.size == 1:
            return jax.sharding.Mesh(np.array([platform.device(0)]), (AXIS,))
        world = cluster.current()
        if world is None or world.devices is None:
            return None
        return jax.sharding.Mesh(np.array([world.devices[r] for r in self.ranks]), (AXIS,))

    @functools.cached_property
    def sharding(self) -> jax.sharding.NamedSharding:
        assert self.mesh is not None
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(AXIS))

    def begin(self, what: str, key: Any) -> Turn:
        """The turn of a new operation. One that this group has not run yet is compared with the others' here, any other
        one by whoever runs it, as part of its running.

        Raises:
          DistBackendError: another rank runs something else.
        """
        self.raise_if_disagreed()
        self.number += 1
        turn = self._turns.next(self.number, what)
        if self.size > 1 and (key not in self._agreed or _checks_all()):
            turn.confirm(always=True)
            self._agreed.add(key)
        return turn

    def meet(self, *, always: bool) -> None:
        """Wait until every member is here, as long as the group's timeout lets it. XLA:CPU gives a rank that is late 30
        seconds, where a program is the first over these devices, and where one has a reduce-scatter.

        Args:
          always: also where the program is not the first.

        Raises:
          DistBackendError: a rank failed, or did not come.
        """
        place = board.current()
        key = (place, tuple(self.ranks))
        if self.size == 1 or (key in _meetings and not always):
            return
        _meetings[key] += 1
        name, wanted = f"here/{key[1]}", self.size * _meetings[key]
        until, nap = time.monotonic() + self.timeout, 0.0002
        here = place.count(name, 1)
        while here < wanted:
            if place.failure() is not None or time.monotonic() > until:
                raise dist.DistBackendError(f"tpu_dist: {wanted - here} of ranks {self.ranks} did not come")
            time.sleep(nap)
            nap = min(nap * 1.5, _NAP_SECONDS)
            here = place.count(name)

    def confirm_later(self, turn: Turn) -> Running:
        """Compare it while the device works. What is wrong is raised by the next operation, or who takes the result."""
        running = in_order(turn.confirm)
        self._asked.append(running)
        return running

    def settle(self) -> None:
        """Wait until all operations so far have been compared: before the ranks wait for their devices. One comparison
        is one request to the store, which waits for no other rank."""
        for running in tuple(self._asked):
            running.ended.wait(self.timeout)
        self.raise_if_disagreed()

    def raise_if_disagreed(self) -> None:
        while self._asked and self._asked[0].ended.is_set():
            self._asked.pop(0).result()


@functools.cache
def _checks_all() -> bool:
    return os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"


_groups: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()


def of(boxed: Any) -> Group:
    """The group of a kernel's argument."""
    return known(process_groups.group_of(boxed))


def known(group: Any) -> Group:
    """What is kept of a process group."""
    found = _groups.get(group)
    if found is None:
        found = _groups[group] = Group(group)
    return found
