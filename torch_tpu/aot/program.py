"""A captured graph as one XLA program that is not compiled yet: operands, results, donation, StableHLO.

Weights and everything that the graph overwrites lie as eager and torch.compile lay them (``eager/views.py``). What the
graph only hands through (a parameter that backward needs, a view of one) is no result of the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.fx import Node

from torch_tpu.aot.errors import CompilerError
from torch_tpu.aot.kernels import Source, line_of, sources
from torch_tpu.aot.trace import Captured, placeholders, source_of, written
from torch_tpu.compile.evaluate import Context, constants_of, evaluate
from torch_tpu.compile.runner import draws
from torch_tpu.eager import views
from torch_tpu.lowering import checks, dtypes
from torch_tpu.runtime import interpretation


@dataclasses.dataclass(frozen=True)
class Value:
    """An operand or a result of a program, as it lies in memory."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A program to compile: ``exported`` is StableHLO in JAX's portable form."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    donated: tuple[int, ...]  # operands that are overwritten in place: results 0, 1, ... are their new values
    exported: bytes
    matrix_flops: float  # of products and convolutions, before the compiler
    kernels: tuple[Source, ...] = ()


def lower(captured: Captured) -> Program:
    """The program of a captured graph, for TPUs of any kind."""
    graph = _Graph(captured)
    # While a kernel is translated JAX asks for the chip, as for a division in it.
    _, chip = interpretation.target("cpu")
    with jax.enable_x64(True), interpretation.seen_as(chip):
        jitted = jax.jit(graph.body, donate_argnums=graph.donated, keep_unused=True)
        jaxpr = jitted.trace(*graph.avals).jaxpr.jaxpr
        flops, found = matrix_flops(jaxpr), tuple(sources(jaxpr))
        with _naming_kernels(captured.name, found):
            exported = jax.export.export(jitted, platforms=("tpu",))(*graph.avals)
        blob = bytes(exported.serialize())
    results = tuple(
        Value(name, role, tuple(a.shape), str(np.dtype(a.dtype)), _nbytes(a))
        for (name, role), a in zip(graph.result_labels(len(exported.out_avals)), exported.out_avals, strict=True)
    )
    operands = tuple(
        Value(name, role, tuple(a.shape), str(np.dtype(a.dtype)), _nbytes(a))
        for name, role, a in zip(graph.names, graph.roles, graph.avals, strict=True)
    )
    return Program(captured.name, operands, results, graph.donated, blob, flops, found)


@contextlib.contextmanager
def _naming_kernels(name: str, known: Sequence[Source]) -> Iterator[None]:
    """What JAX does not translate for a TPU in a kernel is an error with the kernel's line."""
    try:
        yield
    except Exception as e:
        where = line_of(e)
        if not known or not where:
            raise
        reason = re.sub(r"\.? Please file (?:an issue|a bug) at \S+", "", str(e))
        raise CompilerError(
            f"JAX does not translate the {name} program for TPUs: {reason}\n  in the Pallas kernel at {where}"
        ) from e


