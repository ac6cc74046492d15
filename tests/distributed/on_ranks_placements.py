"""Bodies that ``test_matrix`` runs on every rank: a DTensor moved from every placement to every other one."""

from __future__ import annotations

import itertools
import math
import os

import torch
from on_ranks import run_parts
from on_ranks_training import begin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ENDS = (Replicate(), Shard(0), Shard(1), Shard(-1))
PARTIAL = tuple(Partial(op) for op in ("sum", "avg", "max", "min"))


def full(dtype=torch.float32):
    return (torch.arange(30).reshape(5, 6) - 7).to(dtype)  # 5 rows do not split evenly


def _partial_values(x, placements, mesh):
    """This rank's values where they are partial: what reduces to ``x`` along every such dimension."""
    for i, p in enumerate(placements):
        if not isinstance(p, Partial):
            continue
        n, at = mesh.size(i), mesh.get_local_rank(i)
        if p.reduce_op == "sum":
            x = x * (at + 1) / sum(range(1, n + 1)) * 1.0
        elif p.reduce_op == "avg":
            x = x + at - (n - 1) / 2
        else:
            x = x + (at - (n - 1 if p.reduce_op == "max" else 0))
    return x


def _made(x, mesh, placements):
    if not any(isinstance(p, Partial) for p in placements):
        return distribute_tensor(x.to("tpu"), mesh, placements)
    whole = [Replicate() if isinstance(p, Partial) else p for p in placements]
    mine = _partial_values(x, placements, mesh)
    local = distribute_tensor(mine.to("tpu"), mesh, whole, src_data_rank=None).to_local()
    return DTensor.from_local(local, mesh, placements, shape=x.shape, stride=x.stride())


def _moves(mesh, sources, targets):
    count, x = 0, full()
    for source in sources:
        d = _made(x, mesh, source)
        torch.testing.assert_close(d.full_tensor().cpu(), x, msg=lambda m, s=source: f"{s}: {m}")
        for target in targets:
            moved = d.redistribute(mesh, target)
            assert tuple(moved.placements) == tuple(_positive(p) for p in target), (moved.placements, target)
            where = f"{source} to {target}"
            torch.testing.assert_close(moved.full_tensor().cpu(), x, msg=lambda m, w=where: f"{w}: {m}")
            if not any(isinstance(p, Partial) for p in target):
                wanted = distribute_tensor(x.to("tpu"), mesh, target).to_local()
                torch.testing.assert_close(moved.to_local(), wanted, msg=lambda m, w=where: f"{w}, local: {m}")
            count += 1
    print("moves:", count, flush=True)


def _positive(p):
    return Shard(1) if isinstance(p, Shard) and p.dim == -1 else p


def one_dimension():
    mesh = init_device_mesh("tpu", (SIZE,))
    _moves(mesh, [(p,) for p in (*ENDS, *PARTIAL)], [(p,) for p in ENDS])


def two_dimensions():
    mesh = init_device_mesh("tpu", (2, SIZE // 2))
    sources = list(itertools.product((Replicate(), Shard(0), Shard(1), *PARTIAL), repeat=2))
    # Two kinds of reduction at once do not commute, so PyTorch has no such tensor.
    mixed = [s for s in sources if len({p.reduce_op for p in s if isinstance(p, Partial)}) > 1]
    sources = [s for s in sources if s not in mixed]
    _moves(mesh, sources, list(itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2)))


def strided():
    """What FSDP2 over tensor parallel has: rows split over the second dimension first, then over the first."""
    mesh = init_device_mesh("tpu", (2, SIZE // 2), mesh_dim_names=("data", "tensor"))
    x = torch.arange(8 * SIZE * 3.0).reshape(8 * SIZE, 3)
    inner = distribute_tensor(x.to("tpu"), mesh["tensor"], [Shard(0)]).to_local()
    local = inner.chunk(2)[mesh.get_local_rank(0)].contiguous()
    placements = (_StridedShard(0, split_factor=SIZE // 2), Shard(0))
    d = DTensor.from_local(local, mesh, placements, shape=x.shape, stride=x.stride())
    torch.testing.assert_close(d.full_tensor().cpu(), x)
    for target in itertools.product((Replicate(), Shard(0), Shard(1)), repeat=2):
        if Shard(1) in target and math.prod(mesh.size(i) for i, p in enumerate(target) if p == Shard(1)) > 3:
            continue  # three columns
        moved = d.redistribute(mesh, target)
        torch.testing.assert_close(moved.full_tensor().cpu(), x, msg=lambda m, t=target: f"{t}: {m}")


def gradients():
    """The gradient of a move is a move."""
    mesh = init_device_mesh("tpu", (SIZE,))
    x, weights = full(), torch.arange(30.0).reshape(5, 6)
    for source, target in itertools.product(ENDS[:3], repeat=2):
        d = distribute_tensor(x.to("tpu"), mesh, [source]).requires_grad_()
        moved = d.redistribute(mesh, [target])
        (moved.square() * distribute_tensor(weights.to("tpu"), mesh, [target])).sum().full_tensor().backward()
        torch.testing.assert_close(d.grad.full_tensor().cpu(), 2 * x * weights, msg=lambda m: m)


def dtypes():
    mesh = init_device_mesh("tpu", (SIZE,))
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64):
        x = full(dtype)
        for source, target in itertools.product(ENDS[:3], repeat=2):
            moved = distribute_tensor(x.to("tpu"), mesh, [source]).redistribute(mesh, [target])
            assert torch.equal(moved.full_tensor().cpu(), x), (dtype, source, target)


ONE = (one_dimension, gradients, dtypes)
TWO = (two_dimensions, strided)


def everything(*names):
    begin()
    run_parts(ONE if SIZE == 2 else (*ONE, *TWO), names)
