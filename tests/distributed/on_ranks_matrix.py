"""Bodies that ``test_matrix`` runs on every rank: each collective x dtype x sync or async x group, against what its
definition gives from every rank's values, and against gloo on CPU tensors where gloo has it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from on_ranks import OPS, compare, run_parts
from on_ranks_training import begin

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
ORDERED = {"min": OPS.MIN, "max": OPS.MAX}
BITS = {"band": OPS.BAND, "bor": OPS.BOR, "bxor": OPS.BXOR}
FOLDS = {"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
         "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}  # fmt: skip


def values(dtype, *shape, rank, seed=0):
    """Small whole numbers, so that every reduction is exact in every type and order; 4 of them multiply to <= 81."""
    g = torch.Generator().manual_seed(1000 * seed + rank)
    drawn = torch.randint(0 if dtype in (torch.bool, torch.uint8) else -3, 4, shape, generator=g)
    if dtype.is_complex:
        return torch.complex(drawn.double(), drawn.flip(0).double() + 1).to(dtype)
    return drawn % 2 == 0 if dtype == torch.bool else drawn.to(dtype)


def reductions_of(dtype):
    named = {"sum": OPS.SUM}
    if dtype != torch.bool:
        named["avg"] = OPS.AVG
    if not dtype.is_complex:  # PyTorch refuses these of complex tensors
        named |= {"product": OPS.PRODUCT, **ORDERED}
    return named | (BITS if dtype in (*INTEGERS, torch.bool) else {})


def reduced(xs, name):
    """NCCL's: a sum of truth values is "any", their product "all"; averages of integers divide toward zero."""
    if name == "avg":
        total = functools.reduce(torch.add, xs)
        whole = not (total.is_floating_point() or total.is_complex())
        return torch.div(total, len(xs), rounding_mode="trunc") if whole else total / len(xs)
    if xs[0].dtype == torch.bool:
        name = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}.get(name, name)
    return functools.reduce(FOLDS[name], xs)


class Case:
    """A collective in a group: what it is called with, and what each output must be on this rank."""

    def __init__(self, name: str, call: Callable[..., Any], args: list[Any], outs: list[int], wanted: list[Any]):
        self.name, self.call, self.args, self.outs, self.wanted = name, call, args, outs, wanted

    def run(self, device: str, async_op: bool) -> list[Any]:
        args = [_there(a, device) for a in self.args]
        work = self.call(*args, async_op=async_op)
        if async_op and work is not None:
            work.wait()  # a future, of all_reduce_coalesced
        return [args[i] for i in self.outs]


def _there(x, device):
    if isinstance(x, torch.Tensor):
        return x.clone().to(device)
    return [_there(y, device) for y in x] if isinstance(x, list) else x


def empties(like, n):
    return [torch.zeros_like(like) for _ in range(n)]


@dataclasses.dataclass
class Place:
    """A group, and what its members give: ``x`` by rank, ``parts[a][b]`` from a for b, ``big`` for all."""

    dtype: torch.dtype
    group: Any
    ranks: list[int]

    def __post_init__(self):
        self.n, self.me = len(self.ranks), self.ranks.index(RANK)
        draw = functools.partial(values, self.dtype)
        self.x = [draw(2, 3, rank=r) for r in self.ranks]
        self.parts = [[draw(3, rank=r, seed=k + 1) for k in range(self.n)] for r in self.ranks]
        self.big = [draw(2 * self.n, 3, rank=r, seed=7) for r in self.ranks]

    def call(self, function, **kwargs):
        return functools.partial(function, group=self.group, **kwargs)


def _rooted(p: Place) -> Iterator[Case]:
    x, n, me = p.x, p.n, p.me
    for root, src in enumerate(p.ranks):
        yield Case(f"broadcast {root}", p.call(dist.broadcast, src=src), [x[me]], [0], [x[root]])
        outs = empties(x[me], n) if root == me else None
        wanted = x if root == me else None
        yield Case(f"gather {root}", p.call(dist.gather, dst=src), [x[me], outs], [1], [wanted])
        given = p.parts[root] if root == me else None
        yield Case(f"scatter {root}", p.call(dist.scatter, src=src), [empties(p.parts[0][0], 1)[0], given], [0],
                   [p.parts[root][me]])  # fmt: skip