class _Graph:
    def __init__(self, captured: Captured):
        self.module = captured.module
        self.inputs = placeholders(self.module)
        changed = written(self.module)
        self.fakes = [n.meta["val"] for n in self.inputs]
        for node, fake in zip(self.inputs, self.fakes, strict=True):
            if not isinstance(fake, torch.Tensor):
                raise NotImplementedError(f"a program operand that is not a tensor: {node.name} = {fake!r}")
        self.names, self.roles = list(captured.names), list(captured.roles)
        self.donated = tuple(i for i, n in enumerate(self.inputs) if n in changed)
        self.layouts = [_layout(f) for f in self.fakes]
        self.constants = constants_of(self.module)  # operands too: their values do not matter here
        self.is_random = draws(self.module)
        self.results: list[Node] = []
        self.labels: list[tuple[str, str]] = []
        outs = list(self.module.graph.nodes)[-1].args[0]
        for i, node in enumerate(outs):  # type: ignore[arg-type]
            if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
                continue
            if source_of(node) in self.inputs or node in self.results or node in changed:
                continue
            self.results.append(node)
            self.labels.append((node.name, captured.result_role(i)))
        self.avals = [jax.ShapeDtypeStruct(layout.shape, layout.dtype) for layout in self.layouts]
        for name, t in self.constants.items():
            self._more(name, "weights", tuple(t.shape), dtypes.to_jax(t.dtype))
        if self.is_random:
            self._more("random key", "inputs", (2,), np.dtype(np.uint32))

    def _more(self, name: str, role: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.names.append(name)
        self.roles.append(role)
        self.avals.append(jax.ShapeDtypeStruct(shape, dtype))

    def result_labels(self, count: int) -> list[tuple[str, str]]:
        own = [(self.names[i], self.roles[i]) for i in self.donated] + self.labels
        return own + [("checks", "outputs")] * (count - len(own))

    def body(self, *operands: Any) -> list[Any]:
        rest = iter(operands)
        raw = [next(rest) for _ in self.inputs]
        solved = [_view(f, layout) for f, layout in zip(self.fakes, self.layouts, strict=True)]
        constants = {name: next(rest) for name in self.constants}
        key = jax.random.wrap_key_data(next(rest), impl="threefry2x32") if self.is_random else None
        context = Context({}, key, constants, results=tuple(self.results))
        values = [v.read(r, None) for v, r in zip(solved, raw, strict=True)]
        with checks.collect() as made:
            computed = evaluate(self.module, values, context)
        out = [solved[i].write(raw[i], context.written[self.inputs[i]], None) for i in self.donated]
        for value, node in zip(computed, self.results, strict=True):
            fake = node.meta["val"]
            laid = dtypes.cast(value, fake.dtype)
            out.append(views.lay_out(laid, tuple(fake.shape), fake.stride(), _layout(fake)))
        return out + ([jax.numpy.stack([c.report for c in made])] if made else [])


def _layout(fake: torch.Tensor) -> Any:
    return views.layout_of(tuple(fake.shape), fake.stride(), fake.dtype, 0)


def _view(fake: torch.Tensor, layout: Any) -> views.View:
    return views.solve(layout, tuple(fake.shape), fake.stride(), 0, dtypes.to_jax(fake.dtype))


def _nbytes(aval: Any) -> int:
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize


def matrix_flops(jaxpr: Any) -> float:
    """Floating point operations of the products and convolutions in a JAX program; a ``while`` counts once."""
    total = 0.0
    for eqn in jaxpr.eqns:
        estimate = eqn.params.get("cost_estimate")  # of a kernel, which knows better what its steps are together
        if estimate is not None and estimate.flops:
            total += estimate.flops
            continue
        if eqn.primitive.name == "dot_general":
            ((contracted, _), _) = eqn.params["dimension_numbers"]
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(
                eqn.invars[0].aval.shape[d] for d in contracted
            )  # fmt: skip
        elif eqn.primitive.name == "conv_general_dilated":
            kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
            window = math.prod(kernel[d] for d in spec[1:])
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * window
        inner = [matrix_flops(j) for j in _jaxprs(list(eqn.params.values()))]
        if inner:
            times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else _steps(eqn)
            total += times * (max(inner) if eqn.primitive.name == "cond" else sum(inner))
    return total


def _steps(eqn: Any) -> int:
    """How often the body of a kernel runs; a dimension of the grid that is known when it runs counts once."""
    grid = getattr(eqn.params.get("grid_mapping"), "grid", ())
    return math.prod(n for n in grid if isinstance(n, int))


def _jaxprs(values: Sequence[Any]) -> list[Any]:
    found = []
    for v in values:
        if isinstance(v, (list, tuple)):
            found += _jaxprs(v)
        elif hasattr(v, "jaxpr"):
            found.append(v.jaxpr)
        elif hasattr(v, "eqns"):
            found.append(v)
    return found
