"""Evaluating a graph at a bucket of sizes: one program for every size up to the bucket.

Each symbolic dimension is as long as its bucket; how much of it counts is an operand of the program. The elements that
count lie in front along each dimension, so that indices mean what they mean without padding, and what is behind them is
never looked at: an operator that mixes elements (a sum, a product of matrices, a softmax) first has its operand's other
elements replaced by what does not change the result. ``padding_rules`` says what that is, operator by operator; a graph
with an operator that has no rule is compiled for each size instead (``Unpaddable``).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import sympy
import torch
from torch.fx import GraphModule, Node

from torch_tpu.binding.dispatcher import Operator
from torch_tpu.compile.errors import at_line
from torch_tpu.compile.evaluate import Context, attribute, concrete, flat, last_uses, value_of
from torch_tpu.eager.spec import overload_name


class Unpaddable(Exception):
    """The graph must be compiled for each size; the message says why."""


@dataclasses.dataclass(frozen=True)
class Padded:
    """An array of bucket sizes; ``mask`` (bool, of its rank, broadcasting to it) says which elements count."""

    array: Any
    mask: Any

    def filled(self, value: Any) -> Any:
        """The array with everything that does not count replaced."""
        return jnp.where(self.mask, self.array, jnp.asarray(value).astype(self.array.dtype))


@dataclasses.dataclass(frozen=True)
class Length:
    """A number made of sizes: ``bucket`` shapes arrays, ``real`` (a traced int64) is its value."""

    bucket: int
    real: Any


def bucket_of(n: int) -> int:
    """The size that a program is compiled for: at most a quarter longer, a multiple of eight from 8 on."""
    if n <= 8:
        return 8
    step = max(8, 1 << (n.bit_length() - 3))
    return -(-n // step) * step


@dataclasses.dataclass
class Lengths:
    """The symbols of a graph: their buckets, and their values as traced numbers."""

    buckets: Mapping[Any, Any]
    real: Mapping[Any, Any]

    def of(self, value: Any) -> Any:
        """A SymInt as a ``Length``; what is no symbol as it is."""
        if not isinstance(value, torch.SymInt):
            return value
        expression = value.node.expr
        if expression.is_number:
            return int(expression)
        if not _grows(expression):  # as a size it would have a bucket that may be too small
            raise Unpaddable(f"the number {expression}")
        return Length(concrete(value, self.buckets), _traced(expression, self.real))

    def mask(self, fake: torch.Tensor) -> Any:
        """Which elements of a tensor that looks like ``fake`` count; None if all do."""
        mask = None
        for d, n in enumerate(fake.shape):
            length = self.of(n)
            if isinstance(length, Length):
                shape = tuple(length.bucket if i == d else 1 for i in range(fake.dim()))
                ours = jax.lax.broadcasted_iota(jnp.int64, shape, d) < length.real
                mask = ours if mask is None else mask & ours
        return mask

    def padded(self, value: Any, fake: Any) -> Any:
        """Values that look like ``fake``, with the masks that follow from their shapes."""
        if isinstance(fake, (list, tuple)):
            return [self.padded(v, f) for v, f in zip(value, fake, strict=True)]
        if value is None or not isinstance(fake, torch.Tensor):
            return value
        mask = self.mask(fake)
        return value if mask is None else Padded(value, mask)


_TRACED: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: functools.reduce(operator.add, terms),
    "Mul": lambda *terms: functools.reduce(operator.mul, terms),
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": lambda *terms: functools.reduce(jnp.maximum, terms),
    "Min": lambda *terms: functools.reduce(jnp.minimum, terms),
}


def _grows(expression: Any) -> bool:
    """Whether the value for larger symbols is no smaller, so that the buckets' value is a bucket."""
    kind, parts = type(expression).__name__, expression.args
    if kind in ("FloorDiv", "CleanDiv"):
        return _grows(parts[0]) and bool(parts[1].is_number) and parts[1] > 0
    if kind == "Mul":
        return all(_grows(a) and not (a.is_number and a < 0) for a in parts)
    return bool(expression.is_number) or kind == "Symbol" or (kind in ("Add", "Max", "Min") and all(map(_grows, parts)))


def _traced(expression: Any, real: Mapping[Any, Any]) -> Any:
    if isinstance(expression, sympy.Integer):
        return jnp.asarray(int(expression), jnp.int64)
    if isinstance(expression, sympy.Symbol) and expression in real:
        return real[expression]
    rule = _TRACED.get(type(expression).__name__)
    if rule is None:
        raise Unpaddable(f"the number {expression}")
    return rule(*(_traced(a, real) for a in expression.args))


def evaluate(
    module: GraphModule, operands: Sequence[Any], context: Context, lengths: Lengths, wanted: Sequence[Node]
) -> list[Any]:
    """The values of the wanted nodes: ``Padded`` where not all elements count, else arrays.

    Args:
      operands: the placeholders' values: ``Padded``, arrays, numbers. Sizes are not looked at.
      context: with the buckets as its sizes.
    """
    from torch_tpu.compile import padding_rules

    values: dict[Node, Any] = {}
    rest = iter(operands)
    last_use = last_uses(module, wanted)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(rest)
        elif node.op == "output":
            return [context.written.get(a, values[a]) for a in wanted]
        elif node.op == "get_attr":
            values[node] = attribute(module, node, context, "")
        else:
            with at_line(node, Unpaddable):
                values[node] = _call(node, values, context, lengths, padding_rules.apply)
        if node.users and isinstance(node.meta.get("val"), (torch.SymInt, int)):
            values[node] = lengths.of(node.meta["val"])
        for dead in last_use.get(node, ()):
            values.pop(dead, None)
    raise Unpaddable("no output")


def _call(node: Node, values: Mapping[Node, Any], context: Context, lengths: Lengths, rules: Any) -> Any:
    target: Any = node.target
    args = tuple(value_of(a, values) for a in node.args)
    kwargs = {k: value_of(a, values) for k, a in node.kwargs.items()}
    if isinstance(node.meta.get("val"), (torch.SymInt, int)):
        return None  # ``lengths`` knows it
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, Operator):
        raise Unpaddable(f"{getattr(target, '__name__', target)}")
    bound = dict(zip((a.name for a in target._schema.arguments), args, strict=False)) | kwargs
    if isinstance(node.meta.get("val"), (torch.SymFloat, torch.SymBool)):
        raise Unpaddable(f"a number made of sizes by {overload_name(target)}")
    return rules(target, bound, node, context, lengths)


def has_padding(x: Any) -> bool:
    return any(isinstance(v, (Padded, Length)) for v in flat(x))
