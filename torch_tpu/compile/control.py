"""Higher-order operators of a graph: branches, loops, scans, subgraphs, saved random states.

Each becomes JAX's own operator of the kind; the graphs inside are evaluated as the graph around them is. Index checks
made inside a branch or a loop travel out of it as further results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.fx import Node

from torch_tpu.binding.dispatcher import HigherOrder
from torch_tpu.compile.errors import GraphError
from torch_tpu.compile.evaluate import Context, Subgraph, call_operator, draws
from torch_tpu.lowering import checks, dtypes

Handler = Callable[[Node, tuple[Any, ...], dict[str, Any], Context], Any]
_HANDLERS: dict[str, Handler] = {}

# Those that no program can have, and why.
REFUSED = {
    "while_loop_stack_output": (
        "the backward of while_loop keeps the values of every iteration, and how many there will be is not known when "
        "the program is compiled; use torch._higher_order_ops.scan, whose length is"
    ),
    **dict.fromkeys(
        ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"),
        "a Triton kernel does not run on tpu; write it as PyTorch operators, or as a Pallas kernel",
    ),
}


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Declare a function as the meaning of the named higher-order operators."""

    def declare(fn: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(names, fn))
        return fn

    return declare


def call(target: Any, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    """The results of a higher-order operator for the values of its arguments."""
    return _HANDLERS[target.name()](node, args, kwargs, context)


def refuse_impossible(target: Any) -> None:
    """Raise ``GraphError`` for a higher-order operator that no program can have."""
    if target.name() in REFUSED:
        raise GraphError(REFUSED[target.name()])


def require(target: Any) -> None:
    """Raise ``GraphError`` for a higher-order operator that tpu does not have."""
    if target.name() not in _HANDLERS:
        raise GraphError(f"the higher-order operator {target.name()} is not supported on tpu")


class _Body:
    """A subgraph as a function of arrays alone, as JAX's control flow takes it.

    Called with (key, arrays) it gives (results, reports): ``reports`` is int64[checks, 2], what the index checks made
    inside found, and ``notes`` what they are, once it has been traced.
    """

    def __init__(self, graph: Subgraph, operands: Sequence[Any], context: Context, carried: int = 0):
        self.graph, self.context = graph, context
        # Numbers that a loop carries are operands; the others (sizes) are part of the program.
        self.operands = [
            dtypes.Scalar(None, type(o)) if i < carried and isinstance(o, (bool, int, float)) else o
            for i, o in enumerate(operands)
        ]
        self.notes: list[checks.Check] = []
        self.is_random = draws(graph.module)
        outputs: Any = next(n for n in reversed(graph.module.graph.nodes) if n.op == "output").args[0]
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        self.fakes = [o.meta.get("val") if isinstance(o, Node) else o for o in outputs]

    def key(self) -> Any:
        """A key of the surrounding program for all that is random inside; zeros if nothing is."""
        return self.context.next_key() if self.is_random else jax.random.key(0, impl="threefry2x32")

    def __call__(self, key: Any, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        operands = [
            dtypes.Scalar(a, o.kind) if isinstance(o, dtypes.Scalar) else a if isinstance(o, jax.Array) else o
            for a, o in zip(arrays, self.operands, strict=True)
        ]
        with checks.collect() as made:
            found = self.graph(operands, self.context, key if self.is_random else None)
        self.notes = [c._replace(report=None) for c in made]
        reports = jnp.stack([c.report for c in made]) if made else jnp.zeros((0, 2), jnp.int64)
        return [_typed(v, f) for v, f in zip(found, self.fakes, strict=True)], reports

    def count(self, key: Any, arrays: Sequence[Any]) -> int:
        """How many checks are made inside."""
        return jax.eval_shape(self, key, arrays)[1].shape[0]

    def report(self, reports: Any) -> None:
        """Hand on what the checks found, in whichever iteration: reports is int64[..., checks, 2]."""
        for i, note in enumerate(self.notes):
            rows = reports[..., i, :].reshape(-1, 2)
            if rows.shape[0]:
                checks.again(rows[jnp.argmax(rows[:, 0])], note.message, note.error)


def _typed(value: Any, fake: Any) -> Any:
    """A result as an array of the type that PyTorch gives it; None stays."""
    if value is None:
        return None
    value = _array(value)
    return dtypes.cast(value, fake.dtype) if isinstance(fake, torch.Tensor) else value


def _array(x: Any) -> Any:
    if isinstance(x, dtypes.Scalar):
        return x.array
    if isinstance(x, (bool, int, float, complex)):
        return jnp.asarray(x, dtypes.to_jax(dtypes.scalar_dtype(type(x))) if not isinstance(x, float) else jnp.float64)
    return x


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [_array(v) for v in values]


def _graph(x: Any) -> Subgraph:
    if not isinstance(x, Subgraph):
        raise GraphError(f"expected a graph, got {type(x).__name__}")
    return x


@handles("cond")
def cond(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    predicate, when_true, when_false, operands = args
    if isinstance(predicate, bool):  # a size decides
        return _inline(_graph(when_true if predicate else when_false), operands, context)
    branches = [_Body(_graph(g), operands, context) for g in (when_true, when_false)]
    keys, arrays = [b.key() for b in branches], _arrays(operands)
    counts = [b.count(k, arrays) for b, k in zip(branches, keys, strict=True)]

    def branch(at: int) -> Callable[[list[Any]], Any]:
        def run(arrays: list[Any]) -> Any:
            found, reports = branches[at](keys[at], arrays)
            return found, [reports if i == at else jnp.zeros((n, 2), jnp.int64) for i, n in enumerate(counts)]

        return run

    found, reports = lax.cond(_array(predicate).reshape(()).astype(bool), branch(0), branch(1), arrays)
    for b, r in zip(branches, reports, strict=True):
        b.report(r)
    return found


@handles("while_loop")
def while_loop(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    condition, body, carried, additional = args
    more = [*carried, *additional]
    test, step = (_Body(_graph(g), more, context, len(carried)) for g in (condition, body))
    key, rest = step.key(), _arrays(additional)
    first = _arrays(carried)
    count = step.count(key, [*first, *rest])
    looks = jnp.zeros((test.count(key, [*first, *rest]), 2), jnp.int64)

    def worst(old: Any, new: Any) -> Any:
        return jnp.where(old[:, :1] > 0, old, new)

    def tested(carry: list[Any], looked: Any) -> tuple[Any, Any]:
        (verdict,), reports = test(key, [*carry, *rest])
        return verdict.reshape(()).astype(bool), worst(looked, reports)

    def run(state: Any) -> Any:
        _, i, carry, found, looked = state
        carry, reports = step(jax.random.fold_in(key, i), [*carry, *rest])
        go, looked = tested(carry, looked)
        return go, i + 1, carry, worst(found, reports), looked

    # The types of the first iteration are those of all: what PyTorch's own check of the body asks for.
    go, looks = tested(first, looks)
    start = (go, jnp.int32(0), first, jnp.zeros((count, 2), jnp.int64), looks)
    _, _, last, found, looked = lax.while_loop(lambda state: state[0], run, start)
    step.report(found)
    test.report(looked)
    return [dtypes.Scalar(v, type(o)) if isinstance(o, (bool, int, float)) else v for v, o in zip(last, carried)]


@handles("scan")
def scan(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    graph, init, xs, additional = args
    body = _Body(_graph(graph), [*init, *xs, *additional], context)
    key, first, rest, n = body.key(), _arrays(init), _arrays(additional), len(init)

    def run(state: Any, slices: Any) -> Any:
        i, carry = state
        found, reports = body(jax.random.fold_in(key, i), [*carry, *slices, *rest])
        return (i + 1, found[:n]), (found[n:], reports)

    (_, last), (ys, reports) = lax.scan(run, (jnp.int32(0), first), _arrays(xs))
    body.report(reports)
    return [*last, *ys]


@handles("map_impl")
def map_(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    graph, xs, additional = args
    body = _Body(_graph(graph), [*xs, *additional], context)
    key, rest = body.key(), _arrays(additional)

    def run(i: Any, slices: Any) -> Any:
        return i + 1, body(jax.random.fold_in(key, i), [*slices, *rest])

    _, (ys, reports) = lax.scan(run, jnp.int32(0), _arrays(xs))
    body.report(reports)
    return ys


@handles("associative_scan")
def associative_scan(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    graph, xs, additional = args
    body = _Body(_graph(graph), [*xs, *xs, *additional], context)
    key, rest, gathered = body.key(), _arrays(additional), []

    def combine(left: Any, right: Any) -> Any:
        found, reports = jax.vmap(lambda a, b: body(key, [*a, *b, *rest]))(left, right)
        gathered.append(reports)
        return found

    found = lax.associative_scan(combine, _arrays(xs), axis=0)
    if gathered:
        body.report(jnp.concatenate(gathered))
    return found


def _inline(graph: Subgraph, operands: Sequence[Any], context: Context) -> list[Any]:
    key = context.next_key() if draws(graph.module) else None
    return graph(operands, context, key)


@handles("invoke_subgraph")
def invoke_subgraph(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    graph, _identifier, *operands = args
    return _inline(_graph(graph), operands, context)


@handles("hints_wrapper")
def hints_wrapper(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    graph, operands = args[:2]
    return _inline(_graph(graph), operands, context)


@handles("foreach_map", "invoke_quant", "invoke_quant_packed", "strict_mode")
def apply_graph(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    graph, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    return _inline(_graph(graph), operands, context)


@handles("out_dtype")
def out_dtype(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    op, dtype, *operands = args
    wide = [dtypes.cast(o, dtype) if isinstance(o, jax.Array) else o for o in operands]
    return call_operator(op, tuple(wide), kwargs, node.meta.get("val"), context, node)


# A saved random state is the key that the operator drew, as int32[2] (see ``saved_states``).


@handles("run_and_save_rng_state")
def run_and_save_rng_state(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    op, *rest = args
    key = context.next_key()
    state = lax.bitcast_convert_type(jax.random.key_data(key), jnp.int32)
    return state, _with_key(key, op, rest, kwargs, node.meta["val"][1], context)


@handles("run_with_rng_state")
def run_with_rng_state(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    state, op, *rest = args
    key = jax.random.wrap_key_data(lax.bitcast_convert_type(state, jnp.uint32), impl="threefry2x32")
    return _with_key(key, op, rest, kwargs, node.meta["val"], context)


def _with_key(key: Any, op: Any, args: Sequence[Any], kwargs: dict[str, Any], fake: Any, context: Context) -> Any:
    return call_operator(op, tuple(args), kwargs, fake, dataclasses.replace(context, key=key, draws=0), None)


@handles("with_effects")
def with_effects(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context) -> Any:
    """The order of effects is that of the graph; the token that stands for it has no value."""
    token, op, *rest = args
    if isinstance(op, HigherOrder):
        found = call(op, node, tuple(rest), kwargs, context)
    else:
        found = call_operator(op, tuple(rest), kwargs, node.meta["val"][1], context, node)
    return (token, *found) if isinstance(found, (list, tuple)) else (token, found)
