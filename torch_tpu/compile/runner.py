"""Running a compiled graph: tensors in, one XLA program, tensors out.

What the program overwrites (a static cache, batch-norm statistics, optimizer states) is donated: XLA writes the new
value into the memory of the old one. What the graph only hands through (a parameter that backward needs) is handed
through as the tensor that it is, and views of inputs are made as views: neither is part of the program.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
import torch
from torch.fx import GraphModule, Node

from torch_tpu.binding import generator, process_groups
from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.binding.higher_order import fake_tensors_off
from torch_tpu.compile import host, identity, spmd
from torch_tpu.compile import options as compile_options
from torch_tpu.compile.bucketed import Bucketed
from torch_tpu.compile.collectives import Agreement
from torch_tpu.compile.errors import GraphError
from torch_tpu.compile.evaluate import Context, Sizes, concrete, constants_of, draws, evaluate
from torch_tpu.compile.operators import NUMBER_TYPES, copy_form, is_computed_number
from torch_tpu.compile.padded import Unpaddable
from torch_tpu.eager import copies, modes, views
from torch_tpu.eager.plan import SOLE_REFERENCES
from torch_tpu.eager.spec import spec_for
from torch_tpu.lowering import checks, dtypes
from torch_tpu.runtime import errors, platform, programs, rng, scalars, transfer
from torch_tpu.runtime.buffers import Buffer, Layout

_storage_of = torch.Tensor.untyped_storage


@dataclasses.dataclass(frozen=True)
class Input:
    """A placeholder: what the program gets for it."""

    node: Node
    # device: a tensor of the device; host: a CPU tensor; number: a float; size: an int; none, also an object that the
    # graph hands through or names a process group with
    kind: str
    written: bool = False


@dataclasses.dataclass(frozen=True)
class Output:
    """A result of the graph: ``value`` by its kind.

    program: position among the program's results; host: position among what is computed on the host; argument:
    position of the input that it is; view: (position of the input, its node's fake value); constant: the value; size:
    a symbolic number.
    """

    kind: str
    value: Any
    fake: Any = None
    download: bool = False  # a result of the program that is a CPU tensor


@dataclasses.dataclass
class Plan:
    """A graph for inputs of certain layouts and sizes."""

    sizes: Sizes
    layouts: tuple[Layout, ...]
    views: tuple[views.View, ...]
    starts: tuple[jax.Array, ...]
    out_layouts: tuple[Layout, ...]
    factories: tuple[binding_tensor.Factory, ...]
    partial: tuple[int, ...]  # device inputs whose offset is part of the plan
    program: programs.Program | None = None  # made by the first call
    agreed: Agreement | None = None  # with the other ranks that run it, then


class Graph:
    """A graph compiled for device tpu; called with a list of its inputs, gives a list of its outputs."""

    def __init__(
        self, module: GraphModule, label: str, chosen: compile_options.Options, user_outputs: int | None = None
    ):
        self.module, self.label, self.options = module, label, chosen
        self.nodes: list[Node] = list(module.graph.nodes)
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        targets: list[Any] = [n.args[0] for n in self.nodes if _is_write(n)]
        written = set(targets)
        self.inputs = tuple(Input(n, _kind_of(n), n in written) for n in placeholders)
        self.device_at = tuple(i for i, x in enumerate(self.inputs) if x.kind == "device")
        self.host_at = tuple(i for i, x in enumerate(self.inputs) if x.kind == "host")
        self.number_at = tuple(i for i, x in enumerate(self.inputs) if x.kind == "number")
        self.written_at = tuple(k for k, i in enumerate(self.device_at) if self.inputs[i].written)
        self.scalars = _by_dtype([i for i in self.host_at if not self.inputs[i].node.meta["val"].ndim], self.inputs)
        self.uploaded = tuple(i for i in self.host_at if _is_large_operand(self.inputs[i].node))
        self.is_dynamic = _has_symbols(self.nodes)
        self.is_random = draws(module)
        with fake_tensors_off():  # AOTAutograd calls compilers under its fake tensors
            self.constants = {n: t.detach().to("tpu").contiguous() for n, t in constants_of(module).items()}
        self.device = self._device()
        self.result_nodes: tuple[Node, ...] = ()
        self.host_part: host.HostPart | None = None
        self.written_on_host: list[tuple[int, int]] = []  # (position of the input, position among the host's results)
        self.outputs = self._outputs(placeholders)
        self.results = [Output("program", i, _fake_of(n)) for i, n in enumerate(self.result_nodes)]
        # Looked at in every call, so said once: what takes no part in most, and outputs by their commonest kinds.
        self.has_others = bool(self.host_at or self.number_at or self.constants or self.is_random)
        self.steps = tuple((o.kind if not o.download else "", o.value, o) for o in self.outputs)
        self.digest = identity.digest(module)
        self.spmd = spmd.of(module, label)
        self.plans: dict[Any, Plan] = {}
        self.unpaddable = ""  # why a graph of symbolic sizes is compiled for each size
        self.bucketed: Bucketed | None = None
        if self.is_dynamic and self.spmd is None:
            try:
                self.bucketed = Bucketed(self, user_outputs)
            except Unpaddable as e:
                self.unpaddable = str(e)
        self._boxed_call = True  # what AOTAutograd asks: the list of arguments is this function's to empty

    # Analysis --------------------------------------------------------------------------------------------------

    def _device(self) -> int:
        for node in self.nodes:
            for t in _tensors(node.meta.get("val")):
                if t.device.type == "tpu":
                    return t.device.index or 0
        return 0

    def _outputs(self, placeholders: list[Node]) -> list[Output]:
        position = {n: i for i, n in enumerate(placeholders)}
        written = {x.node for x in self.inputs if x.written}
        found: list[Output] = []
        order: dict[Node, int] = {}
        on_host: dict[Node, int] = {}
        for x in self.inputs:
            if x.kind == "host" and x.written:
                value: Any = next(n.args[1] for n in self.nodes if _is_write(n) and n.args[0] is x.node)
                if not host.is_host(value):
                    raise GraphError("a CPU tensor is overwritten with values of the device inside a compiled graph")
                self.written_on_host.append((position[x.node], on_host.setdefault(value, len(on_host))))
        results: Any = self.nodes[-1].args[0]
        self.output_nodes = tuple(results)
        sharing = collections.Counter(_viewed(a) or a for a in results if isinstance(a, Node))
        for a in results:
            if not isinstance(a, Node):
                found.append(Output("constant", a))
                continue
            fake = a.meta.get("val")
            if not isinstance(fake, torch.Tensor):
                if is_computed_number(fake) and a not in position:
                    found.append(Output("number", order.setdefault(a, len(order)), fake))
                else:
                    found.append(Output("argument" if a in position else "size", position.get(a), fake))
                continue
            source = _viewed(a)
            on_cpu = fake.device.type == "cpu"
            if a in position and (a not in written or on_cpu):
                found.append(Output("argument", position[a], fake))
            elif on_cpu and host.is_host(a):
                found.append(Output("host", on_host.setdefault(a, len(on_host)), fake))
            elif source is not None and source in position and source not in written and not on_cpu:
                found.append(Output("view", position[source], (fake, source.meta["val"])))
            elif source is not None and source not in position and sharing[source] > 1 and not on_cpu:
                found.append(Output("part", order.setdefault(source, len(order)), (fake, source.meta["val"])))
            else:
                found.append(Output("program", order.setdefault(a, len(order)), fake, on_cpu))
        self.result_nodes = tuple(order)
        self.host_part = host.HostPart(self.module, list(on_host)) if on_host else None
        return found

    # Plans -----------------------------------------------------------------------------------------------------

    def _plan(self, args: Sequence[Any], found: Sequence[Buffer]) -> Plan:
        sizes = self._sizes(args)
        layouts, solved, partial = [], [], []
        for k, (i, buffer) in enumerate(zip(self.device_at, found, strict=True)):
            t, layout = args[i], buffer.layout
            if layout.numel != t.numel() or layout.dtype != dtypes.to_jax(t.dtype):
                partial.append(k)
            layouts.append(layout)
            solved.append(
                views.solve(layout, tuple(t.shape), t.stride(), int(t.storage_offset()), dtypes.to_jax(t.dtype))
            )
        starts = tuple(
            scalars.vector(views.starts_operand(v.starts, layout), self.device)
            for v, layout in zip(solved, layouts, strict=True)
            if v.starts
        )
        outs = [_dense(o.fake, sizes) for o in self.results]
        out_layouts = tuple(views.layout_of(size, stride, dtype, self.device) for size, stride, dtype in outs)
        factories = tuple(binding_tensor.factory(size, stride, dtype, self.device) for size, stride, dtype in outs)
        return Plan(sizes, tuple(layouts), tuple(solved), starts, out_layouts, factories, tuple(partial))

    def _sizes(self, args: Sequence[Any]) -> Sizes:
        """What the symbols in the graph's shapes stand for."""
        if not self.is_dynamic:
            return {}
        sizes: dict[Any, Any] = {}

        def learn(fake: Any, value: Any) -> None:
            symbolic = isinstance(fake, torch.SymInt) and isinstance(fake.node.expr, sympy.Symbol)
            if symbolic and not _is_ragged(value):
                sizes.setdefault(fake.node.expr, sympy.Integer(int(value)))

        for x, value in zip(self.inputs, args, strict=True):
            fake = x.node.meta.get("val")
            learn(fake, value)
            if isinstance(fake, torch.Tensor):
                for f, v in zip((*fake.shape, *fake.stride()), (*value.shape, *value.stride()), strict=True):
                    learn(f, v)
        return sizes

    def _key(self, args: Sequence[Any], layouts: tuple[Layout, ...]) -> Any:
        if not self.is_dynamic:
            return layouts
        return layouts, tuple(
            (tuple(a.shape), a.stride()) if isinstance(a, torch.Tensor) else a if isinstance(a, int) else None
            for a in args
        )

    # Calls -----------------------------------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> list[Any]:
        try:
            found = [_storage_of(args[i]).tpu_buffer for i in self.device_at]  # type: ignore[attr-defined]
        except AttributeError:  # a storage that C++ made
            found = [binding_tensor.buffer_of(args[i]) for i in self.device_at]
        if self.bucketed is not None:
            made = self._by_bucket(args, found)
            if made is not None:
                return made
        key = self._key(args, tuple([b.layout for b in found]))
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self._plan(args, found)
        if plan.partial:
            offsets = tuple(args[self.device_at[k]].storage_offset() for k in plan.partial)
            at = self.plans.get((key, offsets))
            plan = at if at is not None else self.plans.setdefault((key, offsets), self._plan(args, found))
        arrays = [b.array if b.array is not None else b.force() for b in found]
        if self.written_at:
            self._own(arrays)
        program = plan.program
        if program is None:
            program = self._compile(plan, args)
        operands = arrays
        if self.has_others or plan.starts:
            operands = [*arrays, *self.others(args), *plan.starts]
        try:
            results = program.call(*operands) if self.spmd is None else self._with_others(plan, program, operands)
        except (jax.errors.JaxRuntimeError, MemoryError) as e:
            raise errors.translate(e, self.label, self.device) from e
        if plan.program is None:
            plan.program, program.call = program, program.direct()
        return self._finish(args, found, plan, program, results)

    def _with_others(self, plan: Plan, program: programs.Program, operands: Sequence[Any]) -> list[Any]:
        """Run a program of several ranks; numbers come back as arrays of one element."""
        assert self.spmd is not None and plan.agreed is not None
        results = self.spmd.run(program, plan.agreed, operands)
        layouts = [*(plan.layouts[k] for k in self.written_at), *plan.out_layouts]
        for i, layout in enumerate(layouts):
            if not layout.shape and results[i].ndim:
                results[i] = results[i].reshape(())
        return results

    def _by_bucket(self, args: list[Any], found: Sequence[Buffer]) -> list[Any] | None:
        """Run the bucket's program; None, from then on, where the graph cannot be padded."""
        assert self.bucketed is not None
        try:
            out = self.bucketed(args, found, self._sizes(args))
        except Exception as e:
            if not isinstance(e, Unpaddable) and self.bucketed.plans:
                raise
            # Whatever cannot be traced at the bucket's sizes may be at its own.
            self.bucketed, self.unpaddable = None, str(e) or type(e).__name__
            return None
        args.clear()
        return out

    def _own(self, arrays: list[jax.Array]) -> None:
        """Make the arrays that are overwritten this call's own, to be donated: one that somebody else holds is copied.

        It takes no more memory than a program that leaves its operand alone would, and there is one program.
        """
        for k in self.written_at:
            if sys.getrefcount(arrays[k]) > SOLE_REFERENCES:
                arrays[k] = transfer.duplicate(arrays[k], self.device)

    def others(self, args: Sequence[Any]) -> list[Any]:
        """Operands besides the device tensors and the starts of their views, in the order of ``_avals``."""
        out = [_vector([args[i] for i in at], dtype, self.device) for dtype, at in self.scalars]
        out += [binding_tensor.buffer_of(copies.from_host(args[i], self.device)).force() for i in self.uploaded]
        out += [scalars.scalar(float(args[i]), np.dtype(np.float64), self.device) for i in self.number_at]
        out += [binding_tensor.buffer_of(t).force() for t in self.constants.values()]
        if self.is_random:
            out.append(rng.draw_key(generator.default_generator(self.device)))
        return out

    def look_at(self, results: list[Any], at: int, notes: Any) -> None:
        """What follows a call: remember its checks (result ``at``), and wait for it in blocking mode."""
        if notes:
            modes.expect_all(results[at], notes)
        if modes.state.blocking:
            with errors.translated(self.label, self.device):
                jax.block_until_ready(results)
            modes.raise_failed()

    def _finish(
        self, args: list[Any], found: Sequence[Buffer], plan: Plan, program: programs.Program, results: list[Any]
    ) -> list[Any]:
        n, m = len(self.written_at), len(plan.factories)
        for k, value in zip(self.written_at, results, strict=False):
            found[k].array = value  # of the layout that was read: ``Buffer.set``, without the call
        self.look_at(results, n + m, program.notes)
        made = [
            f.make(Buffer(layout, r))
            for f, layout, r in zip(plan.factories, plan.out_layouts, results[n : n + m], strict=True)
        ]
        on_host = self.host_part(args) if self.host_part is not None else []
        out = [
            made[value] if kind == "program" else args[value] if kind == "argument" else
            self._other(o, made, on_host, args, plan) for kind, value, o in self.steps
        ]  # fmt: skip
        if self.written_on_host:
            torch._foreach_copy_(  # type: ignore[reportPrivateImportUsage]
                [args[i] for i, _ in self.written_on_host], [on_host[at] for _, at in self.written_on_host]
            )
        args.clear()
        return out

    def _other(
        self, o: Output, made: Sequence[torch.Tensor], on_host: Sequence[Any], args: Sequence[Any], plan: Plan
    ) -> Any:
        if o.kind == "program":
            return copies.to_host(made[o.value])
        if o.kind == "host":
            return on_host[o.value]
        if o.kind == "number":
            return made[o.value].item()
        if o.kind == "part":
            return _view_of(made[o.value], o.fake, plan.sizes)
        return self.handed_through(o, args, plan.sizes)

    @staticmethod
    def handed_through(o: Output, args: Sequence[Any], sizes: Sizes) -> Any:
        """A result that is no work of the program: an input, a view of one, a size."""
        if o.kind == "argument":
            return args[o.value]
        if o.kind == "constant":
            return o.value
        if o.kind == "size":
            return concrete(o.fake, sizes)
        return _view_of(args[o.value], o.fake, sizes)

    def spread_scalars(self, vectors: Sequence[Any], values: list[Any]) -> None:
        """The values of the inputs that are CPU scalars (a vector a dtype), entered in ``values``."""
        for vector, (_, at) in zip(vectors, self.scalars, strict=True):
            for n, i in enumerate(at):
                values[i] = vector[n]

    def shaped_constants(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """The values of the graph's own tensors, from the arrays behind them."""
        return {n: _shaped(v, self.constants[n]) for n, v in arrays.items()}

    # Compilation -----------------------------------------------------------------------------------------------

    def _avals(self, plan: Plan, args: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        place = platform.sharding(self.device)

        def aval(shape: Any, dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=place)

        found = [aval(layout.shape, layout.dtype) for layout in plan.layouts]
        found += [aval((len(at),), dtype) for dtype, at in self.scalars]
        found += [aval(args[i].shape, dtypes.to_jax(args[i].dtype)) for i in self.uploaded]
        found += [aval((), np.float64) for _ in self.number_at]
        found += [aval(b.layout.shape, b.layout.dtype) for b in map(binding_tensor.buffer_of, self.constants.values())]
        if self.is_random:
            found.append(aval((2,), np.uint32))
        return [*found, *(aval(s.shape, s.dtype) for s in plan.starts)]

    def _compile(self, plan: Plan, args: Sequence[Any]) -> programs.Program:
        notes: list[tuple[str, type[Exception]]] = []
        numbers = tuple(
            a if x.kind == "size" and not _is_ragged(a) else None for x, a in zip(self.inputs, args, strict=True)
        )
        key = (
            tuple((v.key, layout.shape, str(layout.dtype)) for v, layout in
                  zip(plan.views, plan.layouts, strict=True)),
            tuple(sorted((str(k), int(v)) for k, v in plan.sizes.items())), numbers, self.written_at,
            tuple((layout.shape, str(layout.dtype)) for layout in plan.out_layouts),
            torch.get_float32_matmul_precision(), str(torch.get_default_dtype()), self.device, self.options.key,
        )  # fmt: skip
        agreed = plan.agreed = None if self.spmd is None else self.spmd.agree(f"{key!r}\n{spmd.versions()}")
        program = programs.cache.get(
            ("graph", self.digest, *key, *([agreed.key] if agreed else [])), self.label,
            lambda *a: self._body(plan, numbers, agreed, notes, *a), self._avals(plan, args),
            self.written_at, notes=lambda: tuple(notes), device=self.device, options=self.options.xla,
            span=agreed.span if agreed else None,
        )  # fmt: skip
        if self.spmd is not None and agreed is not None:
            self.spmd.compiled(agreed)
        return program

    def _body(
        self, plan: Plan, numbers: tuple[Any, ...], agreed: Agreement | None, notes: list[Any], *operands: Any
    ) -> list[Any]:
        """The program: read the inputs, evaluate the graph, lay out what is overwritten and the results.

        In this order: XLA gives the first result the memory of the first donated operand of its shape.
        """
        rest = iter(operands)
        raw = [next(rest) for _ in self.device_at]
        vectors = [next(rest) for _ in self.scalars]
        uploaded = [next(rest) for _ in self.uploaded]
        floats = [dtypes.Scalar(next(rest), float) for _ in self.number_at]
        constants = {name: next(rest) for name in self.constants}
        key = jax.random.wrap_key_data(next(rest), impl="threefry2x32") if self.is_random else None
        starts = [next(rest) if v.starts else None for v in plan.views]
        values: list[Any] = list(numbers)
        for k, i in enumerate(self.device_at):
            values[i] = plan.views[k].read(raw[k], starts[k])
        for i, v in (*zip(self.uploaded, uploaded, strict=True), *zip(self.number_at, floats, strict=True)):
            values[i] = v
        self.spread_scalars(vectors, values)
        context = Context(plan.sizes, key, self.shaped_constants(constants), results=self.result_nodes, agreed=agreed)
        with checks.collect() as made:
            computed = evaluate(self.module, values, context)
        notes[:] = [(c.message, c.error) for c in made]
        laid = []
        for k in self.written_at:
            value = context.written[self.inputs[self.device_at[k]].node]
            laid.append(plan.views[k].write(raw[k], value, starts[k]))
        for value, o, layout in zip(computed, self.results, plan.out_layouts, strict=True):
            size, stride, dtype = _dense(o.fake, plan.sizes)
            laid.append(views.lay_out(dtypes.cast(value, dtype), size, stride, layout))
        return [*laid, *([jnp.stack([c.report for c in made])] if made else [])]


def _fake_of(node: Node) -> torch.Tensor:
    """What a result of the program looks like; a number is a tensor of no dimensions."""
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return value
    kind = int if isinstance(value, torch.SymInt) else float if isinstance(value, torch.SymFloat) else bool
    with fake_tensors_off():
        return torch.empty((), dtype=NUMBER_TYPES[kind], device="meta")


def _view_of(base: torch.Tensor, fakes: tuple[torch.Tensor, torch.Tensor], sizes: Sizes) -> torch.Tensor:
    """The view of a tensor that the first fake tensor is of the second."""
    fake, source = fakes
    size, stride, offset, start = concrete(
        (fake.shape, fake.stride(), fake.storage_offset(), source.storage_offset()), sizes
    )
    with torch.no_grad():
        return base.as_strided(size, stride, base.storage_offset() + offset - start)


def _by_dtype(positions: Sequence[int], inputs: Sequence[Input]) -> list[tuple[np.dtype, tuple[int, ...]]]:
    """Inputs that are CPU scalars, grouped by dtype: each group travels as one vector."""
    found: dict[np.dtype, list[int]] = {}
    for i in positions:
        found.setdefault(dtypes.to_jax(inputs[i].node.meta["val"].dtype), []).append(i)
    return [(dtype, tuple(at)) for dtype, at in found.items()]


def _vector(tensors: Sequence[torch.Tensor], dtype: np.dtype, device: int) -> Any:
    values = np.array([t.item() for t in tensors]).astype(dtype)
    # JAX takes a small numpy array as it is, but would narrow 64 bits.
    return values if values.itemsize < 8 else transfer.put(values, device)


def _shaped(value: Any, t: torch.Tensor) -> Any:
    layout = binding_tensor.buffer_of(t).layout
    solved = views.solve(layout, tuple(t.shape), t.stride(), 0, dtypes.to_jax(t.dtype))
    return solved.read(value, None)


def _tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for e in x for t in _tensors(e)] if isinstance(x, (list, tuple)) else []


def _dense(fake: torch.Tensor, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    return concrete(tuple(fake.shape), sizes), concrete(tuple(fake.stride()), sizes), fake.dtype


def _is_large_operand(node: Node) -> bool:
    """Whether a CPU tensor is one that the program reads, and no number; nested tensors have some for their shapes."""
    return node.meta["val"].ndim > 0 and any(user.op != "output" for user in node.users)


def _is_ragged(size: Any) -> bool:
    """Whether a size is a nested tensor's own, ``j1``: it has no number, and names the tensor's offsets."""
    return isinstance(size, torch.SymInt) and size.node.is_nested_int()


def _is_write(node: Node) -> bool:
    return node.op == "call_function" and node.target is torch.ops.aten.copy_.default


def _kind_of(node: Node) -> str:
    fake = node.meta.get("val")
    if isinstance(fake, torch.Tensor):
        return "device" if fake.device.type == "tpu" else "host"
    if isinstance(fake, (torch.SymFloat, float)):
        return "number"
    if isinstance(fake, (torch.SymInt, torch.SymBool, int)):
        return "size"
    if fake is None or process_groups.is_object(fake):
        return "none"
    raise GraphError(f"an input of type {type(fake).__name__} is not supported in a compiled graph")


def _viewed(node: Node) -> Node | None:
    """The node that this one is a view of, through any number of view operators; None if it is no view."""
    at = node
    while True:
        source = _view_source(at)
        if source is None:
            return None if at is node else at
        at = source


def _view_source(node: Node) -> Node | None:
    """The operand of a view operator that keeps the dtype and the lazy bits; None for any other node."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, Operator) or len(target._schema.returns) != 1:
        return None
    if not target.is_view or spec_for(target) is not None or copy_form(target) is None:
        return None
    source, fake = node.args[0], node.meta.get("val")
    if not isinstance(source, Node) or not isinstance(fake, torch.Tensor) or fake.is_conj() or fake.is_neg():
        return None
    operand = source.meta.get("val")
    return source if isinstance(operand, torch.Tensor) and operand.dtype == fake.dtype else None


def _has_symbols(nodes: Sequence[Node]) -> bool:
    def symbolic(x: Any) -> bool:
        if isinstance(x, torch.Tensor):
            return any(isinstance(n, torch.SymInt) for n in (*x.shape, *x.stride(), x.storage_offset()))
        if isinstance(x, (list, tuple)):
            return any(symbolic(e) for e in x)
        return isinstance(x, (torch.SymInt, torch.SymBool))

    return any(symbolic(n.meta.get("val")) for n in nodes)
