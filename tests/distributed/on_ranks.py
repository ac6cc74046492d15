"""Bodies that ``test_collectives`` runs on every rank: each collective on tpu tensors against gloo on CPU tensors."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int32, torch.int64, torch.uint8, torch.int8]


def begin(**kwargs):
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))  # as scripts for GPUs do
    assert torch.tpu.device_count() == 1 and torch.tpu.current_device() == 0
    dist.init_process_group(**kwargs)


def values(dtype, *shape, seed=0, rank=RANK):
    g = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=g, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    return torch.randint(0, 11, shape, generator=g).to(dtype)


def same(got, wanted, what, rtol=0.0):
    assert got.device.type == "tpu", what
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (what, got.dtype, got.shape, wanted.shape)
    torch.testing.assert_close(got.cpu(), wanted, rtol=rtol, atol=rtol, equal_nan=True, msg=lambda m: f"{what}: {m}")


def default_group():
    """No backend named: both devices, and CPU tensors are gloo's."""
    begin()
    assert type(dist.group.WORLD) is dist.ProcessGroup
    x = torch.full((3,), RANK + 1.0, device="tpu")
    dist.all_reduce(x)
    assert x.tolist() == [SIZE * (SIZE + 1) / 2] * 3
    y = torch.full((3,), RANK + 1.0)
    dist.all_reduce(y)
    assert y.tolist() == x.tolist()
    assert torch.zeros(1, device=f"tpu:{RANK}").device == torch.device("tpu", 0)
    assert torch.zeros(1).to(f"tpu:{RANK}").device == torch.device("tpu", 0)
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": r} for r in range(SIZE)]
    dist.barrier()
    dist.destroy_process_group()


OPS = dist.ReduceOp


def reductions():
    for dtype in FLOATS + INTEGERS:
        for op in (OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT):
            cpu = values(dtype, 2, 3)
            tpu = cpu.to("tpu")
            dist.all_reduce(cpu, op)
            dist.all_reduce(tpu, op)
            same(tpu, cpu, f"all_reduce {op} {dtype}")
    for dtype in INTEGERS:
        for op in (OPS.BAND, OPS.BOR, OPS.BXOR):
            cpu = values(dtype, 4)
            tpu = cpu.to("tpu")
            dist.all_reduce(cpu, op)
            dist.all_reduce(tpu, op)
            same(tpu, cpu, f"all_reduce {op} {dtype}")


