"""What ranks tell each other before they run a program together: each one's own description of it.

Nothing has to be known of who takes part. A rank knows the groups that its program uses; their members say which
others theirs uses; and so on, until no group is new.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from torch_tpu.distributed import board
from torch_tpu.distributed.group import Group
from torch_tpu.distributed.operation import Operation


@dataclasses.dataclass(frozen=True)
class Place:
    """A group as another rank names it: what an operation says of a group that this rank may not be in."""

    name: str
    ranks: list[int]
    rank: int  # this process's place in it, -1 where it has none
    global_rank: int
    timeout: float

    @property
    def size(self) -> int:
        return len(self.ranks)


def exchange(groups: Sequence[Group], what: str, record: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Every rank's record, by its number in the world: of the members of the groups, of theirs, and so on.

    Args:
      what: in words, alike on all ranks that do the same.
      record: of this rank; it travels as JSON.

    Raises:
      DistBackendError: a rank failed, does something else, or did not come in time.
    """
    me = groups[0]
    named = []
    for g in groups:
        g.number += 1
        named.append([g.name, g.number, g.ranks])
    text = json.dumps({**record, "groups": named})
    for name, number, _ in named:
        board.current().publish(_key(name, number, me.global_rank), text)
    records: dict[int, dict[str, Any]] = {}
    waiting, known = list(named), {n[0] for n in named}
    while waiting:
        name, number, ranks = waiting.pop(0)
        rank = ranks.index(me.global_rank) if me.global_rank in ranks else -1
        place = Place(name, ranks, rank, me.global_rank, me.timeout)
        for member, found in _read(place, number, what).items():
            records.setdefault(member, found)
            for group in found["groups"]:
                if group[0] not in known:
                    known.add(group[0])
                    waiting.append(group)
    return dict(sorted(records.items()))


def _key(name: str, number: int, rank: int) -> str:
    return f"record/{name}/{number}/{rank}"


_NAP_SECONDS = 0.002


def _read(place: Place, number: int, what: str) -> dict[int, dict[str, Any]]:
    """The records of a group's members."""
    keys = [_key(place.name, number, r) for r in place.ranks]
    Operation(
        place, number, what, [], lambda: board.current().has(keys), lambda: None,
        pause=lambda seconds: time.sleep(min(_NAP_SECONDS, seconds)),
    ).wait()  # fmt: skip
    return {r: json.loads(board.current().read(k)) for r, k in zip(place.ranks, keys, strict=True)}


def differ(what: str, group: Group, records: dict[int, dict[str, Any]], text: str) -> dist.DistBackendError:
    """The error of ranks whose programs differ: where they first do. All of them come here.

    Args:
      records: by rank; ``digest`` is that of its text.
      text: this rank's, a line an operator.
    """
    me = group.global_rank
    digests = {r: records[r]["digest"] for r in records}
    board.current().publish(f"text/{digests[me]}", text)
    keys = [f"text/{d}" for d in digests.values()]
    place = Place(group.name, list(records), list(records).index(me), me, group.timeout)
    Operation(
        place, group.number, f"telling {what}", [], lambda: board.current().has(keys), lambda: None,
        pause=lambda seconds: time.sleep(min(_NAP_SECONDS, seconds)),
    ).wait()  # fmt: skip
    ranks = list(records)
    first, other = ranks[0], next(r for r in ranks if digests[r] != digests[ranks[0]])
    a, b = (board.current().read(f"text/{digests[r]}").splitlines() for r in (first, other))
    pairs = itertools.zip_longest(a, b, fillvalue="(nothing)")
    line, one, two = next((i, x, y) for i, (x, y) in enumerate(pairs) if x != y)
    message = (
        f"tpu_dist: ranks disagree on {what}, at line {line} of its graph:\n  rank {first}: {one}\n"
        f"  rank {other}: {two}"
    )
    board.current().fail(message)
    return dist.DistBackendError(message)
