"""PyTorch's process groups: the backend's name, its kernels, and what an asynchronous operation hands back.

A group is PyTorch's own ``ProcessGroup``, which sends each call to the dispatcher by the tensors' device: CPU tensors
go to gloo, and tpu tensors come to kernels registered here. A Python subclass of ``ProcessGroup`` would replace the
group for every device, and the places that ask for the exact type would not know it.
"""

from __future__ import annotations

import collections
import datetime
import functools
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._library.fake_class_registry import FakeScriptObject
from torch.fx import Node

from torch_tpu.binding.registration import overriding
from torch_tpu.binding.registration import register as register_kernel

NAME = "tpu_dist"
_DEVICE = "tpu"
_NO_TIMEOUT = datetime.timedelta(0)
_KEEP_UNWAITED = 16384
_unwaited: dict[int, Any] = {}


def available() -> bool:
    return dist.is_available() and dist.is_gloo_available()


def register(create: Callable[[Any, Any], Any]) -> None:
    """Make ``tpu_dist`` the backend of tpu tensors, and of groups for which no backend is named.

    Args:
      create: called with PyTorch's options for every new group.
    """
    if not available():
        return
    # With ``device_id`` given, ``new_group`` calls it on the ranks that are not in the new group; gloo has none.
    dist.ProcessGroupGloo.perform_nocolor_split = lambda self, device: None  # type: ignore[attr-defined]
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=[_DEVICE])
    _complete_configurations()
    _renew_worlds()
    _name_by_members()
    _split_by_new_groups()
    _monitor_barriers()


def _is_ours(group: Any) -> bool:
    from torch.distributed import distributed_c10d as c10d

    return c10d.get_backend(group) == NAME or NAME in c10d.get_backend_config(group)


