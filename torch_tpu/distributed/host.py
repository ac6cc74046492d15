"""The same collectives through the hosts, by gloo: where the ranks' devices are not joined in one JAX world.

Every rank gathers every rank's operands and works out its own results, in PyTorch on the CPU. It is the slow way, and
it takes every type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from torch_tpu.distributed import values
from torch_tpu.distributed.group import Group

Done: TypeAlias = Callable[[], bool]
Finish: TypeAlias = Callable[[], None]


def run(
    group: Group, kind: str, reduction: str, ins: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], root: int | None
) -> tuple[Done, Finish]:
    """Start the collective. (whether it has ended, what then puts the results in ``outs``)."""
    row = values.bytes_of(list(ins))
    rows = [torch.empty_like(row) for _ in range(group.size)]
    work = group.host.allgather([rows], [row])
    likes = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in ins]

    def finish() -> None:
        work.wait()
        every = [values.from_bytes(r, likes) for r in rows]
        results = _compute(kind, reduction, group.rank, root, every, [tuple(t.shape) for t in outs])
        for t, value in zip(outs, results):
            values.write_host(t, value)

    return work.is_completed, finish


def _compute(
    kind: str, reduction: str, rank: int, root: int | None, every: list[list[torch.Tensor]], shapes: list[Any]
) -> list[torch.Tensor]:
    """This rank's results, from the operands of every rank."""
    size = len(every)
    if kind == "all_reduce":
        return [reduce(list(xs), reduction).reshape(s) for xs, s in zip(zip(*every), shapes)]
    if kind == "broadcast":
        assert root is not None
        return [x.reshape(s) for x, s in zip(every[root], shapes)]
    if kind == "all_gather":
        if len(shapes) == len(every[0]):
            return [torch.stack([x.reshape(-1) for x in xs]).reshape(s) for xs, s in zip(zip(*every), shapes)]
        return [_front(xs[0], s) for xs, s in zip(every, shapes)]
    if kind == "scatter":
        assert root is not None
        return [every[root][0].reshape(size, -1)[rank].reshape(shapes[0])]
    if kind == "all_to_all":
        if len(every[0]) == 1:
            return [torch.stack([xs[0].reshape(size, -1)[rank] for xs in every]).reshape(shapes[0])]
        return [xs[rank].reshape(s) for xs, s in zip(every, shapes)]
    assert kind == "reduce_scatter"
    if len(shapes) == len(every[0]):
        parts = [[x.reshape(size, -1)[rank] for x in xs] for xs in zip(*every)]
        return [reduce(p, reduction).reshape(s) for p, s in zip(parts, shapes)]
    return [_front(reduce([xs[rank] for xs in every], reduction), shapes[0])]


def _front(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return x.reshape(-1)[: math.prod(shape)].reshape(shape)


def reduce(xs: list[torch.Tensor], reduction: str) -> torch.Tensor:
    """The reduction of CPU tensors, in the order of the ranks; of truth values as in NCCL."""
    if xs[0].dtype == torch.bool:
        named = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}
        reduction = named.get(reduction, reduction)
    op = {"sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
          "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[reduction]  # fmt: skip
    out = xs[0]
    for x in xs[1:]:
        out = op(out, x)
    if reduction != "avg":
        return out
    whole = not (out.is_floating_point() or out.is_complex())
    return torch.div(out, len(xs), rounding_mode="trunc") if whole else out / len(xs)
