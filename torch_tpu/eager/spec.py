"""What eager needs to know of an operator, worked out once from its schema.

``spec_for`` also finds the *functional twin* of an in-place, ``out=`` or otherwise mutating operator: the operator
whose lowering computes what is then written back. Twins follow aten's own conventions: the same parameters without
the out ones, and the new values of mutated parameters after the plain results.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

import torch

from torch_tpu.binding import dispatcher
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.lowering import registry
from torch_tpu.lowering.registry import Lowering

# Twins whose names follow no rule.
_TWIN_NAMES = {
    "aten::normal_": "aten::normal_functional",
    "aten::_native_batch_norm_legit": "aten::_native_batch_norm_legit_functional",
    "aten::copy_": "aten::copy",
}
# Lowerings that never look at the old values of ``self``: nothing is read, and nothing is allocated first.
_IGNORES_SELF = frozenset({
    "aten::fill.Scalar", "aten::fill.Tensor", "aten::zero", "aten::copy", "aten::uniform", "aten::normal_functional",
    "aten::bernoulli.p", "aten::bernoulli.Tensor", "aten::exponential", "aten::geometric", "aten::cauchy",
    "aten::log_normal", "aten::random", "aten::random.from", "aten::random.to",
})  # fmt: skip
# Operators whose result's shape follows from the values of numbers: a plan is for those values, though its program
# may serve others too.
_SHAPED_BY_NUMBERS = frozenset({"aten::arange", "aten::range", "aten::linspace", "aten::logspace"})


class Kind(enum.Enum):
    TENSOR = enum.auto()
    TENSORS = enum.auto()
    NUMBER = enum.auto()  # its value may be an operand
    STATIC = enum.auto()
    GENERATOR = enum.auto()
    DROPPED = enum.auto()


@dataclasses.dataclass(frozen=True)
class Param:
    name: str
    kind: Kind
    keyword: bool
    default: object
    mutated: bool = False
    out: bool = False
    special: tuple[object, ...] = ()  # values of a NUMBER that are part of the program


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
    op: Operator
    name: str
    twin: Operator  # the functional operator; ``op`` itself where that is functional
    lowering: Lowering
    params: tuple[Param, ...]
    plain_returns: int  # results that are new tensors
    returns: tuple[str | None, ...]  # for each return: the mutated parameter it is, or None
    list_return: bool
    ignores_self: bool
    shaped_by_numbers: bool
    takes_lazy_bits: bool

    @property
    def mutated(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if p.mutated)


def overload_name(op: Operator) -> str:
    """``"aten::add.Tensor"``; the default overload has no suffix."""
    return op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def arguments(op: Operator, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments bound by name as an operator takes them: positional ones, and keywords."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    positional = True
    for a in op._schema.arguments:
        if a.name not in values:
            positional = False
        elif positional and not a.kwarg_only:
            args.append(values[a.name])
        else:
            kwargs[a.name] = values[a.name]
    return args, kwargs


def find(name: str) -> Operator | None:
    """The operator called ``"ns::packet.overload"``, or None."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload or "default", None)


def _inputs(op: Operator) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]


_CREATION = frozenset({"dtype", "layout", "device", "pin_memory"})


def _serves(other: Operator, op: Operator) -> bool:
    """Whether a functional operator takes what ``op`` does; an ``out=`` form says type and place by the tensor."""
    theirs, ours = _inputs(other), _inputs(op)
    if theirs != ours and any(a.is_out for a in op._schema.arguments):
        theirs = [a for a in theirs if a[0] not in _CREATION]
    return theirs == ours


@functools.cache
def twin_of(op: Operator) -> Operator | None:
    """The functional operator whose lowering serves ``op``: itself, or its twin; None if there is none."""
    schema = op._schema
    if not any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return op
    if op.namespace != "aten":
        return None
    name = overload_name(op)
    if name in _TWIN_NAMES:
        return find(_TWIN_NAMES[name])
    base = schema.name.removesuffix("_") if not schema.name.endswith("__") else schema.name
    for candidate in (base, f"{base}_functional", schema.name):
        packet = getattr(torch.ops.aten, candidate.partition("::")[2], None)
        if packet is None:
            continue
        overloads = [getattr(packet, o) for o in packet.overloads()]
        # The overload of the same name first: several may take the same parameters.
        overloads.sort(key=lambda o: o._schema.overload_name != schema.overload_name)
        for other in overloads:
            writes = any(a.alias_info is not None and a.alias_info.is_write for a in other._schema.arguments)
            if not writes and _serves(other, op):
                return other
    return None


def _kind(argument: torch.Argument, lowering: Lowering) -> Kind:
    text = str(argument.type)
    bare = text.removeprefix("Optional[")
    if bare.startswith("Tensor"):
        return Kind.TENSOR
    if text.startswith(("List[Tensor", "List[Optional[Tensor", "Optional[List[Tensor")):
        return Kind.TENSORS
    if "Generator" in text:
        return Kind.GENERATOR
    if argument.name in registry.DROPPED and not lowering.keeps_all:
        return Kind.DROPPED
    if argument.name in lowering.operands or (
        bare.startswith(("number", "float")) and argument.name not in lowering.static
    ):
        return Kind.NUMBER
    return Kind.STATIC


def spec_for(op: Operator) -> Spec | None:
    """The spec of an operator that a lowering serves, directly or through its twin; None for any other."""
    twin = twin_of(op)
    lowering = registry.get(overload_name(twin)) if twin is not None else None
    if twin is None or lowering is None:
        return None
    params = []
    for a in op._schema.arguments:
        mutated = a.alias_info is not None and a.alias_info.is_write
        special = lowering.specialize.get(a.name, ())
        kind = _kind(a, lowering)
        if kind is Kind.NUMBER and a.default_value is not None:
            special = (a.default_value, *special)
        params.append(Param(a.name, kind, a.kwarg_only, a.default_value, mutated, a.is_out, tuple(special)))
    returns = tuple(_aliased(op, r) for r in op._schema.returns)
    plain = sum(r is None for r in returns)
    list_return = len(op._schema.returns) == 1 and isinstance(op._schema.returns[0].type, torch.ListType)
    return Spec(
        op, overload_name(op), twin, lowering, tuple(params), plain, returns, list_return,
        lowering.name in _IGNORES_SELF, op._schema.name in _SHAPED_BY_NUMBERS,
        dispatcher.takes_lazy_bits(overload_name(op)),
    )  # fmt: skip


def _aliased(op: Operator, returned: torch.Argument) -> str | None:
    if returned.alias_info is None:
        return None
    for a in op._schema.arguments:
        if a.alias_info is not None and a.alias_info.before_set == returned.alias_info.before_set:
            return a.name
    return None
