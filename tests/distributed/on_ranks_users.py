"""Bodies that ``test_users`` runs on every rank: what scripts written for GPUs do besides the usual training."""

from __future__ import annotations

import datetime
import os
import time

import torch
import torch.distributed as dist
from on_ranks import same
from on_ranks_training import begin, check, model, train
from torch import nn

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LOCAL = int(os.environ["LOCAL_RANK"])


def _mine(x):
    n = len(x) // SIZE
    return x[RANK * n : (RANK + 1) * n].to("tpu")


def hooks():
    """DDP's hooks that PyTorch knows of other devices only: the C++ ones, and bfloat16."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    def trained(register):
        net = model().to("tpu")
        wrapped = DistributedDataParallel(net, device_ids=[LOCAL])
        register(wrapped)
        return net.state_dict(), train(wrapped, _mine)

    check(*trained(lambda d: d._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)), "builtin")
    for register in (
        lambda d: d._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
        lambda d: d.register_comm_hook(None, default_hooks.bf16_compress_hook),
    ):
        state, _ = trained(register)
        for name, value in model().state_dict().items():
            assert not torch.equal(state[name].cpu(), value), name
            every = [torch.empty_like(state[name]) for _ in range(SIZE)]
            dist.all_gather(every, state[name])
            assert all(torch.equal(e, state[name]) for e in every), name


def fully_sharded():
    """FSDP1, given its local rank; a full state dict while there are gradients, whose shape is a shard's."""
    from torch.distributed.fsdp import CPUOffload, FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as Sharded

    net = Sharded(model().to("tpu"), device_id=torch.device("tpu", LOCAL), use_orig_params=True)
    losses = train(net, _mine)
    net(_mine(torch.ones(2 * SIZE, 8))).sum().backward()
    full = FullStateDictConfig(offload_to_cpu=True, rank0_only=False)
    with Sharded.state_dict_type(net, StateDictType.FULL_STATE_DICT, full):
        check(net.state_dict(), losses, "FSDP1")
    try:
        Sharded(model(), cpu_offload=CPUOffload(offload_params=True), device_id=0)
    except NotImplementedError as e:
        assert "CPUOffloadPolicy" in str(e)
    else:
        raise AssertionError("offload")


def batch_norm():
    """SyncBatchNorm over uneven batches is a batch norm of the whole, its running statistics too; compiled as well."""
    parts = [torch.randn(2 + r, 3, 4, 4, generator=torch.Generator().manual_seed(r)) + 1 for r in range(SIZE)]
    alone = nn.BatchNorm2d(3)
    wanted = [alone(torch.cat(parts)) for _ in range(2)][-1].split([len(p) for p in parts])[RANK]
    for compiled in (False, True):
        net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3)).to("tpu")
        call = torch.compile(net) if compiled else net
        got = [call(parts[RANK].to("tpu")) for _ in range(2)][-1]
        same(got.detach(), wanted.detach(), "SyncBatchNorm", 1e-5)
        for name, value in alone.state_dict().items():
            same(net.state_dict()[name], value, f"SyncBatchNorm {name} compiled={compiled}", 1e-5)


def random_numbers():
    """Shards of a DTensor draw numbers of their own, replicas the same; a seed gives them again."""
    from torch.distributed import tensor as dtensor
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("tpu", (SIZE,))
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append([
            dtensor.rand(7, 4, device_mesh=mesh, placements=[dtensor.Shard(0)]).full_tensor()
            for _ in range(2)
        ])  # fmt: skip
    assert torch.equal(drawn[0][0], drawn[1][0]) and not torch.equal(drawn[0][0], drawn[0][1])
    assert drawn[0][0].unique().numel() == 28
    copies = dtensor.rand(7, device_mesh=mesh, placements=[dtensor.Replicate()]).to_local()
    every = [torch.empty_like(copies) for _ in range(SIZE)]
    dist.all_gather(every, copies)
    assert all(torch.equal(e, copies) for e in every)
    ones = dtensor.distribute_tensor(torch.ones(64 * SIZE), mesh, [dtensor.Shard(0)])
    parts = nn.functional.dropout(ones, 0.5).full_tensor().cpu().chunk(SIZE)
    assert not torch.equal(parts[0], parts[1])
    assert all(16 < int((p == 0).sum()) < 48 for p in parts)


def values_of_work():
    """What a future gives: the tensors, on the root of a broadcast and where a reduce has no result too."""
    x = torch.ones(3, device="tpu")
    for work in (dist.broadcast(x, 0, async_op=True), dist.reduce(x, 0, async_op=True)):
        work.wait()
        assert [tuple(t.shape) for t in work.get_future().value()] == [(3,)]
    gathered = dist.gather(x, [x.clone() for _ in range(SIZE)] if RANK == 0 else None, 0, async_op=True)
    gathered.wait()
    assert len(gathered.result()) == (SIZE if RANK == 0 else 0)


def barriers():
    """monitored_barrier of the default group; the rank that is missing is named."""
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    if RANK == 0:
        try:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.5), wait_all_ranks=True)
        except RuntimeError as e:
            assert "Ranks 1" in str(e), e
        else:
            raise AssertionError("nobody is missing")


def names_of_groups():
    """Members that are in other groups than the rest still give a group one name."""
    if RANK == 1:
        dist.new_group([1], use_local_synchronization=True)
    both = dist.new_group([0, 1], use_local_synchronization=True)
    again = dist.split_group(split_ranks=[[0, 1]])
    for group in (both, again):
        x = torch.ones(1, device="tpu")
        dist.all_reduce(x, group=group)
        assert x.item() == 2


PARTS = (hooks, fully_sharded, batch_norm, random_numbers, values_of_work, names_of_groups, barriers)


def everything(*names):
    begin()
    for part in PARTS:
        if not names or part.__name__ in names:
            part()
            print("done:", part.__name__, flush=True)
    dist.destroy_process_group()


def made_again(path):
    """In one store, which stays, as torchrun's does."""
    store = dist.FileStore(path, SIZE)
    for _ in range(3):
        dist.init_process_group(store=store, rank=RANK, world_size=SIZE)
        for device in ("tpu", "cpu"):
            x = torch.ones(2, device=device)
            dist.all_reduce(x)
            assert x.tolist() == [SIZE] * 2
        dist.barrier()
        dist.destroy_process_group()


def late(seconds):
    """A rank that comes late to a group's first program, and to a reduce-scatter: XLA:CPU waits for 30 seconds."""
    begin()
    x = torch.ones(2 * SIZE, device="tpu")
    for call in (lambda: dist.all_reduce(x), lambda: dist.reduce_scatter_tensor(x[:2].clone(), x)):
        if RANK == 1:
            time.sleep(float(seconds))
        call()
    dist.barrier()
    dist.destroy_process_group()


def fails_while_a_group_is_made():
    begin()
    if RANK == 1:
        raise ValueError("before the group")
    dist.new_group([0, 1])