def _gathers(p: Place) -> Iterator[Case]:
    x, n, me = p.x, p.n, p.me
    yield Case("all_gather", p.call(dist.all_gather), [empties(x[me], n), x[me]], [0], [x])
    into = p.call(dist.all_gather_into_tensor)
    yield Case("all_gather_into_tensor", into, [x[0].new_zeros(2 * n, 3), x[me]], [0], [torch.cat(x)])
    yield Case("all_gather_into_tensor stacked", into, [x[0].new_zeros(n, 2, 3), x[me]], [0], [torch.stack(x)])
    ragged = [values(p.dtype, a + 1, 2, rank=r) for a, r in enumerate(p.ranks)]
    outs = [torch.zeros_like(t) for t in ragged]
    yield Case("all_gather uneven", p.call(dist.all_gather), [outs, ragged[me]], [0], [ragged])
    both = [[t, t[:1].contiguous()] for t in x]
    lists = [empties(both[me][i], n) for i in range(2)]
    wanted = [[b[i] for b in both] for i in range(2)]
    yield Case("all_gather_coalesced", p.call(dist.all_gather_coalesced), [lists, both[me]], [0], [wanted])


def _reductions(p: Place) -> Iterator[Case]:
    n, me, x = p.n, p.me, p.x
    for name, op in reductions_of(p.dtype).items():
        total = reduced(x, name)
        yield Case(f"all_reduce {name}", p.call(dist.all_reduce, op=op), [x[me]], [0], [total])
        yield Case(f"reduce {name}", p.call(dist.reduce, group_dst=n - 1, op=op), [x[me]], [0],
                   [total if me == n - 1 else x[me]])  # fmt: skip
        wanted = reduced([given[me] for given in p.parts], name)
        scatter = p.call(dist.reduce_scatter, op=op)
        yield Case(f"reduce_scatter {name}", scatter, [torch.zeros_like(wanted), p.parts[me]], [0], [wanted])
        wanted = reduced(p.big, name).chunk(n)[me].contiguous()
        into = p.call(dist.reduce_scatter_tensor, op=op)
        yield Case(f"reduce_scatter_tensor {name}", into, [torch.zeros_like(wanted), p.big[me]], [0], [wanted])
        stacked = p.big[me].reshape(n, 2, 3)
        yield Case(f"reduce_scatter_tensor stacked {name}", into, [torch.zeros_like(wanted), stacked], [0], [wanted])
        ragged = [values(p.dtype, b + 1, rank=b) for b in range(n)]  # part b, the same of every rank
        wanted = reduced([ragged[me]] * n, name)
        yield Case(f"reduce_scatter uneven {name}", scatter, [torch.zeros_like(wanted), ragged], [0], [wanted])
        pair = [[t, t[0].contiguous()] for t in x]
        coalesced = p.call(dist.all_reduce_coalesced, op=op)
        wanted = [reduced([given[i] for given in pair], name) for i in range(2)]
        yield Case(f"all_reduce_coalesced {name}", coalesced, [pair[me]], [0], [wanted])


def _exchanges(p: Place) -> Iterator[Case]:
    """All to all in equal parts, and in parts of other sizes for every pair, some of them empty."""
    n, me = p.n, p.me
    wanted = torch.cat([p.big[a].chunk(n)[me] for a in range(n)])
    single = p.call(dist.all_to_all_single)
    yield Case("all_to_all_single", single, [torch.zeros_like(p.big[me]), p.big[me]], [0], [wanted])
    size = [[(a + 2 * b) % 3 for b in range(n)] for a in range(n)]
    gives = [[values(p.dtype, size[a][b], 2, rank=p.ranks[a], seed=20 + b) for b in range(n)] for a in range(n)]
    takes = [gives[a][me] for a in range(n)]
    outs = [torch.zeros_like(t) for t in takes]
    yield Case("all_to_all uneven", p.call(dist.all_to_all), [outs, gives[me]], [0], [takes])
    sizes = {"output_split_sizes": [len(t) for t in takes], "input_split_sizes": size[me]}
    whole = torch.cat(takes)
    yield Case("all_to_all_single uneven", p.call(dist.all_to_all_single, **sizes),
               [torch.zeros_like(whole), torch.cat(gives[me])], [0], [whole])  # fmt: skip


