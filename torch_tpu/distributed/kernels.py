"""The kernels of ``c10d`` operators for tpu tensors: what every function of ``torch.distributed`` comes to."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tpu.binding import process_groups
from torch_tpu.distributed import collectives, group, host, values
from torch_tpu.distributed.group import Group
from torch_tpu.distributed.operation import Operation, in_order, in_thread
from torch_tpu.distributed.turns import Turn
from torch_tpu.lowering import dtypes
from torch_tpu.lowering.collectives import check_reduction
from torch_tpu.runtime import buffers, platform, transfer

Tensors = list[torch.Tensor]


def _start(
    g: Group,
    kind: str,
    ins: Sequence[torch.Tensor],
    outs: Sequence[torch.Tensor],
    *,
    reduction: str = "",
    root: int | None = None,
    wait: bool,
    timeout: int = -1,
    keep: bool = True,
    value: Tensors | None = None,
) -> Any:
    """Run a collective; the boxed Work.

    Args:
      wait: the caller waits for it at once.
      value: of the work's future, if it is not ``outs``. The rest as in ``_begin``.
    """
    operation = _begin(g, kind, ins, outs, reduction=reduction, root=root, timeout=timeout, keep=keep)
    if operation is None:
        return process_groups.finished(list(outs) if value is None else value)
    if value is not None:
        operation.value = value
    return _work(operation, wait)


def _begin(
    g: Group, kind: str, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], *, reduction: str = "",
    root: int | None = None, timeout: int = -1, keep: bool = True,
) -> Operation | None:  # fmt: skip
    """Begin a collective, by one XLA program where the devices are joined. None where there is nothing to do.

    Args:
      ins: this rank's operands, alike in number and type on every rank.
      outs: where the results go.
      timeout: milliseconds; -1 for the group's own.
      keep: whether this rank takes the results (of a reduce, one does). The operation's value is ``outs`` on all.
    """
    outs = list(outs)
    dtype = ins[0].dtype
    check_reduction(reduction, dtypes.to_jax(dtype))
    if any(t.dtype != dtype for t in (*ins, *outs)):
        raise ValueError(f"tpu_dist: {kind}: tensors must have one dtype, got {sorted({str(t.dtype) for t in ins})}")
    call = collectives.Call(
        kind, reduction, dtypes.to_jax(dtype), tuple(tuple(t.shape) for t in ins), tuple(tuple(t.shape) for t in outs)
    )
    what = call.words(root)
    turn = g.begin(what, (kind, reduction, dtype, tuple(t.numel() for t in ins)))
    seconds = _seconds(timeout)
    if not any(t.numel() for t in ins):
        return None
    if g.mesh is not None and _xla_takes(dtype):
        return _by_program(g, call, turn, ins, outs, root, seconds, keep=keep)
    turn.confirm()
    targets = outs if keep else [torch.empty_like(t, device="cpu") for t in outs]
    done, finish = host.run(g, kind, reduction, ins, targets, root)
    return Operation(g, turn.number, what, outs, done, finish, seconds)


def _by_program(
    g: Group, call: collectives.Call, turn: Turn, ins: Sequence[torch.Tensor], outs: Tensors, root: int | None,
    timeout: float | None, *, keep: bool,
) -> Operation:  # fmt: skip
    what, number = turn.what, turn.number
    taken = outs if keep else []
    run = collectives.prepare(g, call, [values.array_of(t) for t in ins], root)
    if platform.name() == "cpu":
        running = in_order(lambda: _ready(g, turn, run, scatters=call.kind in _SCATTERS))

        def finish() -> None:
            for t, a in zip(taken, running.result()):
                values.write(t, a)

        ended = running.ended
        return Operation(g, number, what, outs, ended.is_set, finish, timeout, ended.wait)
    compared = g.confirm_later(turn)
    arrays = run()
    for t, a in zip(taken, arrays):
        values.write(t, a)

    def done() -> bool:
        return compared.ended.is_set() and (compared.error is not None or all(map(buffers.is_ready, arrays)))

    def take() -> None:
        compared.result()
        transfer.wait(arrays)

    return Operation(g, number, what, outs, done, take, timeout)


_SCATTERS = frozenset({"reduce_scatter", "scatter"})  # whose programs have a reduce-scatter


def _ready(g: Group, turn: Turn, run: Callable[[], list[Any]], *, scatters: bool) -> list[Any]:
    turn.confirm()
    g.meet(always=scatters)
    arrays = run()
    transfer.wait(arrays)
    return arrays


def _seconds(timeout: int) -> float | None:
    """A timeout in milliseconds, where -1 stands for the group's own."""
    return timeout / 1000 if timeout > 0 else None