def averages_and_truth_values():
    """What gloo has not: NCCL's results."""
    every = [values(torch.float32, 5, rank=r) for r in range(SIZE)]
    x = every[RANK].to("tpu")
    dist.all_reduce(x, OPS.AVG)
    same(x, torch.stack(every).sum(0) / SIZE, "avg")
    x = (
        torch.tensor([7, -7], dtype=torch.int64, device="tpu")
        if RANK == 0
        else torch.zeros(2, dtype=torch.int64, device="tpu")
    )
    dist.all_reduce(x, OPS.AVG)
    same(x, torch.tensor([7 // SIZE, -(7 // SIZE)]), "avg of integers")
    every = [values(torch.bool, 16, rank=r) for r in range(SIZE)]
    for op, wanted in ((OPS.SUM, torch.stack(every).any(0)), (OPS.PRODUCT, torch.stack(every).all(0))):
        x = every[RANK].to("tpu")
        dist.all_reduce(x, op)
        same(x, wanted, f"bool {op}")
    every = [values(torch.complex64, 3, rank=r) for r in range(SIZE)]
    x = every[RANK].to("tpu")
    dist.all_reduce(x)
    same(x, sum(every), "complex")
    try:
        dist.all_reduce(torch.ones(2, device="tpu"), OPS.BAND)
    except TypeError as e:
        assert "BAND" in str(e)
    else:
        raise AssertionError("band of floats")


def moves():
    for dtype in [*FLOATS, torch.int64, torch.bool]:
        cpu = values(dtype, 2, 3)
        tpu = cpu.to("tpu")
        for root in range(SIZE):
            a, b = cpu.clone(), tpu.clone()
            dist.broadcast(a, root)
            dist.broadcast(b, root)
            same(b, a, f"broadcast {dtype}")
        both(dist.all_gather, [torch.empty_like(cpu) for _ in range(SIZE)], cpu)


def on_tpu(x):
    if isinstance(x, torch.Tensor):
        return x.to("tpu")
    return [on_tpu(y) for y in x] if isinstance(x, list) else x


def compare(got, wanted, what):
    if isinstance(wanted, list):
        for x, y in zip(got, wanted, strict=True):
            compare(x, y, what)
    elif isinstance(wanted, torch.Tensor):
        same(got, wanted, what)


def both(function, *args, asynchronous=(False, True), **kwargs):
    """The collective on CPU and on tpu tensors, at once and to be waited for: all arguments must end alike."""
    for async_op in asynchronous:
        cpu = [[y.clone() for y in x] if isinstance(x, list) else x.clone() if isinstance(x, torch.Tensor) else x
               for x in args]  # fmt: skip
        tpu = [on_tpu(x) for x in cpu]
        what = f"{function.__name__} async={async_op} {kwargs}"
        a = function(*cpu, async_op=async_op, **kwargs)
        b = function(*tpu, async_op=async_op, **kwargs)
        if async_op:
            a.wait()
            if isinstance(b.get_future(), torch.futures.Future):
                b.get_future().wait()
            assert b.wait() and b.is_completed(), what
        else:
            assert b is None, what
        for x, y in zip(tpu, cpu):
            compare(x, y, what)


def the_rest():
    x = values(torch.float32, 2, 3)
    parts = [values(torch.float32, 3, seed=i) for i in range(SIZE)]
    both(dist.all_reduce, x)
    both(dist.all_reduce, torch.tensor(RANK + 1.5))  # no dimensions
    both(dist.all_reduce, torch.empty(0, 3))
    for root in range(SIZE):
        cpu, tpu = x.clone(), x.to("tpu")
        dist.reduce(cpu, root)
        dist.reduce(tpu, root)
        same(tpu, cpu if root == RANK else x, "reduce")  # the others' stays
        outs = [torch.empty(2, 3) for _ in range(SIZE)] if root == RANK else None
        both(dist.gather, x, outs, dst=root)
        both(dist.scatter, torch.empty(3), parts if root == RANK else None, src=root)
    both(dist.all_gather_into_tensor, torch.empty(2 * SIZE, 3), x)
    uneven = [values(torch.float32, r + 1, 2, rank=r) for r in range(SIZE)]  # gloo has none of these
    got = [torch.empty_like(t, device="tpu") for t in uneven]
    dist.all_gather(got, uneven[RANK].to("tpu"))
    compare(got, uneven, "uneven all_gather")
    got = torch.empty(RANK + 1, 2, device="tpu")
    dist.reduce_scatter(got, [t.to("tpu") for t in uneven])
    same(got, uneven[RANK] * SIZE, "uneven reduce_scatter", rtol=1e-6)
    both(dist.all_gather, [torch.empty(3, dtype=torch.bool) for _ in range(SIZE)], values(torch.bool, 3))
    both(dist.reduce_scatter, torch.empty(3), parts)
    both(dist.reduce_scatter, torch.empty(3), parts, op=OPS.MAX)
    both(dist.reduce_scatter_tensor, torch.empty(2, 3), values(torch.float32, 2 * SIZE, 3))
    both(dist.all_to_all_single, torch.empty(2 * SIZE, 3), values(torch.float32, 2 * SIZE, 3))
    sizes = [[(r + s) % 3 for s in range(SIZE)] for r in range(SIZE)]
    takes = [sizes[r][RANK] for r in range(SIZE)]
    both(
        dist.all_to_all_single, torch.empty(sum(takes), 2), values(torch.float32, sum(sizes[RANK]), 2),
        output_split_sizes=takes, input_split_sizes=sizes[RANK],
    )  # fmt: skip
    got = [torch.empty(n, 2, device="tpu") for n in takes]
    every = [[values(torch.float32, n, 2, seed=s, rank=r) for s, n in enumerate(sizes[r])] for r in range(SIZE)]
    dist.all_to_all(got, [t.to("tpu") for t in every[RANK]])
    compare(got, [every[r][RANK] for r in range(SIZE)], "all_to_all")


def views():
    """Tensors that are a part of their storage, or lie otherwise in it."""
    whole = values(torch.float32, 4, 6)
    tpu = whole.to("tpu")
    for cut in (lambda t: t[1:3], lambda t: t[:, 2:4], lambda t: t.t(), lambda t: t[::2, 1]):
        cpu = whole.clone()
        dev = tpu.clone()
        part = cut(cpu).contiguous()
        dist.all_reduce(part)
        cut(cpu).copy_(part)
        view = cut(dev)
        before = view._version
        dist.all_reduce(view)
        assert view._version == before
        same(dev, cpu, "view")


def coalesced():
    xs = [values(torch.float32, n, seed=n) for n in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as work:
        tpu = [x.to("tpu") for x in xs]
        for t in tpu:
            dist.all_reduce(t)
    work.wait()
    for t, x in zip(tpu, xs):
        dist.all_reduce(x)
        same(t, x, "coalesced all_reduce")
    outs = [torch.empty(SIZE * n, device="tpu") for n in (2, 3)]
    ins = [values(torch.float32, n, seed=n) for n in (2, 3)]
    with dist._coalescing_manager():
        for o, t in zip(outs, ins):
            dist.all_gather_into_tensor(o, t.to("tpu"))
    for o, t in zip(outs, ins):
        wanted = torch.empty(SIZE * t.numel())
        dist.all_gather_into_tensor(wanted, t)
        same(o, wanted, "coalesced all_gather")


def point_to_point():
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
        mine, theirs = values(dtype, 3, 2), values(dtype, 3, 2, rank=left)
        got = torch.empty_like(mine, device="tpu")
        ops = [dist.P2POp(dist.isend, mine.to("tpu"), right), dist.P2POp(dist.irecv, got, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(got, theirs, f"batch {dtype}")
    got = torch.empty(4, device="tpu")
    if RANK == 0:
        dist.send(torch.arange(4.0, device="tpu"), 1, tag=3)
        assert dist.recv(got) == 1  # from whoever sends
    elif RANK == 1:
        dist.recv(got, 0, tag=3)
        dist.send(got * 2, 0)
    if RANK == 0:
        same(got, torch.arange(4.0) * 2, "recv")
    # Each waits for its own receive before the other has been asked for: the second must not wait for the first.
    a, b = torch.zeros(2, device="tpu"), torch.zeros(2, device="tpu")
    if RANK == 0:
        first, second = dist.irecv(a, 1, tag=1), dist.irecv(b, 1, tag=2)
        second.wait()
        dist.send(b + 1, 1, tag=5)
        first.wait()
        assert a.tolist() == [3.0, 3.0]
    elif RANK == 1:
        dist.send(torch.ones(2, device="tpu"), 0, tag=2)
        dist.recv(a, 0, tag=5)
        dist.send(a + 1, 0, tag=1)


def objects():
    mine = {"rank": RANK, "t": torch.arange(3)}
    got = [None] * SIZE
    dist.all_gather_object(got, mine)
    assert [g["rank"] for g in got] == list(range(SIZE))
    box = [mine if RANK == 0 else None]
    dist.broadcast_object_list(box, 0)
    assert box[0]["rank"] == 0
    dist.broadcast_object_list(box, 0, device=torch.device("tpu"))
    gathered = [None] * SIZE if RANK == 0 else None
    dist.gather_object(mine, gathered)
    assert RANK or [g["rank"] for g in gathered] == list(range(SIZE))
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(SIZE)] if RANK == 0 else None)
    assert out == [f"for {RANK}"]


def groups():
    alone = [dist.new_group([r]) for r in range(SIZE)][RANK]
    x = torch.ones(2, device="tpu")
    dist.all_reduce(x, group=alone)
    assert x.tolist() == [1, 1]
    pair = dist.new_group([0, 1])
    if RANK < 2:
        x = torch.full((2,), RANK + 1.0, device="tpu")
        dist.all_reduce(x, group=pair)
        assert x.tolist() == [3, 3]
    backwards = dist.new_group(list(range(SIZE))[::-1])
    x = [torch.zeros(1, device="tpu") for _ in range(SIZE)]
    dist.all_gather(x, torch.full((1,), float(RANK), device="tpu"), group=backwards)
    y = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_gather(y, torch.full((1,), float(RANK)), group=backwards)
    compare(x, y, "order of a group")
    named = dist.new_group(backend="tpu_dist")
    x = torch.ones(2, device="tpu")
    dist.all_reduce(x, group=named)
    assert x.tolist() == [SIZE] * 2
    dist.monitored_barrier(dist.new_group(backend="gloo"))


PARTS = (
    reductions, averages_and_truth_values, moves, the_rest, views, coalesced, point_to_point, objects, groups,
)  # fmt: skip


def run_parts(parts, names):
    """Those named, or all, and the end of the group."""
    for part in parts:
        if not names or part.__name__ in names:
            part()
            print("done:", part.__name__, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def everything(*names):
    begin(backend="cpu:gloo,tpu:tpu_dist")
    run_parts(PARTS, names)


def again(path):
    """The group is made, ended and made again in one process; named alone; with a device."""
    begin(backend="tpu_dist")
    x = torch.ones(2, device="tpu")
    dist.all_reduce(x)
    assert x.tolist() == [SIZE] * 2
    dist.destroy_process_group()
    # Another store: PyTorch's own server on MASTER_PORT may be found by a rank while it is still being closed.
    store = dist.FileStore(path, SIZE)
    dist.init_process_group(store=store, rank=RANK, world_size=SIZE, device_id=torch.device("tpu", 0))
    dist.all_reduce(x)
    assert x.tolist() == [SIZE * SIZE] * 2
    alone = [dist.new_group([r]) for r in range(SIZE)][RANK]
    dist.all_reduce(x, group=alone)
    assert x.tolist() == [SIZE * SIZE] * 2
    alone = dist.split_group(split_ranks=[[r] for r in range(SIZE)])
    dist.all_reduce(x, group=alone)
    assert x.tolist() == [SIZE * SIZE] * 2 and dist.get_process_group_ranks(alone) == [RANK]
    both = dist.split_group(split_ranks=[list(range(SIZE))], group_desc="both")
    dist.all_reduce(x, group=both)
    assert x.tolist() == [SIZE**3] * 2 and both.group_desc == "both"
    assert (dist.split_group(split_ranks=[[1]]) is None) == (RANK != 1)
    dist.barrier()
    dist.destroy_process_group()


def device_used_before():
    """Then programs cannot span the devices, and values go through the hosts: the same results, and a warning."""
    import warnings

    if RANK == 1:
        torch.ones(1, device="tpu")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dist.init_process_group()
    texts = [str(w.message) for w in said]
    assert any("before init_process_group on rank(s) [1]" in t for t in texts) == (RANK == 0), texts
    for part in (averages_and_truth_values, moves, the_rest, views):
        part()
    dist.destroy_process_group()
