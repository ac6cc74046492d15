"""How often a loop of a compiled module runs, where the compiler does not say.

The text of libtpu's modules has no ``known_trip_count``, and a 64-bit counter (``lax.scan`` and ``lax.map`` have one
under ``jax_enable_x64``) is two halves with a carry there. So what the condition depends on is computed turn by turn: a
few scalars, from constants.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu.aot.hlo import Computation, Instruction

_MOST = 1 << 16  # turns that are followed
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[..., int]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "minimum": min, "maximum": max, "select": lambda c, a, b: a if c else b,
}  # fmt: skip
_SAME = frozenset({"copy", "bitcast", "bitcast-convert", "convert", "opt-barrier", "reshape"})


class _Unknown(Exception):
    """A value that does not follow from constants."""


def trip_count(loop: Instruction, within: Computation, computations: Mapping[str, Computation]) -> int:
    """How often the body runs; 1 where neither the compiler says it nor it follows from the module's text."""
    said = re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.attributes)
    if said:
        return int(said.group(1))
    start = within.instructions[loop.operands[0]]
    if start.opcode != "tuple":
        return 1
    condition, body = (computations[loop.attribute(name).lstrip("%")] for name in ("condition", "body"))
    try:
        return _followed(condition, body, start, within, computations)
    except (_Unknown, KeyError, IndexError, ValueError):
        return 1


def _followed(
    condition: Computation, body: Computation, start: Instruction, within: Computation,
    computations: Mapping[str, Computation],
) -> int:  # fmt: skip
    made = body.instructions[body.root].operands
    state: dict[int, int] = {}

    def initial(index: int) -> int:
        return _Scalars(within, computations).value(start.operands[index])

    turns = 0
    while True:
        current = _State(state, initial, turns == 0)
        if not _Scalars(condition, computations, current).value(condition.root):
            return turns
        turns += 1
        if turns > _MOST:
            raise _Unknown
        step = _Scalars(body, computations, current)
        # What an update depends on beyond the condition's own is found as it is asked for, in the first turn.
        following, wanted = {}, list(current.asked)
        while wanted:
            index = wanted.pop()
            if index not in following:
                following[index] = step.value(made[index])
                wanted += [i for i in current.asked if i not in following]
        state = following


class _State:
    """The scalars of a loop's tuple: in the first turn those that are asked for, from the values before the loop."""

    def __init__(self, known: dict[int, int], initial: Callable[[int], int], first: bool):
        self.asked, self._initial, self._first = dict(known), initial, first

    def __getitem__(self, index: int) -> int:
        if index not in self.asked and self._first:
            self.asked[index] = self._initial(index)
        return self.asked[index]


class _Scalars:
    """Integers of one computation. ``argument``: its parameters' values, or its one tuple's elements."""

    def __init__(self, within: Computation, computations: Mapping[str, Computation], argument: Any = None):
        self._within, self._computations, self._argument = within, computations, argument
        self._found: dict[str, int] = {}

    def value(self, name: str) -> int:
        if name not in self._found:
            i = self._within.instructions[name]
            if i.is_tuple or not i.result or i.result[0].shape:
                raise _Unknown
            self._found[name] = _held(self._computed(i), i.result[0].dtype)
        return self._found[name]

    def _computed(self, i: Instruction) -> int:
        if i.opcode == "constant":
            return {"true": 1, "false": 0}[i.text] if i.text in ("true", "false") else int(i.text)
        if i.opcode == "get-tuple-element":
            return self._element(i)
        if i.opcode == "parameter" and isinstance(self._argument, list):
            return self._argument[int(i.text)]()
        if i.opcode == "compare":
            return _COMPARISONS[i.attribute("direction")](*map(self.value, i.operands))
        if i.opcode == "not":
            value = self.value(i.operands[0])
            return not value if i.result[0].dtype == "pred" else ~value
        if i.opcode in _SAME:
            return self.value(i.operands[0])
        if i.opcode in _ARITHMETIC:
            return _ARITHMETIC[i.opcode](*map(self.value, i.operands))
        if i.opcode in ("fusion", "call"):
            inner = self._inner(i)
            return inner.value(inner._within.root)
        raise _Unknown

    def _element(self, i: Instruction) -> int:
        source, index = self._within.instructions[i.operands[0]], int(i.attribute("index"))
        if source.opcode == "parameter" and isinstance(self._argument, _State):
            return self._argument[index]
        if source.opcode == "tuple":
            return self.value(source.operands[index])
        if source.opcode == "fusion":
            inner = self._inner(source)
            return inner.value(inner._within.instructions[inner._within.root].operands[index])
        raise _Unknown

    def _inner(self, i: Instruction) -> _Scalars:
        given = [lambda name=name: self.value(name) for name in i.operands]
        return _Scalars(self._computations[i.called[0]], self._computations, given)


def _held(value: int, dtype: str) -> int:
    """As an integer of this type holds it."""
    if dtype == "pred":
        return int(bool(value))
    if not re.fullmatch(r"[su]\d+", dtype):
        raise _Unknown
    bits = int(dtype[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype[0] == "s" and value >> (bits - 1) else value