def _monitor_barriers() -> None:
    """``monitored_barrier`` of a group of this backend: gloo's, which PyTorch takes of groups of gloo alone."""
    from torch.distributed import distributed_c10d as c10d

    original = c10d.monitored_barrier

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        group = group or c10d._get_default_group()
        if c10d._rank_not_in_group(group) or not _is_ours(group):
            original(group, timeout, wait_all_ranks)
            return
        if timeout is None:
            timeout = backend_of(group).options._timeout
        c10d._check_valid_timeout(timeout)
        milliseconds = int(timeout / datetime.timedelta(milliseconds=1))
        tensor = torch.zeros(1, device=_DEVICE)  # says whose kernel is called
        torch.ops.c10d.monitored_barrier_(tensor, group.boxed(), [], milliseconds, wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


def _renew_worlds() -> None:
    """A default group that is made again in this process looks in places of its own in the store.

    torchrun's store stays, and PyTorch would find the addresses that gloo left there for the group before.
    """
    from torch.distributed import distributed_c10d as c10d

    original, made = c10d._new_process_group_helper, itertools.count()

    @functools.wraps(original)
    def new_process_group_helper(
        group_size: int, group_rank: int, ranks: list[int], backend: Any, store: Any, *args: Any, **kwargs: Any
    ) -> Any:  # fmt: skip
        if not ranks and store is not None and (number := next(made)):
            store = c10d.PrefixStore(f"world {number}", store)
        return original(group_size, group_rank, ranks, backend, store, *args, **kwargs)

    c10d._new_process_group_helper = new_process_group_helper


def _name_by_members() -> None:
    """A group that is made by its members alone is named by them and by how many such groups they have made.

    PyTorch names it by how many groups of any kind this process has, which differs where a member is in other groups
    than the rest; they then wait for each other under two names until the timeout.
    """
    from torch.distributed import distributed_c10d as c10d

    made: collections.Counter[tuple[int, ...]] = collections.Counter()

    def hash_ranks_to_str(ranks: Sequence[int]) -> str:
        made[tuple(ranks)] += 1
        text = "_".join(map(str, ranks)) + f"/{made[tuple(ranks)]}"
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    c10d._hash_ranks_to_str = hash_ranks_to_str


def _split_by_new_groups() -> None:
    """``split_group`` of a group of this backend: its parts are made as new groups, by their members alone.

    PyTorch's own asks the C++ backend that stands for the device to split itself, and a copy of gloo's options ends
    the process.
    """
    from torch.distributed import distributed_c10d as c10d

    original = c10d.split_group

    @functools.wraps(original)
    def split_group(
        parent_pg: Any = None, split_ranks: list[list[int]] | None = None, timeout: Any = None, pg_options: Any = None,
        group_desc: str | None = None, backend: Any = None,
    ) -> Any:  # fmt: skip
        parent = parent_pg or c10d._get_default_group()
        if not _is_ours(parent):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        if not split_ranks or any(not part for part in split_ranks):
            raise ValueError("split_ranks cannot be None or empty, and no part of it may be")
        members = ranks_of(parent)
        for part in split_ranks:
            if len(set(part)) != len(part) or not all(0 <= r < len(members) for r in part):
                raise ValueError(f"split_group: {part} are not ranks of a group of {len(members)}, each one once")
        mine = next((sorted(part) for part in split_ranks if parent.rank() in part), None)
        if mine is None:
            return None
        return c10d.new_group(
            [members[r] for r in mine], timeout=timeout, backend=backend, pg_options=pg_options,
            use_local_synchronization=True, group_desc=group_desc,
        )  # fmt: skip

    c10d.split_group = dist.split_group = split_group


def _complete_configurations() -> None:
    """A group made without naming a backend takes CPU tensors too, through gloo.

    PyTorch names the accelerator's backend alone there, and then refuses CPU tensors: what saves a checkpoint or
    gathers objects would need a group of its own.
    """
    from torch.distributed import distributed_c10d as c10d

    config = c10d.BackendConfig
    make = config.__init__

    @functools.wraps(make)
    def init(self: Any, backend: Any) -> None:
        make(self, backend)
        found = self.device_backend_map
        if found.get(_DEVICE) == NAME and len(found) == 1:
            found["cpu"] = c10d.Backend(c10d.Backend.GLOO)

    config.__init__ = init


def register_kernels(kernels: dict[str, Callable[..., Any]]) -> None:
    """Make these the kernels of ``c10d`` operators for tpu tensors, over PyTorch's, which would ask the C++ backend."""
    with overriding():
        for name, kernel in kernels.items():
            register_kernel(f"c10d::{name}", kernel)


def group_of(boxed: Any) -> Any:
    """The process group that a kernel was given."""
    return dist.ProcessGroup.unbox(boxed)


def group_in_graph(argument: Any) -> Any:
    """The process group that a collective of a graph names: by its name, or as an object that is an input."""
    from torch.distributed import distributed_c10d as c10d

    found = argument.meta["val"] if isinstance(argument, Node) else argument
    found = found.real_obj if is_object(found) else found
    return c10d._resolve_process_group(found) if isinstance(found, str) else found  # type: ignore


def is_object(value: Any) -> bool:
    """Whether the value of a node stands for an object of no type that graphs have: a device mesh, a group."""
    return isinstance(value, FakeScriptObject)


_OPERATIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")


@functools.cache
def _operation_names() -> dict[int, str]:
    return {int(getattr(dist.ReduceOp, name.upper())): name for name in _OPERATIONS}


def operation_of(boxed: Any) -> str:
    """The name of the reduction that a kernel was given."""
    return _operation_names()[int(boxed.op())]


def host_group(store: Any, rank: int, size: int, backend: Any) -> Any:
    """A process group of CPU tensors over a gloo backend, known to nobody else."""
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def gloo(store: Any, rank: int, size: int, timeout: datetime.timedelta, *, loopback: bool) -> Any:
    """A gloo backend; on the loopback interface where all ranks are on one host."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    host = {"hostname": "127.0.0.1"} if loopback else {}
    create = dist.ProcessGroupGloo.create_device if loopback else dist.ProcessGroupGloo.create_default_device
    options._devices = [create(**host)]
    return dist.ProcessGroupGloo(store, rank, size, options)  # type: ignore[call-overload]


def backend_of(group: Any) -> Any:
    """The C++ backend that stands for tpu in the group. PyTorch names none as the default where several are given, and
    then warns when the group ends."""
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    return group._get_backend(torch.device(_DEVICE))


class Work(dist._Work):  # type: ignore[name-defined,misc]
    """An operation under way, or done. What it waits for is an ``operation`` with ``poll``, ``wait`` and ``value``.

    C++ code (DDP, the functional collectives) keeps the C++ half of this object only, and finds the methods here
    through the Python half; which therefore lives until it has been waited for.
    """

    def __init__(self, operation: Any):
        super().__init__()
        self._operation = operation
        self._future: Any = None
        _unwaited[id(self)] = self
        if len(_unwaited) > _KEEP_UNWAITED:  # nobody waits for these; a send whose Work was thrown away
            _unwaited.pop(next(iter(_unwaited)), None)

    def wait(self, timeout: datetime.timedelta = _NO_TIMEOUT) -> bool:
        """Wait until the results are there; raises what went wrong."""
        _unwaited.pop(id(self), None)
        self._operation.wait(timeout.total_seconds() or None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        """Later work on the device comes after this: true of every stream, since results are values."""

    def is_completed(self) -> bool:
        return self._operation.poll()

    def is_success(self) -> bool:
        return self._operation.poll() and self._operation.error is None

    def exception(self) -> BaseException | None:
        return self._operation.error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._operation.value

    def source_rank(self) -> int:
        self.wait()
        return self._operation.source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future of the list of result tensors, which fails where the operation does."""
        if self._future is None:
            given: torch.futures.Future[Any] = torch.futures.Future()
            # An exception set on a Python future is known to Python callers only; one that a callback raises is C++'s.
            self._future = given.then(_outcome)
            self._operation.then(lambda: given.set_result(self._operation))
        return self._future

    get_future_result = get_future


def _outcome(given: Any) -> Any:
    operation = given.value()
    if operation.error is not None:
        raise operation.error
    return operation.value


def finished(value: list[torch.Tensor]) -> Any:
    """The boxed Work of an operation that is done."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()  # type: ignore[attr-defined]


def default_store() -> Any:
    """The store of the default group, and its error where there is none. Nobody else may hold it: a group that is made
    anew in this process would find what the one before has left there."""
    from torch.distributed import distributed_c10d as c10d

    return c10d._get_default_store()


def ranks_of(group: Any) -> list[int]:
    """The global ranks of a group's members, in the group's order."""
    return dist.get_process_group_ranks(group)
