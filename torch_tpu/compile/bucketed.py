"""Running a graph of symbolic sizes: a program a bucket of sizes, for every size in it.

Inputs are padded to the bucket, results are views of the padded ones. What forward keeps for backward stays padded in
between. How the values stay right: ``padded``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.fx import Node

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.compile import padded
from torch_tpu.compile.evaluate import Context, Sizes, concrete
from torch_tpu.compile.padded import Lengths, Padded, Unpaddable
from torch_tpu.eager import views
from torch_tpu.lowering import checks, dtypes
from torch_tpu.runtime import errors, platform, programs, transfer
from torch_tpu.runtime.buffers import Buffer, Layout, canonical_strides

if TYPE_CHECKING:
    from torch_tpu.compile.runner import Graph

# Inputs up to this size are padded on the way through the host, which compiles nothing; on XLA:CPU all are, since
# host memory is the device's.
_THROUGH_HOST = 1 << 20


@dataclasses.dataclass
class _Plan:
    """A program for a bucket, and how its operands and results lie."""

    program: programs.Program
    outs: tuple[tuple[binding_tensor.Factory, Layout, tuple[int, ...]], ...]  # with the strides of the padded result


class Bucketed:
    """What a graph needs to run by buckets. Raises ``Unpaddable`` where its values cannot be padded."""

    def __init__(self, graph: Graph, user_outputs: int | None):
        if graph.written_at or graph.host_part is not None or graph.number_at or graph.uploaded:
            raise Unpaddable("the graph overwrites an input, computes on the host, or takes a tensor from there")
        if any(o.kind in ("host", "number") or o.download for o in graph.outputs):
            raise Unpaddable("a result is on the host")
        self.graph = graph
        self.user_outputs = len(graph.outputs) if user_outputs is None else user_outputs
        self.plans: dict[Any, _Plan] = {}
        # Position among the program's results of each output that it computes: here each view is a result of its own.
        self.at: dict[int, int] = {}
        nodes: dict[Node, int] = {}
        for position, (o, node) in enumerate(zip(graph.outputs, graph.output_nodes, strict=True)):
            if o.kind in ("program", "part"):
                self.at[position] = nodes.setdefault(node, len(nodes))
        self.result_nodes = tuple(nodes)
        self.results = [n.meta["val"] for n in nodes]
        self.symbolic = tuple(_is_symbolic(graph.inputs[i].node.meta["val"]) for i in graph.device_at)

    def __call__(self, args: Sequence[Any], found: Sequence[Buffer], sizes: Sizes) -> list[Any]:
        symbols = sorted(sizes, key=str)
        buckets = {s: padded.bucket_of(int(sizes[s])) for s in symbols}
        arrays, views_of = [], []
        for i, buffer, symbolic in zip(self.graph.device_at, found, self.symbolic, strict=True):
            t = args[i]
            if symbolic:
                arrays.append(self._padded(t, buffer, self.graph.inputs[i].node.meta["val"], buckets))
                views_of.append(None)
            else:
                solved = views.solve(
                    buffer.layout, tuple(t.shape), t.stride(), int(t.storage_offset()), dtypes.to_jax(t.dtype)
                )
                if solved.starts:
                    raise Unpaddable("an input that is a part of a tensor")
                arrays.append(buffer.force())
                views_of.append(solved)
        key = (tuple(int(b) for b in buckets.values()), tuple(
            None if v is None else (v.key, b.layout) for v, b in zip(views_of, found, strict=True)
        ))  # fmt: skip
        real = np.asarray([int(sizes[s]) for s in symbols], np.int32)
        operands = [*arrays, *self.graph.others(args), real]
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._compile(buckets, symbols, views_of, operands)
        with errors.translated(self.graph.label, self.graph.device):
            results = plan.program.call(*operands)
        return self._finish(plan, results, args, sizes)

    def _padded(self, t: torch.Tensor, buffer: Buffer, fake: torch.Tensor, buckets: Sizes) -> Any:
        """The tensor in the bucket's shape: as it lies, if an earlier program left it padded."""
        size, stride = _dense(fake, buckets)
        layout = views.layout_of(size, stride, t.dtype, self.graph.device)
        if buffer.layout is layout and t.storage_offset() == 0 and t.stride() == stride:
            return buffer.force()
        if platform.name() != "cpu" and t.numel() * t.itemsize > _THROUGH_HOST:
            widths = [(0, b - n) for b, n in zip(size, t.shape, strict=True)]
            flat = [w for pair in reversed(widths) for w in pair]
            made = torch.nn.functional.pad(t.detach(), flat)
            return binding_tensor.buffer_of(_strided(made, stride)).force()
        host = np.asarray(buffer.force()).reshape(-1).view(dtypes.to_jax(t.dtype))[int(t.storage_offset()) :]
        room = np.zeros(size, host.dtype)
        room[tuple(slice(0, n) for n in t.shape)] = np.lib.stride_tricks.as_strided(
            host, tuple(t.shape), [n * host.itemsize for n in t.stride()]
        )
        arranged = views.arrangement(size, stride)
        assert arranged is not None
        return transfer.put(np.ascontiguousarray(np.transpose(room, arranged[1])), self.graph.device)

    # Compilation -----------------------------------------------------------------------------------------------

    def _compile(
        self, buckets: Sizes, symbols: Sequence[Any], views_of: Sequence[Any], operands: Sequence[Any]
    ) -> _Plan:
        graph = self.graph
        outs = []
        for fake in self.results:
            size, stride = _dense(fake, buckets)
            layout = views.layout_of(size, stride, fake.dtype, graph.device)
            outs.append((binding_tensor.factory(size, stride, fake.dtype, graph.device), layout, stride))
        notes: list[tuple[str, type[Exception]]] = []
        key = (
            "buckets", graph.digest, tuple((str(s), int(b)) for s, b in buckets.items()),
            tuple(None if v is None else v.key for v in views_of),
            tuple((tuple(a.shape), str(a.dtype)) for a in operands),
            torch.get_float32_matmul_precision(), str(torch.get_default_dtype()), graph.device, graph.options.key,
        )  # fmt: skip
        place = platform.sharding(graph.device)
        avals = [jax.ShapeDtypeStruct(tuple(a.shape), a.dtype, sharding=place) for a in operands]
        program = programs.cache.get(
            key, graph.label, lambda *a: self._body(buckets, symbols, views_of, notes, *a), avals,
            notes=lambda: tuple(notes), device=graph.device, options=graph.options.xla,
        )  # fmt: skip
        return _Plan(program, tuple(outs))

    def _body(
        self, buckets: Sizes, symbols: Sequence[Any], views_of: Sequence[Any], notes: list[Any], *operands: Any
    ) -> list[Any]:
        graph, rest = self.graph, iter(operands)
        raw = [next(rest) for _ in graph.device_at]
        vectors = [next(rest) for _ in graph.scalars]
        constants = {name: next(rest) for name in graph.constants}
        key = jax.random.wrap_key_data(next(rest), impl="threefry2x32") if graph.is_random else None
        vector = next(rest)
        lengths = Lengths(buckets, {s: vector[i].astype(jnp.int64) for i, s in enumerate(symbols)})
        values: list[Any] = [None] * len(graph.inputs)
        for k, i in enumerate(graph.device_at):
            view, fake = views_of[k], graph.inputs[i].node.meta["val"]
            if view is not None:
                values[i] = view.read(raw[k], None)
            else:
                size, stride = _dense(fake, buckets)
                layout = views.layout_of(size, stride, fake.dtype, graph.device)
                logical = views.solve(layout, size, stride, 0, layout.dtype).read(raw[k], None)
                values[i] = lengths.padded(logical, fake)
        graph.spread_scalars(vectors, values)
        context = Context(buckets, key, graph.shaped_constants(constants))
        with checks.collect() as made:
            computed = padded.evaluate(graph.module, values, context, lengths, self.result_nodes)
        notes[:] = [(c.message, c.error) for c in made]
        laid = [self._laid(v, fake, buckets) for v, fake in zip(computed, self.results, strict=True)]
        return [*laid, *([jnp.stack([c.report for c in made])] if made else [])]

    def _laid(self, value: Any, fake: torch.Tensor, buckets: Sizes) -> Any:
        value = value.array if isinstance(value, Padded) else value
        size, stride = _dense(fake, buckets)
        layout = views.layout_of(size, stride, fake.dtype, self.graph.device)
        return views.lay_out(dtypes.cast(value, fake.dtype), size, stride, layout)

    # Results ---------------------------------------------------------------------------------------------------

    def _cut(self, whole: torch.Tensor, part: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
        """The part of a padded result that counts, with strides of its own. On XLA:CPU nothing is compiled for it."""
        size = tuple(part.shape)
        if platform.name() != "cpu" or whole.stride() != canonical_strides(tuple(whole.shape)):
            return torch.empty_strided(size, stride, dtype=part.dtype, device=part.device).copy_(part)
        host = np.asarray(binding_tensor.buffer_of(whole).force())
        array = transfer.put(np.ascontiguousarray(host[tuple(slice(0, n) for n in size)]), self.graph.device)
        layout = views.layout_of(size, canonical_strides(size), part.dtype, self.graph.device)
        return binding_tensor.factory(size, canonical_strides(size), part.dtype, self.graph.device).make(
            Buffer(layout, array)
        )

    def _finish(self, plan: _Plan, results: list[Any], args: Sequence[Any], sizes: Sizes) -> list[Any]:
        graph = self.graph
        graph.look_at(results, len(plan.outs), plan.program.notes)
        made = [f.make(Buffer(layout, r)) for (f, layout, _), r in zip(plan.outs, results, strict=False)]
        out = []
        for position, o in enumerate(graph.outputs):
            if position not in self.at:
                out.append(graph.handed_through(o, args, sizes))
                continue
            at = self.at[position]
            t, fake = made[at], self.results[at]
            size = concrete(tuple(fake.shape), sizes)
            if tuple(t.shape) != size:
                with torch.no_grad():
                    part, wanted = t.as_strided(size, plan.outs[at][2]), _dense(fake, sizes)[1]
                    strided = position < self.user_outputs and not _same_strides(part, wanted)
                    t = self._cut(t, part, wanted) if strided else part
            out.append(t)
        return out


def _dense(fake: torch.Tensor, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a result; a part of a larger tensor (``x[:, -1]``) is made contiguous."""
    size, stride = concrete((tuple(fake.shape), tuple(fake.stride())), sizes)
    return size, stride if views.arrangement(size, stride) is not None else canonical_strides(size)


def _same_strides(t: torch.Tensor, wanted: Sequence[int]) -> bool:
    return all(n <= 1 or a == b for n, a, b in zip(t.shape, t.stride(), wanted, strict=True))


def _strided(t: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    if t.stride() == stride:
        return t
    return torch.empty_strided(t.shape, stride, dtype=t.dtype, device=t.device).copy_(t)


def _is_symbolic(fake: torch.Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) and not n.node.expr.is_number for n in fake.shape)
