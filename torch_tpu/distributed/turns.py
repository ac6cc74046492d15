"""Whether all ranks of a group run the same operations in the same order: compared also where programs are known.

Two programs that do not belong together may fit each other, and then each rank has a wrong result: a sum here and a
maximum there, of as many elements. So a rank keeps a running digest of what it has run in a group, and before it starts
an operation leaves the digest in the store, or finds there what the first rank has left: one request of about 40 us,
while others come. The rank that differs does not start, and what it says ends the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zlib

from torch_tpu.distributed import board
from torch_tpu.distributed.operation import Disagreement, Members, mismatch

_PLACES = 64  # in the store, written again and again
_BUSY_GROUP = 8  # ranks, up to which every operation is compared: the store is one process that all of them ask


@dataclasses.dataclass(frozen=True)
class Turn:
    """Operation ``number`` of a group: ``what``, after all that came before it (``digest``)."""

    group: Members
    number: int
    what: str
    digest: int
    before: str  # what the turn whose place in the store this one takes has left there

    @property
    def text(self) -> str:
        return f"{self.number}|{self.digest:08x}|{self.what}"

    def confirm(self, *, always: bool = False) -> None:
        """Compare it with the others'.

        Args:
          always: also where a large group compares one of several operations.

        Raises:
          Disagreement: another rank runs something else. The others are told.
        """
        if self.group.size == 1:
            return
        every = stride(self.group.size)
        if self.number % every == 0:
            self._compare(f"turn/{self.group.name}/{self.number // every % _PLACES}", self.before)
        elif always:
            self._compare(f"new/{self.group.name}/{self.number}", "")

    def _compare(self, key: str, before: str) -> None:
        found = ""
        with contextlib.suppress(Exception):  # a store that has ended with its rank compares nothing
            found = board.current().first(key, self.text, before)
            if found != self.text and _number(found) < self.number:
                found = board.current().first(key, self.text, found)  # nobody has been at the turn before
        if found == self.text or not found or _number(found) != self.number:
            return
        other = found.split("|", 2)[2]
        text = mismatch(self.group, self.number, self.what, other)
        if other == self.what:
            text += ", but not the same operations before it"
        board.current().fail(text)
        raise Disagreement(text)


def _number(text: str) -> int:
    return int(text.partition("|")[0] or 0)


def stride(size: int) -> int:
    """One of how many operations is compared in a group of this size."""
    return 1 << max((size - 1).bit_length() - _BUSY_GROUP.bit_length() + 1, 0)


class Turns:
    """Those of a group, in their order."""

    def __init__(self, group: Members):
        self._group = group
        self._digest = 0
        self._left = [""] * _PLACES

    def next(self, number: int, what: str) -> Turn:
        self._digest = zlib.crc32(what.encode(), self._digest)
        every = stride(self._group.size)
        place = number // every % _PLACES
        turn = Turn(self._group, number, what, self._digest, self._left[place])
        if number % every == 0:
            self._left[place] = turn.text
        return turn