GLOO_HAS_NONE = ("avg", "uneven", "coalesced", "stacked")


def _gloo(case: Case, dtype, async_op) -> None:
    """What gloo gives on CPU tensors is the same, where it has the collective for the type."""
    named = any(word in case.name for word in GLOO_HAS_NONE)
    few = dtype in (torch.bool, torch.int16, *COMPLEX) or "product" in case.name
    if named or few:
        return
    got = case.run("cpu", async_op)
    if case.wanted[0] is not case.args[0]:  # gloo leaves its own sums where a reduce has no result
        compare_cpu(got, case.wanted, f"gloo {case.name} {dtype}")


def compare_cpu(got, wanted, what):
    if isinstance(wanted, list):
        for a, b in zip(got, wanted, strict=True):
            compare_cpu(a, b, what)
    elif wanted is not None:
        assert torch.equal(got, wanted), (what, got, wanted)


def _groups():
    """(name, group, ranks): the world, one that does not cover it, one in another order, parts of a split."""
    made = [("world", dist.group.WORLD, list(range(SIZE)))]
    if SIZE > 2:
        some = list(range(1, SIZE))
        made.append(("not all", dist.new_group(some), some))
        made += [("half", dist.new_group(ranks), ranks) for ranks in ([0, 2], [1, 3])]
        split = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        assert split is not None
        made.append(("split", split, dist.get_process_group_ranks(split)))
    return [m for m in made if RANK in m[2]]


KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.bool)  # in groups other than the world: one of each kind


@functools.cache
def _all_groups():
    return _groups()


def _run(family: Callable[[Place], Iterator[Case]], dtypes=DTYPES) -> None:
    count = 0
    for where, group, ranks in _all_groups():
        for dtype in dtypes if where == "world" else [d for d in KINDS if d in dtypes]:
            for case, async_op in itertools.product(family(Place(dtype, group, ranks)), (False, True)):
                what = f"{where} {case.name} {dtype} async={async_op}"
                try:
                    got = case.run("tpu", async_op)
                except Exception as e:
                    raise AssertionError(f"{what}: {e}") from e
                compare(got, case.wanted, what)
                _gloo(case, dtype, async_op)
                count += 1
    assert count
    print(family.__name__, "cases:", count, flush=True)


def rooted():
    _run(_rooted)


def gathers():
    _run(_gathers)


def exchanges():
    _run(_exchanges)


def reductions_of_floats():
    _run(_reductions, (torch.float32, torch.float64))


def reductions_of_halves():
    _run(_reductions, (torch.bfloat16, torch.float16))


def reductions_of_integers():
    _run(_reductions, INTEGERS)


def reductions_of_others():
    _run(_reductions, (torch.bool, *COMPLEX))


def _together(kind: str, call, outs, given, wanted) -> None:
    """``call(out, given)`` of every pair, as one operation; what is in ``outs`` then."""
    for async_op in (False, True):
        results = [(g if o is None else o).clone().to("tpu") for o, g in zip(outs, given)]
        with dist._coalescing_manager(async_ops=async_op) as work:
            for r, o, g in zip(results, outs, given):
                call(r) if o is None else call(r, g.to("tpu"))
        if async_op:
            work.wait()
        compare(results, wanted, f"coalesced {kind} {given[0].dtype}")


