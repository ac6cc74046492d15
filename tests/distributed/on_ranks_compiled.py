"""Bodies that ``test_compiled`` runs on every rank: collectives in compiled graphs, as parts of one program."""

from __future__ import annotations

import os
import re

import torch
import torch.distributed as dist
from on_ranks import compare, on_tpu, run_parts, values
from on_ranks_training import begin, check, mine, model, train
from torch import nn

from torch_tpu.runtime import programs

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_NAMES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


class Programs:
    """Those of several ranks that are made inside the ``with``."""

    def __enter__(self):
        self.before = set(programs.cache.programs)
        return self

    def __exit__(self, *error):
        found = [p for k, p in programs.cache.programs.items() if k not in self.before and p.span is not None]
        self.texts = [p.compiled.as_text() for p in found]

    def counts(self):
        """The collectives of each program, by name."""
        return [{n: k for n in _NAMES if (k := len(re.findall(rf" {n}(?:-start)?\(", t)))} for t in self.texts]


def compiled(fn, *args):
    """The collectives of a function's one program on tpu tensors, which must equal itself on CPU tensors by gloo."""
    wanted = fn(*args)
    with Programs() as made:
        got = torch.compile(fn, fullgraph=True)(*on_tpu(list(args)))
    compare(list(got), list(wanted), fn.__name__)
    (counts,) = made.counts()
    return counts


def collectives():
    from torch.distributed import _functional_collectives as funcol

    world = dist.group.WORLD
    x, n = values(torch.float32, 2 * SIZE, 3), values(torch.int64, 2 * SIZE, 3)

    def in_place(x):
        y = x * 2
        dist.all_reduce(y)
        z = x.new_empty(SIZE * x.shape[0], 3)
        dist.all_gather_single(z, y + 1)
        part = x.new_empty(x.shape[0] // SIZE, 3)
        dist.reduce_scatter_single(part, x)
        there = torch.empty_like(x)
        dist.all_to_all_single(there, x)
        return y, z, part, there

    assert compiled(in_place, x) == {"all-reduce": 1, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}

    def reductions(x, n):
        found = [funcol.all_reduce(x, op, world) for op in ("sum", "min", "max", "product")]
        found += [funcol.all_reduce(n, op, world) for op in ("sum", "min", "max", "band", "bor", "bxor")]
        return [f * 1 for f in found]

    compiled(reductions, x, n)

    def others(x):
        made = [*funcol.all_reduce_coalesced([x, x * 2], "sum", world)]
        made += [*funcol.all_gather_into_tensor_coalesced([x, x + 1], world)]
        made += [funcol.broadcast(x, SIZE - 1, world), funcol.all_gather_tensor(x, 1, world)]
        made += [funcol.reduce_scatter_tensor(x, "sum", 0, world), funcol.all_reduce(x.sum(), "sum", world)]
        return [m * 1 for m in made]

    compiled(others, x)


def numbers_of_a_rank():
    """Numbers that differ from rank to rank are looked up in the program, which is the same on all."""
    full = torch.arange(24.0).reshape(4, 6)

    def own_part(x):
        rows, own = 4 // SIZE, RANK * (4 // SIZE)
        part = x[own : own + rows] * (RANK + 2)
        y = torch.where(part > own, part, 0.5 * RANK)
        z = x.chunk(SIZE)[RANK] + x.select(0, RANK)
        dist.all_reduce(y)
        return y, z, x.split(2, 1)[RANK]

    assert compiled(own_part, full) == {"all-reduce": 1}


def gradients():
    """Forward and backward are a program each, with collectives of their own."""
    from torch.distributed import _functional_collectives as funcol

    def loss(x, w):
        y = funcol.all_gather_tensor_autograd(x @ w, 0, dist.group.WORLD)
        z = funcol.reduce_scatter_tensor_autograd(y.sin(), "sum", 0, dist.group.WORLD)
        return (z * (RANK + 1)).square().sum()

    args = [values(torch.float32, 4, 3), values(torch.float32, 3, 2, seed=1)]
    cpu = [a.clone().requires_grad_() for a in args]
    tpu = [a.to("tpu").requires_grad_() for a in args]
    loss(*cpu).backward()
    with Programs() as made:
        torch.compile(loss, fullgraph=True)(*tpu).backward()
    assert made.counts() == [{"all-gather": 1, "reduce-scatter": 1}] * 2, made.counts()
    for a, b in zip(tpu, cpu):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-5, atol=1e-5)


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("tpu", (SIZE,))
    net = model().to("tpu")
    plan = {f"{i}.{n}": s for i in range(2) for n, s in (("up", ColwiseParallel()), ("down", RowwiseParallel()))}
    parallelize_module(net, mesh, plan)
    with Programs() as made:
        losses = train(torch.compile(net), lambda x: x.to("tpu"), foreach=False)
    state = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in net.state_dict().items()}
    check(state, losses, "compiled tensor parallel")
    # One a block forward; backward has one a block for the input of its first product, but for what needs no gradient.
    assert made.counts() == [{"all-reduce": 2}, {"all-reduce": 2}], made.counts()


class Gathered(nn.Module):
    """A layer whose parameters lie in parts on the ranks, and are gathered where they are used: FSDP in the graph."""

    def __init__(self, net, mesh):
        super().__init__()
        from torch.distributed.tensor import Shard, distribute_tensor

        self.net = [net]
        self.names = [n for n, _ in net.named_parameters()]
        for i, p in enumerate(net.parameters()):
            self.register_parameter(f"p{i}", nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))

    def forward(self, x):
        from torch.distributed.tensor import Partial, Replicate

        whole = {}
        for i, name in enumerate(self.names):
            gathered = getattr(self, f"p{i}").redistribute(placements=[Replicate()])
            whole[name] = gathered.to_local(grad_placements=[Partial("avg")])
        return torch.func.functional_call(self.net[0], whole, (x,))


def parameters_gathered_in_the_graph():
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("tpu", (SIZE,))
    whole = model().to("tpu")
    net = nn.Sequential(*[Gathered(block, mesh) for block in whole])
    with Programs() as made:
        losses = train(torch.compile(net, fullgraph=True), mine, foreach=False)
    names = [f"{i}.{n}" for i, block in enumerate(whole) for n, _ in block.named_parameters()]
    check(dict(zip(names, [p.full_tensor() for p in net.parameters()])), losses, "gathered in the graph")
    forward, backward = made.counts()
    assert set(forward) == {"all-gather"} and "reduce-scatter" in backward, made.counts()


def fsdp():
    """``fully_shard`` keeps its collectives in hooks, outside of graphs; what is between them is compiled."""
    from torch.distributed.fsdp import fully_shard

    net = model().to("tpu")
    for block in net:
        fully_shard(block)
    fully_shard(net)
    losses = train(torch.compile(net), mine)
    check({n.removeprefix("_orig_mod."): p.full_tensor() for n, p in net.state_dict().items()}, losses, "fully_shard")


def ddp():
    from torch.nn.parallel import DistributedDataParallel

    net = DistributedDataParallel(model().to("tpu"))
    losses = train(torch.compile(net), mine)
    check(net.module.state_dict(), losses, "compiled DDP")


PARTS = (
    collectives, numbers_of_a_rank, gradients, tensor_parallel, parameters_gathered_in_the_graph, fsdp, ddp,
)  # fmt: skip


def everything(*names):
    begin()
    run_parts(PARTS, names)
