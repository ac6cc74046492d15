"""An FX graph of aten operators as a function of JAX arrays.

AOTAutograd gives a functional graph: no operator in it writes to its operands, but for ``copy_`` into the graph's own
inputs. Each operator is its lowering, applied to the values of its operands, under one JAX trace. What a value looks
like (shape, dtype) is what PyTorch's fake tensors found when the graph was made.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.fx import GraphModule, Node

from torch_tpu.binding.dispatcher import HigherOrder, Operator
from torch_tpu.compile import dimensions, operators, rounding
from torch_tpu.compile.errors import GraphError, at_line
from torch_tpu.eager import operands as eager_operands
from torch_tpu.eager.spec import Kind, Spec, overload_name, spec_for
from torch_tpu.lowering import dtypes, registry

if TYPE_CHECKING:
    from torch_tpu.compile.collectives import Agreement

# Values of symbolic sizes: what a shape's symbols stand for in the program that is traced.
Sizes = Mapping[Any, Any]


@dataclasses.dataclass
class Context:
    """What a graph is evaluated under."""

    sizes: Sizes
    key: Any  # the program's PRNG key, None if nothing is random
    constants: dict[str, Any]  # arrays of the graph's own tensors, by qualified name
    draws: int = 0
    results: tuple[Node, ...] | None = None  # the nodes whose values are wanted; None: all outputs
    written: dict[Node, Any] = dataclasses.field(default_factory=dict)  # placeholder -> its new value
    agreed: Agreement | None = None  # of a program that several ranks run together

    def next_key(self) -> Any:
        """A key for one random operator: the n-th one of the program; None where the program has none."""
        self.draws += 1
        return None if self.key is None else jax.random.fold_in(self.key, self.draws)


@dataclasses.dataclass(frozen=True)
class Subgraph:
    """A graph inside the graph: a branch, the body of a loop."""

    module: GraphModule
    prefix: str  # of the names of its constants

    def __call__(self, operands: Sequence[Any], context: Context, key: Any) -> list[Any]:
        """Its outputs; ``key`` is for its own random operators."""
        inside = dataclasses.replace(context, key=key, draws=0, results=None, written={})
        results = evaluate(self.module, operands, inside, self.prefix)
        if inside.written:
            raise GraphError("a graph inside the graph (a branch, a loop) writes to its operands")
        return results


def concrete(value: Any, sizes: Sizes) -> Any:
    """A SymInt, or anything with SymInts in it, with its symbols replaced by numbers."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expression = value.node.expr
        if dimensions.any_symbolic(sizes):
            return dimensions.evaluate(expression, sizes)
        found = expression.xreplace(sizes) if hasattr(expression, "xreplace") else expression
        kind = int if isinstance(value, torch.SymInt) else float if isinstance(value, torch.SymFloat) else bool
        return kind(found)
    if isinstance(value, (list, tuple)):
        items = [concrete(v, sizes) for v in value]
        return tuple(items) if isinstance(value, (tuple, torch.Size)) else items
    return value


def meta_of(value: Any, sizes: Sizes) -> registry.Meta | None:
    """Shape and dtype of a fake tensor; None for what is not one."""
    if not isinstance(value, torch.Tensor):
        return None
    return registry.Meta(tuple(concrete(tuple(value.shape), sizes)), value.dtype)


def evaluate(module: GraphModule, operands: Sequence[Any], context: Context, prefix: str = "") -> list[Any]:
    """The graph's outputs for the values of its placeholders (arrays, ``dtypes.Scalar``, Python numbers)."""
    values: dict[Node, Any] = {}
    rest = iter(operands)
    last_use = last_uses(module, context.results or ())
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(rest)
        elif node.op == "output":
            wanted = flat(node.args[0]) if context.results is None else context.results
            return [context.written.get(a, value_of(a, values)) if isinstance(a, Node) else a for a in wanted]
        elif node.op == "get_attr":
            values[node] = attribute(module, node, context, prefix)
        else:
            with at_line(node):
                values[node] = rounding.rounded(node, _call(module, node, values, context, prefix))
        for dead in last_use.get(node, ()):
            values.pop(dead, None)
    raise GraphError("the graph has no output")


