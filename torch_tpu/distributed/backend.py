"""What PyTorch calls when a process group is made."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from torch_tpu.binding import ddp, dtensor, fsdp, process_groups
from torch_tpu.distributed import board, kernels
from torch_tpu.distributed.agreement import Place
from torch_tpu.distributed.operation import Operation, in_thread
from torch_tpu.runtime import cluster, launch

_registered = False


def create(options: Any, backend_options: Any) -> Any:
    """The C++ backend that stands for tpu in a new group: gloo, through which values go that pass by the hosts.

    Calls on tpu tensors do not reach it; they come to ``kernels``. The default group joins the ranks in one JAX world.
    """
    global _registered
    if not _registered:
        process_groups.register_kernels(kernels.KERNELS)
        ddp.install()
        dtensor.install()
        fsdp.install()
        _registered = True
    if not options.global_ranks_in_group:
        _join(options)
    world = cluster.current()
    made = _host_backend(options, loopback=world is not None and world.one_host)
    made.options.global_ranks_in_group = options.global_ranks_in_group
    made.options.group_name = options.group_id
    made._set_sequence_number_for_group()
    return made


def _host_backend(options: Any, *, loopback: bool) -> Any:
    """The gloo of a group. Its members wait for each other in C++, so one that fails meanwhile is looked for here."""
    rank, ranks = options.group_rank, list(options.global_ranks_in_group)
    make = functools.partial(
        process_groups.gloo, rank=rank, size=options.group_size, timeout=options.timeout, loopback=loopback
    )
    if not ranks:  # of the world, whose ranks have just met
        return make(options.store)
    store = options.store.clone()  # a connection of its own: one that waits answers nobody else
    making = in_thread(functools.partial(make, store))
    place = Place(options.group_id, ranks, rank, ranks[rank], options.timeout.total_seconds())
    what, ended = f"making group {options.group_id!r}", making.ended
    Operation(place, 0, what, [], ended.is_set, making.result, pause=ended.wait, peers=ranks).wait()
    return making.value


def _join(options: Any) -> None:
    launched = launch.current()
    if launched is not None:
        ddp.let_index_be_named(launched.local_rank)
    board.install(options.group_rank)
    if options.group_size == 1:
        return
    world = cluster.join(options.store, options.group_rank, options.group_size, options.timeout)
    if world.used_before and world.rank == 0:
        warnings.warn(
            f"tpu_dist: device tpu was used before init_process_group on rank(s) {list(world.used_before)}: "
            "collectives go through the hosts and are slow. Call init_process_group first.",
            RuntimeWarning,
            stacklevel=2,
        )
