"""Bodies that ``test_faults`` runs: one rank does wrong, and the others must end with a message that says what."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
VICTIM = int(os.environ.get("TEST_VICTIM", SIZE - 1))  # the rank that is killed


def begin(seconds=600):
    dist.init_process_group(timeout=datetime.timedelta(seconds=seconds))
    x = torch.ones(4, device="tpu")
    dist.all_reduce(x)
    return x


def killed():
    """A rank is killed while the others wait for it."""
    x = begin()
    if RANK == VICTIM:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)


def raises():
    """An exception ends a rank, and is told to those that wait."""
    x = begin()
    if RANK == SIZE - 1:
        raise ValueError("the data set is empty")
    dist.all_reduce(x)


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fault):
        ctx.fault = fault
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return ctx.fault(), None


def train_with(fault):
    """A step of DDP; on one rank ``fault`` is called in backward."""
    from torch.nn.parallel import DistributedDataParallel

    begin()
    net = DistributedDataParallel(torch.nn.Linear(4, 4).to("tpu"))
    y = net(torch.ones(2, 4, device="tpu"))
    if RANK == VICTIM:
        y = InBackward.apply(y, fault)
    y.sum().backward()


def raises_in_backward():
    train_with(lambda: 1 / 0)


def late():
    """A rank that does not come: the timeout names the collective and the rank."""
    x = begin(seconds=4)
    if RANK == SIZE - 1:
        time.sleep(25)
        sys.exit(0)
    dist.all_reduce(x, dist.ReduceOp.MAX)


def slow():
    """A rank that comes late but in time: nothing happens."""
    x = begin()
    if RANK == SIZE - 1:
        time.sleep(6)
    dist.all_reduce(x)
    assert x.tolist() == [SIZE * SIZE] * 4
    dist.destroy_process_group()


def other_shape():
    begin()
    dist.all_reduce(torch.ones(4 + RANK, device="tpu"), dist.ReduceOp.MAX)


def other_program():
    """Both have run before, so that nothing is compared when they are called; one rank waits in each."""
    x = begin()
    pair = torch.ones(4, device="tpu")
    dist.broadcast(pair, 0)
    if RANK == 0:
        dist.all_reduce(x)
    else:
        time.sleep(3)
        dist.recv(pair, 0)


def other_graph():
    """The ranks compile graphs with different operators."""
    x = begin()

    def f(x):
        y = x.relu() if RANK == 0 else x.sigmoid()
        return _reduced(y) * 2

    torch.compile(f)(x)


def _reduced(x):
    from torch.distributed import _functional_collectives as funcol

    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def other_compiled_program():
    """Each runs a program that both have run before, so that nothing is compared."""
    from torch.distributed import _functional_collectives as funcol

    x = begin()
    f = torch.compile(lambda x: _reduced(x) + 1)
    g = torch.compile(lambda x: funcol.all_gather_tensor(x * 3, 0, dist.group.WORLD) - 1)
    f(x), g(x)
    (f if RANK == 0 else g)(x)


def other_known_reduction():
    """Both programs are known to both ranks and fit each other: without a comparison each would have a result."""
    x = begin()
    dist.all_reduce(x, dist.ReduceOp.MAX)
    for i in range(3):
        dist.all_reduce(x, dist.ReduceOp.MAX if RANK == SIZE - 1 and i == 2 else dist.ReduceOp.SUM)
    raise SystemExit(f"no error: {x.tolist()}")


def other_known_root():
    x = begin()
    dist.broadcast(x, 0)
    dist.broadcast(x, RANK)
    raise SystemExit(f"no error: {x.tolist()}")


def _known_graphs():
    from torch.distributed import _functional_collectives as funcol

    x = begin()
    f = torch.compile(lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD) + 1)
    g = torch.compile(lambda x: funcol.all_reduce(x, "max", dist.group.WORLD) + 1)
    f(x), g(x)
    return x, (g if RANK == SIZE - 1 else f)


def other_known_graph():
    x, f = _known_graphs()
    got = f(x).tolist()
    raise SystemExit(f"no error: {got}")


def other_known_graph_not_awaited():
    """As on a TPU, where nobody waits for a program: the next operation says it."""
    from torch_tpu.compile import spmd

    x, f = _known_graphs()
    spmd.platform = type("P", (), {"name": staticmethod(lambda: "tpu")})
    f(x)
    time.sleep(1)
    dist.all_reduce(x)
    raise SystemExit("no error")


def killed_while_compiling():
    x = begin()
    f = torch.compile(lambda x: _reduced(x) + 1)
    if RANK == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    f(x)


def killed_in_a_program():
    x = begin()
    f = torch.compile(lambda x: _reduced(x) + 1)
    f(x)
    if RANK == VICTIM:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    f(x)


def killed_in_backward():
    train_with(lambda: os.kill(os.getpid(), signal.SIGKILL))


def killed_in_init():
    """Between two of the steps in which the ranks join."""
    from torch_tpu.runtime import cluster

    if RANK == VICTIM:
        cluster._connect = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    begin()


def killed_with_the_service_started():
    """Rank 0, when it has started the coordination service and no rank has connected to it."""
    from torch_tpu.runtime import cluster

    if RANK == 0:
        cluster._hold = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    begin()


def killed_before_init():
    if RANK == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    begin(seconds=8)
