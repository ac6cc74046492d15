"""Bodies that ``test_meshes`` runs on every rank: meshes of two dimensions, checkpoints, pipelines, long contexts."""

from __future__ import annotations

import itertools
import os

import torch
from on_ranks import run_parts
from on_ranks_compiled import Programs
from on_ranks_training import ROWS, WIDTH, batches, begin, check, mine, model, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PLAN = {f"{i}.{n}": s for i in range(2) for n, s in (("up", ColwiseParallel), ("down", RowwiseParallel))}


def plan():
    return {name: style() for name, style in PLAN.items()}


def redistribute():
    """Among all placements of a mesh of two dimensions."""
    mesh = init_device_mesh("tpu", (2, SIZE // 2))
    full = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))  # 5 rows do not split evenly
    ends = (Replicate(), Shard(0), Shard(1))
    for source in itertools.product((*ends, Partial()), repeat=2):
        if any(p.is_partial() for p in source):
            parts = [p if not p.is_partial() else Replicate() for p in source]
            share = 1 / (2 if source[0].is_partial() else 1) / (SIZE // 2 if source[1].is_partial() else 1)
            local = distribute_tensor((full * share).to("tpu"), mesh, parts).to_local()
            d = DTensor.from_local(local, mesh, source, shape=full.shape, stride=full.stride())
        else:
            d = distribute_tensor(full.to("tpu"), mesh, source)
        for target in itertools.product(ends, repeat=2):
            moved = d.redistribute(mesh, target)
            assert moved.placements == target
            torch.testing.assert_close(
                moved.full_tensor().cpu(), full, msg=lambda m, s=source, t=target: f"{s} {t}: {m}"
            )


def two_dimensions():
    """FSDP2 over one dimension of the mesh, tensor parallel over the other."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("tpu", (2, SIZE // 2), mesh_dim_names=("data", "tensor"))
    net = model().to("tpu")
    parallelize_module(net, mesh["tensor"], plan())
    for block in net:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(net, mesh=mesh["data"])
    at = mesh["data"].get_local_rank()
    half = SIZE * ROWS // 2
    losses = train(net, lambda x: x[at * half : (at + 1) * half].to("tpu"), foreach=False)
    state = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in net.state_dict().items()}
    check(state, losses, "FSDP2 x TP")


def two_groups_in_one_program():
    """A graph whose collectives are of groups along both dimensions of the mesh."""
    from torch.distributed import _functional_collectives as funcol

    mesh = init_device_mesh("tpu", (2, SIZE // 2), mesh_dim_names=("data", "tensor"))

    def step(x):
        y = funcol.all_reduce(x * 2, "sum", (mesh, 1))
        z = funcol.all_gather_tensor(y + RANK, 0, (mesh, 0))
        return y * 1, z * 1

    x = torch.full((2, 3), RANK + 1.0, device="tpu")
    wanted = step(x)
    with Programs() as made:
        got = torch.compile(step, fullgraph=True)(x)
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a.cpu(), b.cpu())
    assert made.counts() == [{"all-reduce": 1, "all-gather": 1}], made.counts()
    net = model().to("tpu")
    parallelize_module(net, mesh["tensor"], plan())
    at = mesh["data"].get_local_rank()
    x = batches()[0][at * 4 : at * 4 + 4].to("tpu")
    torch.testing.assert_close(torch.compile(net)(x).cpu(), model()(x.cpu()), rtol=1e-5, atol=1e-5)


def checkpoint(folder):
    """torch.distributed.checkpoint of a sharded model and its optimizer, loaded into another one."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def sharded():
        net = model().to("tpu")
        for block in net:
            fully_shard(block)
        return fully_shard(net)

    net = sharded()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def step(net, optimizer, x):
        net(mine(x)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    first, second, _ = batches()
    step(net, optimizer, first)
    state = dict(zip(("model", "optimizer"), get_state_dict(net, optimizer)))
    dcp.save(state, checkpoint_id=folder)
    step(net, optimizer, second)
    wanted = {n: p.full_tensor().cpu() for n, p in net.state_dict().items()}
    other = sharded()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(3)
    again = torch.optim.AdamW(other.parameters(), lr=1e-2)
    state = dict(zip(("model", "optimizer"), get_state_dict(other, again)))
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(other, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step(other, again, second)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(value.full_tensor().cpu(), wanted[name], rtol=0, atol=0)


def offload():
    """FSDP2 of a model that is on the CPU, whose parameters stay there."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    for pin_memory in (False, True):
        policy = CPUOffloadPolicy(pin_memory=pin_memory)
        net = model()
        for block in net:
            fully_shard(block, offload_policy=policy)
        fully_shard(net, offload_policy=policy)
        losses = train(net, mine)
        assert all(p.device.type == "cpu" for p in net.parameters())
        state = {n: p.to("tpu").full_tensor() for n, p in net.state_dict().items()}
        check(state, losses, f"offload {pin_memory}")


def pipeline():
    """torch.distributed.pipelining: two stages, GPipe and 1F1B, equal the whole model."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    for schedule_type in (ScheduleGPipe, Schedule1F1B):
        whole = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(SIZE)])
        torch.manual_seed(0)
        for p in whole.parameters():
            nn.init.normal_(p, std=0.3)
        x = torch.randn(8, WIDTH)
        wanted = whole(x)
        loss = wanted.square().mean()
        loss.backward()
        part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        part.load_state_dict(whole[RANK].state_dict())
        stage = PipelineStage(part.to("tpu"), RANK, SIZE, torch.device("tpu", 0))
        schedule = schedule_type(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).square().mean())
        losses: list[torch.Tensor] = []
        target = torch.zeros(8, WIDTH, device="tpu")
        if RANK == 0:
            schedule.step(x.to("tpu"))
        elif RANK == SIZE - 1:
            out = schedule.step(target=target, losses=losses)
            torch.testing.assert_close(out.cpu(), wanted.detach(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(torch.stack(losses).mean().cpu(), loss.detach(), rtol=1e-5, atol=1e-5)
        else:
            schedule.step()
        for p, w in zip(part.parameters(), whole[RANK].parameters()):
            torch.testing.assert_close(p.grad.cpu(), w.grad, rtol=1e-5, atol=1e-5)


def context():
    """Context parallel attention: the sequence lies in parts on the ranks."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard
    from torch.distributed.tensor.experimental._context_parallel import _attention

    mesh = init_device_mesh("tpu", (SIZE,))
    g = torch.Generator().manual_seed(5)
    cpu = [torch.randn(1, 2, 8 * SIZE, 8, generator=g) for _ in range(3)]
    for causal in (True, False):
        _attention._cp_options.enable_load_balance = causal  # of a causal mask only
        leaves = [t.clone().requires_grad_() for t in cpu]
        wanted = nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        wanted.square().sum().backward()
        parts = [t.to("tpu") for t in cpu]
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 3, no_restore_buffers=set(parts)):
            for p in parts:
                p.requires_grad_()
            out = nn.functional.scaled_dot_product_attention(*parts, is_causal=causal)
            out.square().sum().backward()
        grads = [p.grad for p in parts]
        (full,) = context_parallel_unshard(mesh, [out.detach()], [2])
        torch.testing.assert_close(full.cpu(), wanted.detach(), rtol=1e-5, atol=1e-5)
        for whole, leaf in zip(context_parallel_unshard(mesh, grads, [2] * 3), leaves):
            torch.testing.assert_close(whole.cpu(), leaf.grad, rtol=1e-5, atol=1e-5)


def attention():
    """Of tensors that are split along heads or batch: nothing is gathered."""
    mesh = init_device_mesh("tpu", (SIZE,))
    g = torch.Generator().manual_seed(5)
    cpu = [torch.randn(4, 4, 6, 8, generator=g) for _ in range(3)]
    mask = torch.randn(1, 4, 6, 6, generator=g)
    for given, split in ((None, 1), (mask, 1), (mask, 0)):
        leaves = [t.clone().requires_grad_() for t in cpu]
        wanted = nn.functional.scaled_dot_product_attention(*leaves, attn_mask=given)
        wanted.square().sum().backward()
        parts = [distribute_tensor(t.to("tpu"), mesh, [Shard(split)]).requires_grad_() for t in cpu]
        there = None if given is None else distribute_tensor(given.to("tpu"), mesh, [Replicate()])
        out = nn.functional.scaled_dot_product_attention(*parts, attn_mask=there)
        assert out.placements == (Shard(split),)
        out.square().sum().backward()
        torch.testing.assert_close(out.full_tensor().detach().cpu(), wanted.detach(), rtol=1e-5, atol=1e-5)
        for p, leaf in zip(parts, leaves):
            torch.testing.assert_close(p.grad.full_tensor().cpu(), leaf.grad, rtol=1e-5, atol=1e-5)


PARTS = (redistribute, two_dimensions, two_groups_in_one_program, offload, pipeline, attention, context)


def everything(folder, *names):
    begin()

    def saved():
        checkpoint(folder)

    saved.__name__ = "checkpoint"
    run_parts((*PARTS, saved), names)