def draws(module: GraphModule) -> bool:
    """Whether an operator of the graph, or of a graph inside it, is random."""
    saving = torch.ops.higher_order.run_and_save_rng_state
    for node in module.graph.nodes:
        if node.target is saving:
            return True
        if isinstance(node.target, Operator):
            found = spec_for(node.target)
            if found is not None and found.lowering.rng and not _is_still(node):
                return True
    return any(draws(child) for child in module.children() if isinstance(child, GraphModule))


def _is_still(node: Node) -> bool:
    """Attention without dropout: it could draw random numbers, but does not."""
    target: Any = node.target
    given = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | node.kwargs
    by_default = {a.name: a.default_value for a in target._schema.arguments}
    return "dropout_p" in by_default and bool(given.get("dropout_p", by_default["dropout_p"]) == 0)


def last_uses(module: GraphModule, wanted: Sequence[Node]) -> dict[Node, list[Node]]:
    """Node -> the nodes that nobody needs after it; those ``wanted`` are needed to the end."""
    seen = set(wanted)
    last: dict[Node, list[Node]] = {}
    for node in reversed(module.graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                last.setdefault(node, []).append(used)
    return last


def flat(x: Any) -> list[Any]:
    """The leaves of nested lists and tuples."""
    return [v for e in x for v in flat(e)] if isinstance(x, (list, tuple)) else [x]


def value_of(argument: Any, values: Mapping[Node, Any]) -> Any:
    """A node's argument with the values of the nodes in it."""
    if isinstance(argument, Node):
        return values[argument]
    if isinstance(argument, (list, tuple)):
        return type(argument)(value_of(a, values) for a in argument)
    if isinstance(argument, dict):
        return {k: value_of(a, values) for k, a in argument.items()}
    if isinstance(argument, slice):
        return slice(*(value_of(a, values) for a in (argument.start, argument.stop, argument.step)))
    return argument


def _held(module: GraphModule, node: Node) -> Any:
    """What a ``get_attr`` node stands for."""
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def constants_of(module: GraphModule, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors that the graph itself holds, and the graphs inside it, by the names ``Context.constants`` has."""
    found: dict[str, torch.Tensor] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = _held(module, node)
            if isinstance(value, torch.Tensor):
                found[f"{prefix}{node.target}"] = value
            elif isinstance(value, GraphModule):
                found |= constants_of(value, f"{prefix}{node.target}.")
    return found


def attribute(module: GraphModule, node: Node, context: Context, prefix: str) -> Any:
    """What a ``get_attr`` node names: a constant's array, or a subgraph."""
    found = _held(module, node)
    if isinstance(found, torch.Tensor):
        return context.constants[f"{prefix}{node.target}"]
    return Subgraph(found, f"{prefix}{node.target}.") if isinstance(found, GraphModule) else found


def _call(module: GraphModule, node: Node, values: Mapping[Node, Any], context: Context, prefix: str) -> Any:
    target: Any = node.target
    args = tuple(value_of(a, values) for a in node.args)
    kwargs = {k: value_of(a, values) for k, a in node.kwargs.items()}
    if context.agreed is not None and node in context.agreed.varied:
        from torch_tpu.compile.collectives import call_with_own  # it calls operators

        return call_with_own(target, args, kwargs, node.meta.get("val"), context, node)
    if isinstance(target, HigherOrder):
        from torch_tpu.compile import control  # it evaluates graphs

        return control.call(target, node, args, kwargs, context)
    if isinstance(target, Operator):
        return call_operator(target, args, kwargs, node.meta.get("val"), context, node)
    if callable(target):  # arithmetic on sizes, and picking one of several results
        return _plain_function(target, args, kwargs)
    raise GraphError(f"{node.op} of {target!r} is not supported in a compiled graph")


# What PyTorch's functions of symbolic numbers are for numbers that the program computes.
_OF_NUMBERS: dict[str, Callable[..., Any]] = {
    "sym_float": lambda a: a.astype(np.float64),
    "sym_int": lambda a: jnp.trunc(a).astype(np.int64),
    "sym_ite": jnp.where,
    "sym_max": jnp.maximum,
    "sym_min": jnp.minimum,
    "sym_not": jnp.logical_not,
}


def _plain_function(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if target is operator.getitem:
        return args[0][args[1]]
    if any(isinstance(a, dtypes.Scalar) for a in args):  # arithmetic on numbers that the program computes
        name = getattr(target, "__name__", str(target))
        compute = _OF_NUMBERS.get(name, target)
        if compute is target and getattr(operator, name, None) is not target:
            raise GraphError(f"{name} of a tensor's value needs that value on the host")
        result = compute(*(a.array if isinstance(a, dtypes.Scalar) else a for a in args), **kwargs)
        kind = {"b": bool, "f": float}.get(np.dtype(result.dtype).kind, int)
        return dtypes.Scalar(result.astype(dtypes.to_jax(operators.NUMBER_TYPES[kind])), kind)
    if any(dimensions.is_symbolic(a) for a in args):
        target = dimensions.OF_SIZES.get(target, target)
    return target(*args, **kwargs)


def call_operator(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fake: Any, context: Context, node: Node | None
) -> Any:
    """One aten operator on values; several results as a list."""
    schema = op._schema
    bound = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
    own = operators.find(op)
    if own is not None:
        return own(op, bound, fake, context, node)
    spec = spec_for(op)
    if spec is None or spec.mutated:
        raise GraphError(f"{overload_name(op)} has no lowering for tpu")
    return apply(spec, bound, fake, context)


def apply(spec: Spec, bound: dict[str, Any], fake: Any, context: Context) -> Any:
    """A lowering on values bound by the schema's names."""
    results = list(fake) if isinstance(fake, (list, tuple)) else [fake]
    results = [r for e in results for r in (e if isinstance(e, (list, tuple)) else [e])]
    meta = tuple(meta_of(r, context.sizes) for r in results)
    for name in ("output_mask", "grad_input_mask"):
        if name in bound:
            meta = tuple(m if asked else None for m, asked in zip(meta, bound[name], strict=True))
    wide = spec.lowering.wide or any(
        m is not None and m.dtype in (torch.float64, torch.complex128) for m in (*meta, *_types(bound))
    )
    given = {p.name: _operand(p.kind, bound[p.name], p.special, wide) for p in spec.params if p.name in bound}
    key = context.next_key() if spec.lowering.rng else None
    made = list(registry.call(spec.lowering, spec.twin._schema, given, meta, key))
    rest = iter(made)
    out = [next(rest) if m is not None else None for m in meta]
    return out if isinstance(fake, (list, tuple)) else out[0]


def _types(bound: Mapping[str, Any]) -> list[registry.Meta]:
    return [registry.Meta((), dtypes.to_torch(a.dtype)) for a in flat(list(bound.values())) if isinstance(a, jax.Array)]


def _operand(kind: Kind, value: Any, special: tuple[object, ...], wide: bool) -> Any:
    """A number where eager has an operand becomes one here, so that a lowering sees the same."""
    if kind is Kind.TENSORS and value is not None:
        return [_operand(Kind.TENSOR, v, (), wide) for v in value]
    if kind is Kind.NUMBER and isinstance(value, (list, tuple)):
        return [_operand(kind, v, (), wide) for v in value]
    if kind in (Kind.NUMBER, Kind.TENSOR) and value is not None and dimensions.is_symbolic(value):
        return dtypes.Scalar(jnp.asarray(value, np.int64), int)
    if kind in (Kind.NUMBER, Kind.TENSOR) and eager_operands.is_operand(value, special):
        return dtypes.Scalar(jnp.asarray(value, eager_operands.number_dtype(value, wide)), type(value))
    return value