def coalesced():
    """Several collectives of one kind as one, by the context manager; the sizes differ."""
    sizes = (2, 5)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        xs = [[values(dtype, n, rank=r, seed=n) for n in sizes] for r in range(SIZE)]
        big = [[values(dtype, n * SIZE, rank=r, seed=n) for n in sizes] for r in range(SIZE)]
        columns, wide = list(zip(*xs)), list(zip(*big))
        _together("all_reduce", dist.all_reduce, [None, None], xs[RANK], [reduced(c, "sum") for c in columns])
        outs = [torch.zeros(n * SIZE, dtype=dtype) for n in sizes]
        _together("all_gather", dist.all_gather_into_tensor, outs, xs[RANK], [torch.cat(c) for c in columns])
        outs = [torch.zeros(n, dtype=dtype) for n in sizes]
        wanted = [reduced(c, "sum").chunk(SIZE)[RANK] for c in wide]
        _together("reduce_scatter", dist.reduce_scatter_tensor, outs, big[RANK], wanted)


def point_to_point():
    """Every rank to every other at once, in one batch, of every type; then a ring, one by one."""
    others = [r for r in range(SIZE) if r != RANK]
    for dtype in DTYPES:
        gives = {r: values(dtype, 3, r + 1, rank=RANK, seed=r) for r in others}
        takes = {r: torch.zeros(3, RANK + 1, dtype=dtype, device="tpu") for r in others}
        ops = [dist.P2POp(dist.isend, gives[r].to("tpu"), r) for r in others]
        ops += [dist.P2POp(dist.irecv, takes[r], r) for r in others]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for r in others:
            compare(takes[r], values(dtype, 3, RANK + 1, rank=r, seed=RANK), f"batch from {r} {dtype}")
        x = values(dtype, 4, rank=RANK).to("tpu")
        got = torch.zeros_like(x)
        if RANK == 0:
            dist.send(x, 1)
            dist.recv(got, SIZE - 1)
        else:
            dist.recv(got, RANK - 1)
            dist.send(x, (RANK + 1) % SIZE)
        compare(got, values(dtype, 4, rank=(RANK - 1) % SIZE), f"ring {dtype}")


def values_of_floats():
    """Sums of what is not whole are as near as gloo's to float64's; NaN, infinities and -0.0 arrive as they are."""
    for dtype in FLOATS:
        g = [torch.Generator().manual_seed(r) for r in range(SIZE)]
        every = [torch.randn(64, generator=x, dtype=torch.float64).to(dtype) for x in g]
        exact = torch.stack([e.double() for e in every]).sum(0)
        cpu, tpu = every[RANK].clone(), every[RANK].to("tpu")
        dist.all_reduce(cpu)
        dist.all_reduce(tpu)
        error, theirs = ((t.cpu().double() - exact).abs().max() for t in (tpu, cpu))
        assert error <= theirs + torch.finfo(dtype).eps, (dtype, error, theirs)
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1.0], dtype=dtype)
        x = odd.to("tpu") if RANK == 1 else torch.zeros(5, dtype=dtype, device="tpu")
        dist.broadcast(x, 1)
        compare(x, odd, f"broadcast {dtype}")
        assert torch.signbit(x.cpu())[3]
        x = odd.to("tpu") if RANK == 1 else torch.zeros(5, dtype=dtype, device="tpu")
        dist.all_reduce(x)
        assert x[0].isnan().item(), dtype


def refused():
    """What a type has not is a TypeError on every rank, and the group goes on."""
    for dtype, op in [(torch.float32, OPS.BAND), (torch.bool, OPS.AVG)]:
        try:
            dist.all_reduce(torch.ones(2, dtype=dtype, device="tpu"), op)
        except TypeError as e:
            assert "ReduceOp" in str(e)
        else:
            raise AssertionError((dtype, op))
    x = torch.ones(1, device="tpu")
    dist.all_reduce(x)
    assert x.item() == SIZE


FAMILIES = (
    rooted, gathers, exchanges, reductions_of_floats, reductions_of_halves, reductions_of_integers,
    reductions_of_others,
)  # fmt: skip
PARTS = (*FAMILIES, coalesced, point_to_point, values_of_floats, refused)


def everything(*names):
    begin()
    run_parts(PARTS, names)
