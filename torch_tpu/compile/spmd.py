"""A graph with collectives: one program on the devices of several ranks, each of which has its own graph.

XLA needs the very same program on every device, and a rank that runs another one would wait forever. So before a new
program is compiled the ranks compare their graphs: a difference is an error on every one of them. Numbers may differ
(the first row of a rank's shard): the program looks them up by the rank.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import torch
from torch.fx import GraphModule, Node

from torch_tpu.binding import process_groups
from torch_tpu.compile import collectives, identity
from torch_tpu.compile.collectives import Agreement
from torch_tpu.compile.errors import GraphError
from torch_tpu.lowering.collectives import Among
from torch_tpu.runtime import cluster, platform, programs, transfer
from torch_tpu.runtime.spanning import Span


@dataclasses.dataclass(frozen=True)
class _Found:
    """An ``Agreement`` by positions in the graph: any graph of the same text has it."""

    span: Span
    ranks: tuple[int, ...]
    among: list[Among]
    numbers: list[tuple[Any, ...]]  # by rank
    digest: str


class Spmd:
    """What a graph that talks to other ranks needs besides what every graph does."""

    def __init__(self, module: GraphModule, label: str, sites: list[Node]):
        from torch_tpu.distributed import group

        self.group_at = {n: group.known(process_groups.group_in_graph(collectives.group_argument(n))) for n in sites}
        self._scatters = any("reduce_scatter" in str(n.target) for n in sites)
        self.groups = list(dict.fromkeys(g for g in self.group_at.values() if g.size > 1))
        shown = {
            n: (collectives.group_place(n), f"group {self._number(g)} of {g.size} ranks")
            for n, g in self.group_at.items()
        }
        self.text, self.numbers = identity.template(module, shown)  # type: ignore[arg-type]
        self.name = label.partition(" #")[0] + label.rpartition(" #")[2].lstrip("0123456789")

    def _number(self, group: Any) -> int:
        return self.groups.index(group) if group in self.groups else -1

    def agree(self, described: str) -> Agreement:
        """Compare this rank's graph with the others', who come here too. Once for each program.

        Args:
          described: what else the program depends on: how its operands lie, sizes, versions.

        Raises:
          DistBackendError: a rank has another program, failed, or did not come.
        """
        if not self.groups:
            alone = {n: Among(1) for n in self.group_at}
            return Agreement(None, (), alone, {}, "")
        if any(g.mesh is None for g in self.groups):
            raise GraphError(
                "collectives in a compiled graph need devices that programs can span; the device was used before "
                "init_process_group, so that they were not joined: call init_process_group first"
            )
        text = f"{self.text}\n{described}"
        numbers = list(self.numbers.values())
        key = (text, tuple(numbers), tuple(g.name for g in self.groups))
        found = _agreements.get(key)
        if found is None:
            found = _agreements[key] = self._compare(text, numbers)
        varied: dict[Node, dict[Any, tuple[Any, ...]]] = {}
        for (node, path), values in zip(self.numbers, found.numbers, strict=True):
            if any(v != values[0] for v in values):
                varied.setdefault(node, {})[path] = values
        among = dict(zip(self.group_at, found.among, strict=True))
        return Agreement(found.span, found.ranks, among, varied, found.digest)

    def _compare(self, text: str, numbers: list[Any]) -> _Found:
        from torch_tpu.distributed import agreement

        digest = hashlib.sha256(text.encode()).hexdigest()
        record = {"digest": digest, "numbers": numbers, "sites": [g.ranks for g in self.group_at.values()]}
        records = agreement.exchange(self.groups, f"the agreement on program {self.name}", record)
        if len({r["digest"] for r in records.values()}) > 1:
            raise agreement.differ(f"program {self.name}", self.groups[0], records, text)
        ranks = tuple(records)
        world = cluster.current()
        assert world is not None and world.devices is not None
        span = Span(tuple(world.devices[r] for r in ranks))
        among = [_among([records[r]["sites"][k] for r in ranks], ranks) for k in range(len(self.group_at))]
        values = [tuple(records[r]["numbers"][i] for r in ranks) for i in range(len(numbers))]
        return _Found(span, ranks, among, values, digest)

    def compiled(self, agreed: Agreement) -> None:
        """Wait for the others to have compiled: one that cannot says why, and nobody waits inside of XLA for it."""
        from torch_tpu.distributed import agreement

        if self.groups and agreed.digest not in _compiled:
            _compiled.add(agreed.digest)
            agreement.exchange(self.groups, f"compiling program {self.name}", {})

    def run(self, program: programs.Program, agreed: Agreement, operands: Sequence[Any]) -> list[Any]:
        """This rank's results; waits for them where XLA runs a collective in the thread that calls it."""
        from torch_tpu.distributed.operation import Operation, in_order

        if program.span is None:
            return program.call(*operands)
        what = f"program {self.name} [{agreed.digest[:8]}]"
        turns = [(g, g.begin(what, what)) for g in self.groups]
        if platform.name() != "cpu":
            for g, turn in turns:
                g.confirm_later(turn)
            return program.call(*operands)

        def run() -> list[Any]:
            for _, turn in turns:
                turn.confirm()
            for g in self.groups:
                g.meet(always=self._scatters)
            return _ready(program.call(*operands))

        running = in_order(run)
        (first, number), *also = [(g, turn.number) for g, turn in turns]
        ended = running.ended
        Operation(first, number, what, [], ended.is_set, running.result, pause=ended.wait, also=also).wait()
        return running.value


_agreements: dict[Any, _Found] = {}
_compiled: set[str] = set()


def of(module: GraphModule, label: str) -> Spmd | None:
    """None for a graph without collectives."""
    sites = collectives.sites(module)
    return Spmd(module, label, sites) if sites else None


def _ready(arrays: list[jax.Array]) -> list[jax.Array]:
    transfer.wait(arrays)
    return arrays


def _among(groups_of: Sequence[Sequence[int]], ranks: Sequence[int]) -> Among:
    """The groups that run a collective at once, from the one that each rank named.

    Raises:
      GraphError: they are no division of the ranks into groups of one size.
    """
    place = {r: i for i, r in enumerate(ranks)}
    groups = sorted({tuple(place[r] for r in g) for g in groups_of})
    members = sorted(itertools.chain(*groups))
    if members != list(range(len(ranks))) or len({len(g) for g in groups}) != 1:
        raise GraphError(
            f"the groups of a collective ({[[ranks[i] for i in g] for g in groups]}) do not divide the ranks "
            f"{list(ranks)} that run the program into parts of one size; let the graph break there"
        )
    if len(groups) == 1 and groups[0] == tuple(members):
        return Among(len(ranks))
    return Among(len(groups[0]), tuple(groups))


def versions() -> str:
    """What must be alike for two ranks to make the same program of the same graph."""
    return f"torch {torch.__version__}, jax {jax.__version__}, torch_tpu {programs.sources_digest()[:12]}"