def _xla_takes(dtype: torch.dtype) -> bool:
    return not (dtype == torch.complex128 and platform.name() == "tpu")


def _work(operation: Operation, wait: bool) -> Any:
    if wait:
        operation.wait()
        return process_groups.finished(operation.value)
    return process_groups.Work(operation).boxed()


def _allreduce(tensors: Tensors, pg: Any, op: Any, sparse: Any = None, async_op: bool = True, timeout: int = -1) -> Any:
    if sparse is not None:
        raise NotImplementedError("tpu_dist: all_reduce of sparse tensors is not supported")
    return tensors, _allreduce_coalesced(tensors, pg, op, async_op, timeout)


def _allreduce_coalesced(tensors: Tensors, pg: Any, op: Any, async_op: bool = True, timeout: int = -1) -> Any:
    return _start(
        group.of(pg), "all_reduce", tensors, tensors, reduction=process_groups.operation_of(op), wait=not async_op,
        timeout=timeout,
    )  # fmt: skip


def _reduce(
    tensors: Tensors, pg: Any, op: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1
) -> Any:
    g = group.of(pg)
    return _start(
        g, "all_reduce", tensors, tensors, reduction=process_groups.operation_of(op), wait=not async_op,
        timeout=timeout, keep=g.rank == root,
    )  # fmt: skip


def _broadcast(tensors: Tensors, pg: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1) -> Any:
    g = group.of(pg)
    return tensors, _start(
        g, "broadcast", tensors, tensors, root=root, wait=not async_op, timeout=timeout, keep=g.rank != root
    )


def _padded(t: torch.Tensor, n: int) -> torch.Tensor:
    """The elements of ``t`` in a row, followed by zeros up to ``n``."""
    flat = t.detach().reshape(-1)
    return flat if flat.numel() == n else torch.cat([flat, flat.new_zeros(n - flat.numel())])


def _longest(ts: Tensors) -> int:
    return max(t.numel() for t in ts)


def _uneven(ts: Tensors) -> bool:
    return any(t.numel() != ts[0].numel() for t in ts)


def _allgather(outs: list[Tensors], ins: Tensors, pg: Any, async_op: bool = True, timeout: int = -1) -> Any:
    g = group.of(pg)
    _one("all_gather", ins)
    t = _fitting(ins[0], outs[0], g)
    return outs, _start(g, "all_gather", [t], outs[0], wait=not async_op, timeout=timeout)


def _fitting(t: torch.Tensor, outs: Tensors, g: Group) -> torch.Tensor:
    """What this rank gives to an all_gather into ``outs``: where the parts are uneven, padded to the longest."""
    _count("all_gather", outs, g)
    if _uneven(outs):
        if t.numel() != outs[g.rank].numel():
            raise ValueError(
                f"tpu_dist: all_gather: rank {g.rank} gives {tuple(t.shape)}, and its place in the list of results has "
                f"{tuple(outs[g.rank].shape)}"
            )
        return _padded(t, _longest(outs))
    if t.numel() != outs[0].numel():
        raise ValueError(f"tpu_dist: all_gather: tensor {tuple(t.shape)} does not fit results {tuple(outs[0].shape)}")
    return t


def _one(name: str, ts: Sequence[Any]) -> None:
    if len(ts) != 1:
        raise ValueError(f"tpu_dist: {name}: one tensor for this process's one device, got {len(ts)}")


def _count(name: str, ts: Sequence[Any], g: Group) -> None:
    if len(ts) != g.size:
        raise ValueError(f"tpu_dist: {name}: a list of {len(ts)} tensors for a group of {g.size} ranks")


def _times(name: str, big: torch.Tensor, small: torch.Tensor, g: Group) -> None:
    if big.numel() != small.numel() * g.size:
        raise ValueError(
            f"tpu_dist: {name}: {tuple(big.shape)} does not hold {g.size} times {tuple(small.shape)}, one for each rank"
        )


def _allgather_base(
    out: torch.Tensor, t: torch.Tensor, pg: Any, async_op: bool = True, timeout: int = -1
) -> Any:  # fmt: skip
    return out, _allgather_into([out], [t], pg, async_op, timeout)


def _allgather_into(outs: Tensors, ins: Tensors, pg: Any, async_op: bool = True, timeout: int = -1) -> Any:
    g = group.of(pg)
    for o, t in zip(outs, ins):
        _times("all_gather", o, t, g)
    return _start(g, "all_gather", ins, outs, wait=not async_op, timeout=timeout)


