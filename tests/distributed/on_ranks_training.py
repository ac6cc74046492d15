"""Bodies that ``test_training`` runs on every rank: training over several ranks equals training in one process."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from on_ranks import run_parts
from torch import nn

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, ROWS, WIDTH = 3, 4, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def batches():
    g = torch.Generator().manual_seed(1)
    return [torch.randn(SIZE * ROWS, WIDTH, generator=g) for _ in range(STEPS)]


def train(net, rows, **options):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, **options)
    losses = []
    for x in batches():
        loss = net(rows(x)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def reference():
    net = model()
    losses = train(net, lambda x: x)
    return net.state_dict(), [float(x) for x in losses]


def mine(x):
    return x[RANK * ROWS : (RANK + 1) * ROWS].to("tpu")


def check(state, losses, what):
    wanted, wanted_losses = reference()
    for name, value in state.items():
        torch.testing.assert_close(
            value.cpu(), wanted[name], rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{what} {n}: {m}"
        )
    got = torch.stack(losses)
    dist.all_reduce(got, dist.ReduceOp.AVG)
    torch.testing.assert_close(got.cpu(), torch.tensor(wanted_losses), rtol=1e-5, atol=1e-5)


def begin():
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()


def functional():
    from torch.distributed import _functional_collectives as funcol

    world = dist.group.WORLD
    x = torch.arange(4.0, device="tpu") + RANK
    y = funcol.all_reduce(x, "sum", world)
    assert y.tolist() == [SIZE * i + SIZE * (SIZE - 1) / 2 for i in range(4)] and x.tolist() == [
        i + RANK for i in range(4)
    ]
    y = funcol.all_gather_tensor(x, 0, world)
    assert y.tolist() == [i + r for r in range(SIZE) for i in range(4)]
    y = funcol.reduce_scatter_tensor(torch.ones(2 * SIZE, device="tpu"), "avg", 0, world)
    assert y.tolist() == [1.0, 1.0]
    y = funcol.all_to_all_single(torch.arange(float(SIZE), device="tpu") + 10 * RANK, None, None, world)
    assert y.tolist() == [10.0 * r + RANK for r in range(SIZE)]
    y = funcol.broadcast(x, 0, world)
    assert y.tolist() == [0, 1, 2, 3]
    x = torch.ones(2, device="tpu", requires_grad=True)
    y = funcol.all_gather_tensor_autograd(x, 0, world)
    (y * torch.arange(1.0, 2 * SIZE + 1, device="tpu")).sum().backward()
    first = 2 * RANK + 1
    assert x.grad.tolist() == [SIZE * first, SIZE * (first + 1)], x.grad
    x = torch.ones(2 * SIZE, device="tpu", requires_grad=True)
    y = funcol.reduce_scatter_tensor_autograd(x, "sum", 0, world)
    (y * (RANK + 1)).sum().backward()
    assert x.grad.tolist() == [r + 1.0 for r in range(SIZE) for _ in range(2)]
    from torch.distributed.nn import functional as differentiable

    x = torch.full((2,), RANK + 1.0, device="tpu", requires_grad=True)
    differentiable.all_reduce(x).square().sum().backward()
    total = SIZE * (SIZE + 1) / 2
    assert x.grad.tolist() == [2 * total * SIZE] * 2, x.grad


def ddp():
    from torch.nn.parallel import DistributedDataParallel

    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}):
        net = DistributedDataParallel(model().to("tpu"), device_ids=[int(os.environ["LOCAL_RANK"])], **options)
        losses = train(net, mine)
        check(net.module.state_dict(), losses, f"DDP {options}")
    net = DistributedDataParallel(model().to("tpu"))
    with net.no_sync():
        net(mine(batches()[0])).square().mean().backward()
    own = net.module[0].up.weight.grad.clone()
    net(mine(batches()[0])).square().mean().backward()
    both = 2 * own  # the second backward averages what has been summed up
    dist.all_reduce(both, dist.ReduceOp.AVG)
    torch.testing.assert_close(net.module[0].up.weight.grad.cpu(), both.cpu(), rtol=1e-5, atol=1e-6)


def fsdp():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    net = model().to("tpu")
    for block in net:
        fully_shard(block)
    fully_shard(net)
    losses = train(net, mine)
    assert net[0].up.weight.to_local().shape[0] == 2 * WIDTH // SIZE
    check({n: p.full_tensor() for n, p in net.state_dict().items()}, losses, "fully_shard")
    net = model().to("tpu")
    fully_shard(net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    y = net(mine(batches()[0]))
    assert y.dtype == torch.bfloat16
    y.float().square().mean().backward()
    assert net[0].up.weight.grad.dtype == torch.float32


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("tpu", (SIZE,))
    g = torch.Generator().manual_seed(3)
    full = torch.randn(5, 6, generator=g)  # 5 rows do not split evenly
    sources = [distribute_tensor(full.to("tpu"), mesh, [s]) for s in (Replicate(), Shard(0), Shard(1))]
    sources.append(DTensor.from_local((full / SIZE).to("tpu"), mesh, [Partial()]))
    for d in sources:
        for target in (Replicate(), Shard(0), Shard(1)):
            moved = d.redistribute(mesh, [target])
            assert moved.placements == (target,)
            torch.testing.assert_close(moved.full_tensor().cpu(), full, msg=lambda m, d=d, t=target: f"{d} {t}: {m}")
    largest = DTensor.from_local(full.to("tpu") + RANK, mesh, [Partial("max")])
    torch.testing.assert_close(largest.full_tensor().cpu(), full + SIZE - 1)
    a = distribute_tensor(full.to("tpu"), mesh, [Shard(0)])
    b = distribute_tensor(full.t().contiguous().to("tpu"), mesh, [Shard(1)])
    torch.testing.assert_close((a @ b).full_tensor().cpu(), full @ full.t())
    torch.testing.assert_close(a.sum().full_tensor().cpu(), full.sum())


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("tpu", (SIZE,))
    net = model().to("tpu")
    parallelize_module(
        net,
        mesh,
        {f"{i}.{n}": s for i in range(2) for n, s in (("up", ColwiseParallel()), ("down", RowwiseParallel()))},
    )
    losses = train(net, lambda x: x.to("tpu"), foreach=False)  # PyTorch's foreach takes no mixture with DTensor
    state = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in net.state_dict().items()}
    check(state, losses, "tensor parallel")


PARTS = (functional, ddp, fsdp, dtensor, tensor_parallel)


def everything(*names):
    begin()
    run_parts(PARTS, names)