def _allgather_coalesced(lists: list[Tensors], ins: Tensors, pg: Any, async_op: bool = True) -> Any:
    """``lists[i][r]`` is what rank r gave as ``ins[i]``."""
    g = group.of(pg)
    begun = [_begin(g, "all_gather", [_fitting(t, out, g)], out) for out, t in zip(lists, ins, strict=True)]
    results = [t for out in lists for t in out]
    return _together(g, [o for o in begun if o is not None], results, not async_op)


def _together(g: Group, parts: list[Operation], value: Tensors, wait: bool) -> Any:
    """The boxed Work of several operations: each one's results are put in place when it is waited for."""
    if not parts:
        return process_groups.finished(value)

    def finish() -> None:
        for part in parts:
            part.wait()

    last = parts[-1]
    done = lambda: all(part.poll() for part in parts)  # noqa: E731
    return _work(Operation(g, last.number, last.what, value, done, finish), wait)


def _reduce_scatter(
    outs: Tensors, ins: list[Tensors], pg: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    g = group.of(pg)
    _one("reduce_scatter", outs)
    _count("reduce_scatter", ins[0], g)
    parts = ins[0]
    if parts[g.rank].numel() != outs[0].numel():
        raise ValueError(
            f"tpu_dist: reduce_scatter: result {tuple(outs[0].shape)} does not fit part {tuple(parts[g.rank].shape)}"
        )
    if _uneven(parts):
        parts = [_padded(t, _longest(ins[0])) for t in parts]
    return outs, _start(
        g, "reduce_scatter", parts, outs, reduction=process_groups.operation_of(op), wait=not async_op, timeout=timeout
    )


def _reduce_scatter_base(
    out: torch.Tensor, t: torch.Tensor, pg: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    return out, _reduce_scatter_into([out], [t], pg, op, async_op, timeout)


def _reduce_scatter_into(
    outs: Tensors, ins: Tensors, pg: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    g = group.of(pg)
    for o, t in zip(outs, ins):
        _times("reduce_scatter", t, o, g)
    return _start(
        g, "reduce_scatter", ins, outs, reduction=process_groups.operation_of(op), wait=not async_op, timeout=timeout
    )


def _alltoall_base(
    out: torch.Tensor, t: torch.Tensor, pg: Any, out_splits: list[int], in_splits: list[int], async_op: bool = True,
    timeout: int = -1,
) -> Any:  # fmt: skip
    g = group.of(pg)
    if not out_splits and not in_splits:
        if t.numel() != out.numel() or (t.dim() and t.shape[0] % g.size):
            raise ValueError(
                f"tpu_dist: all_to_all_single: {tuple(t.shape)} to {tuple(out.shape)} is not {g.size} equal parts"
            )
        return _start(g, "all_to_all", [t], [out], wait=not async_op, timeout=timeout)
    gives, takes = _row_bytes(t, in_splits, g), _row_bytes(out, out_splits, g)
    return _exchange(g, [t], [out], gives, takes, not async_op, timeout)


def _row_bytes(t: torch.Tensor, splits: list[int], g: Group) -> list[int]:
    splits = splits or [t.shape[0] // g.size] * g.size
    _count("all_to_all_single (sizes)", splits, g)
    if sum(splits) != t.shape[0]:
        raise ValueError(f"tpu_dist: all_to_all_single: sizes {splits} do not add up to {t.shape[0]}")
    row = math.prod(t.shape[1:]) * t.element_size()
    return [n * row for n in splits]


def _alltoall(outs: Tensors, ins: Tensors, pg: Any, async_op: bool = True, timeout: int = -1) -> Any:
    g = group.of(pg)
    _count("all_to_all", outs, g)
    _count("all_to_all", ins, g)
    gives, takes = [values.size_in_bytes(t) for t in ins], [values.size_in_bytes(t) for t in outs]
    return outs, _exchange(g, ins, outs, gives, takes, not async_op, timeout)


def _exchange(
    g: Group, ins: Tensors, outs: Tensors, gives: list[int], takes: list[int], wait: bool, timeout: int
) -> Any:
    """All to all in parts of any size. A rank knows its own sizes only, so no one program fits: through the hosts."""
    what = f"all_to_all of {ins[0].dtype} in parts"
    turn = g.begin(what, ("all_to_all parts", ins[0].dtype))
    turn.confirm()
    row = values.bytes_of(ins)
    result = torch.empty(sum(takes), dtype=torch.uint8)
    work = g.host.alltoall_base(result, row, takes, gives)

    def finish() -> None:
        work.wait()
        for t, value in zip(outs, values.from_bytes(result, outs)):
            values.write_host(t, value)

    return _work(Operation(g, turn.number, what, outs, work.is_completed, finish, _seconds(timeout)), wait)


def _gather(outs: list[Tensors], ins: Tensors, pg: Any, root: int, async_op: bool = True, timeout: int = -1) -> Any:
    g = group.of(pg)
    _one("gather", ins)
    if g.rank == root:
        _count("gather", outs[0], g)
        results = outs[0]
    else:
        results = [torch.empty_like(ins[0]) for _ in range(g.size)]  # memory that is never written is never made
    return _start(
        g, "all_gather", ins, results, wait=not async_op, timeout=timeout, keep=g.rank == root,
        value=results if g.rank == root else [],
    )  # fmt: skip


def _scatter(outs: Tensors, ins: list[Tensors], pg: Any, root: int, async_op: bool = True, timeout: int = -1) -> Any:
    g = group.of(pg)
    _one("scatter", outs)
    out = outs[0]
    if g.rank == root:
        _count("scatter", ins[0], g)
        if any(t.numel() != out.numel() for t in ins[0]):
            raise ValueError("tpu_dist: scatter: the parts must have the result's size")
        whole = torch.stack([t.detach().reshape(-1) for t in ins[0]])
    else:
        whole = torch.empty((g.size, out.numel()), dtype=out.dtype, device=out.device)
    return outs, _start(g, "scatter", [whole], outs, root=root, wait=not async_op, timeout=timeout)


def _send(tensors: Tensors, pg: Any, dst: int, tag: int) -> Any:
    g = group.of(pg)
    _one("send", tensors)
    work = g.host.send([values.bytes_of(tensors)], dst, tag)
    running = in_thread(work.wait)
    what = f"send of {tensors[0].dtype}[{tensors[0].numel()}] to rank {g.ranks[dst]}"
    ended = running.ended
    operation = Operation(g, 0, what, tensors, ended.is_set, running.result, pause=ended.wait, peers=[g.ranks[dst]])
    return process_groups.Work(operation).boxed()


def _receive(tensors: Tensors, g: Group, src: int | None, tag: int) -> Any:
    _one("recv", tensors)
    row = torch.empty(values.size_in_bytes(tensors[0]), dtype=torch.uint8)
    work = g.host.recv_anysource([row], tag) if src is None else g.host.recv([row], src, tag)
    running = in_thread(work.wait)
    who = "any rank" if src is None else f"rank {g.ranks[src]}"

    def finish() -> None:
        running.result()
        operation.source = work._source_rank()
        values.write_host(tensors[0], values.from_bytes(row, tensors)[0])

    what = f"recv of {tensors[0].dtype}[{tensors[0].numel()}] from {who}"
    operation = Operation(
        g,
        0,
        what,
        tensors,
        running.ended.is_set,
        finish,
        pause=running.ended.wait,
        peers=g.ranks if src is None else [g.ranks[src]],
    )
    return process_groups.Work(operation).boxed()


def _recv(tensors: Tensors, pg: Any, src: int, tag: int) -> Any:
    return _receive(tensors, group.of(pg), src, tag)


def _recv_any_source(tensors: Tensors, pg: Any, tag: int) -> Any:
    return _receive(tensors, group.of(pg), None, tag)


def _barrier(tensor: torch.Tensor, pg: Any, device_ids: list[int], async_op: bool = True, timeout: int = -1) -> Any:
    """All ranks are here, and each one's device has done what it was given."""
    g = group.of(pg)
    g.settle()
    turn = g.begin("barrier", "barrier")
    turn.confirm()
    torch.tpu.synchronize()  # type: ignore[attr-defined]
    work = g.host.barrier()
    operation = Operation(g, turn.number, "barrier", [], work.is_completed, work.wait, _seconds(timeout))
    return _work(operation, not async_op)


def _monitored_barrier(
    tensor: torch.Tensor, pg: Any, device_ids: list[int], timeout: int, wait_all_ranks: bool
) -> None:
    g = group.of(pg)
    g.settle()
    torch.tpu.synchronize()  # type: ignore[attr-defined]
    g.host.monitored_barrier(datetime.timedelta(milliseconds=timeout), wait_all_ranks)


KERNELS = {
    "allreduce_": _allreduce,
    "allreduce_coalesced_": _allreduce_coalesced,
    "reduce_": _reduce,
    "broadcast_": _broadcast,
    "allgather_": _allgather,
    "_allgather_base_": _allgather_base,
    "allgather_coalesced_": _allgather_coalesced,
    "allgather_into_tensor_coalesced_": _allgather_into,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_into,
    "alltoall_base_": _alltoall_base,
    "alltoall_": _alltoall,
    "gather_": _gather,
    "scatter_": _scatter,
    "send": _send,
    "recv_": _recv,
    "recv_any_source_": _recv_any_source,
    "barrier": _barrier,
    "monitored_barrier_": _monitored_barrier,
}
