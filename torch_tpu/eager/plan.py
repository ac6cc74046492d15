"""Plans: what to do when an operator is called with operands like these.

A plan is made at the first call with a new combination of operand metadata and static arguments, and found by an
exact key from then on. Making one runs PyTorch's own meta kernel (which checks the arguments and says what the
results look like), solves the views of the operands, and names the program: plans that differ only in what is an
operand (offsets of views, numbers) share one.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.eager import constants, modes, refusals, views
from torch_tpu.eager.operands import Number, NumberRef, Slot, SlotRef, bind, resolve, unread, writes_expanded
from torch_tpu.eager.results import NEW, Asked, ask_lowering, ask_meta, check_out_shapes
from torch_tpu.eager.spec import Kind, Spec
from torch_tpu.lowering import checks, dtypes, registry
from torch_tpu.runtime import errors, launch, platform, programs, scalars
from torch_tpu.runtime.buffers import Buffer

# References to a buffer's array while its kernel runs: the buffer's own, the list of operands, and getrefcount's
# argument. One more means that somebody else holds it, and it must not be donated.
SOLE_REFERENCES = 3


class Plan:
    """Runs one program for operands of one kind."""

    __slots__ = (
        "_programs",
        "call",
        "constant",
        "consumable",
        "device",
        "donatable",
        "factories",
        "layouts",
        "made_as",
        "make",
        "needs_key",
        "numbers",
        "single",
        "skipped",
        "slots",
        "spec",
        "starts",
        "template",
        "trace",
    )  # fmt: skip

    def __init__(self, spec: Spec, trace: Trace):
        self.spec = spec
        self.trace = trace
        self.device = trace.device
        self.slots = trace.slots
        self.numbers = tuple((n.dtype, n.kind) for n in trace.numbers)
        self.needs_key = spec.lowering.rng
        self.skipped = tuple(i for i in reversed(range(len(trace.slots))) if i not in trace.operand_slots)
        self.donatable = tuple(
            (at, trace.mutated_slots.index(i)) for at, i in enumerate(trace.operand_slots) if trace.slots[i].mutated
        )
        # A user's operator may have said that results may take an operand's memory.
        self.consumable = tuple(at for at, i in enumerate(trace.operand_slots) if trace.is_consumable(trace.slots[i]))
        self.starts = tuple(
            scalars.vector(views.starts_operand(s.view.starts, s.layout), trace.device)
            for s in (trace.slots[i] for i in trace.operand_slots) if s.view.starts
        )  # fmt: skip
        self.layouts = trace.out_layouts
        self.factories = tuple(binding_tensor.factory(m.size, m.stride, m.dtype, trace.device) for m in trace.outs)
        self.template = trace.template
        self.single = len(self.template) == 1 and not trace.mutated_slots and not spec.list_return
        self.constant = self._constant()
        self._programs: dict[tuple[int, ...], programs.Program] = {}
        # The fast path of kernels: what to call, how to make the one result. Set once the program is known to
        # need nothing else.
        self.call: Callable[..., Any] | None = None
        self.made_as = self.layouts[0] if self.single else None
        self.make = self.factories[0].make if self.single else None

    def _constant(self) -> constants.Constant | None:
        trace = self.trace
        if len(trace.mutated_slots) + len(trace.outs) != 1:
            return None
        if trace.outs:
            return constants.of(self.spec, trace.bound, self.layouts[0], trace.outs[0].dtype)
        slot = trace.slots[trace.mutated_slots[0]]
        if not slot.view.whole or slot.view.dtype != slot.layout.dtype:
            return None
        return constants.of(self.spec, trace.bound, slot.layout, slot.dtype)

    def _fill(self, constant: constants.Constant, numbers: Sequence[Any], targets: Sequence[Buffer]) -> Any:
        array = constant.put(numbers, self.device)
        if not targets:
            return self.factories[0].make(Buffer(self.layouts[0], array))
        targets[0].set(array, constant.layout)
        return []

    def program(self, donate: tuple[int, ...]) -> programs.Program:
        found = self._programs.get(donate)
        if found is None:
            try:
                with refusals.in_words_of_cpu(self.spec.op, self.trace.described):
                    found = self._programs[donate] = self.trace.compile(donate)
            except TypeError as e:  # JAX's word for a dtype that an operation does not take
                types = ", ".join(str(s.dtype) for s in self.slots)
                raise NotImplementedError(f"{self.spec.name} is not implemented for {types}: {e}") from e
            except ValueError as e:  # JAX's word for shapes that do not fit
                shapes = ", ".join(str(list(s.size)) for s in self.slots)
                raise RuntimeError(f"{self.spec.name}: operands of shapes {shapes} do not fit: {e}") from e
        return found

    def run(self, arrays: list[Any], numbers: Sequence[Any], key: Any, targets: Sequence[Buffer]) -> Any:
        """Run on the operands' arrays.

        Args:
          arrays: one a tensor operand, in the order of the parameters (None: nothing was written there yet).
          numbers: the values of number operands.
          key: a PRNG key for random operators.
          targets: the buffers of mutated parameters, in their order.

        Returns:
          A tensor, or a list of the new tensors (mutated parameters are the caller's to return).
        """
        if self.constant is not None:
            return self._fill(self.constant, numbers, targets)
        donate: tuple[int, ...] = ()
        for i in self.skipped:
            del arrays[i]
        if self.donatable:
            donate = self._sole(arrays, targets)
        if self.consumable:
            donate = tuple([at for at in self.consumable if sys.getrefcount(arrays[at]) <= SOLE_REFERENCES])
        program = self._programs.get(donate) or self.program(donate)
        operands = arrays
        if numbers:
            operands = [*operands, *(scalars.scalar(v, d, self.device) for v, (d, _) in zip(numbers, self.numbers))]
        if self.needs_key:
            operands = [*operands, key]
        try:
            results = program.call(*operands, *self.starts)
        except Exception as e:
            raise self.explained(e) from e
        special = self.skipped or self.donatable or self.consumable or self.starts or self.needs_key
        if self.single and not (program.notes or special):
            self.call = program.direct()
        if self.single and not program.notes and not modes.state.blocking:
            return self.factories[0].make(Buffer(self.layouts[0], results[0]))
        return self._finish(program, results, targets, donate)

    def _sole(self, arrays: list[Any], targets: Sequence[Buffer]) -> tuple[int, ...]:
        """Operands whose memory the results may take: written to, and held by their buffer alone."""
        sole = []
        for at, which in self.donatable:
            if arrays[at] is None:
                arrays[at] = targets[which].force()
            if sys.getrefcount(arrays[at]) <= SOLE_REFERENCES:
                sole.append(at)
        return tuple(sole)

    def _finish(
        self, program: programs.Program, results: list[Any], targets: Sequence[Buffer], donate: tuple[int, ...]
    ) -> Any:
        n, m = len(self.factories), len(self.trace.mutated_slots)
        for at, value in zip(self.trace.written_order(donate), results[:m], strict=True):
            targets[at].set(value, self.slots[self.trace.mutated_slots[at]].layout)
        notes: tuple[tuple[str, type[Exception]], ...] = program.notes or ()
        for report, (message, error) in zip(results[n + m :], notes, strict=True):
            modes.expect(report, message, error)
        if modes.state.blocking:
            with errors.translated(self.spec.name, self.device):
                jax.block_until_ready(results)
            modes.raise_failed()
        made = [
            f.make(Buffer(layout, r))
            for f, layout, r in zip(self.factories, self.layouts, results[m : m + n], strict=True)
        ]
        if len(made) != len(self.template):
            rest = iter(made)
            made = [next(rest) if t is NEW else t for t in self.template]
        return made[0] if self.single else made

    def explained(self, error: Exception) -> Exception:
        if isinstance(error, (jax.errors.JaxRuntimeError, MemoryError)):
            shapes = ", ".join(f"{s.dtype}{list(s.size)}" for s in self.slots)
            return errors.translate(error, f"{self.spec.name}({shapes})", self.device)
        return error


class Trace:
    """Everything that a program of one operator is made from: what is read, what is computed, what is written."""

    def __init__(
        self, spec: Spec, bound: dict[str, Any], slots: tuple[Slot, ...], numbers: tuple[Number, ...],
        asked: Asked, device: int,
    ):  # fmt: skip
        self.spec, self.bound, self.slots, self.numbers = spec, bound, slots, numbers
        self.outs, self.twin_meta, self.template, self.device = asked.outs, asked.twin_meta, asked.template, device
        self.mutated_slots = tuple(i for i, s in enumerate(slots) if s.mutated)
        self.operand_slots = tuple(i for i, s in enumerate(slots) if self._is_operand(s))
        self.out_layouts = tuple(views.layout_of(o.size, o.stride, o.dtype, device) for o in self.outs)

    def _is_operand(self, slot: Slot) -> bool:
        """A mutated tensor whose old values do not matter is not an operand."""
        return not (slot.mutated and slot.view.whole and not self._read(slot))

    def _read(self, slot: Slot) -> bool:
        if not slot.mutated:
            return True
        return not self._is_out(slot) and not self.spec.ignores_self

    def _is_out(self, slot: Slot) -> bool:
        return any(p.out for p in self.spec.params if p.name == slot.param)

    def is_consumable(self, slot: Slot) -> bool:
        """Whether a result may take the memory of an operand: it is all of its storage, and a result is alike."""
        like = any(o.shape == slot.layout.shape and o.dtype == slot.layout.dtype for o in self.out_layouts)
        return slot.param in self.spec.lowering.donated and slot.view.whole and like

    def _in_order_of_slots(self, new: Sequence[Any]) -> dict[int, Any]:
        """The twin's results that are written, by the place of their mutated slot: the twin gives those of ``out=``
        first, the schema names them last."""
        places = range(len(self.mutated_slots))
        order = sorted(places, key=lambda at: not self._is_out(self.slots[self.mutated_slots[at]]))
        return dict(zip(order, new, strict=False))

    def written_order(self, donate: tuple[int, ...]) -> list[int]:
        """The order of the new values of mutated slots among the results.

        XLA gives the first result the memory of the first donated operand, and so on: those whose operands are
        donated come first, or they would be copied into their place.
        """
        if len(self.mutated_slots) == 1:
            return [0]
        donated = {self.operand_slots[i] for i in donate}
        return sorted(range(len(self.mutated_slots)), key=lambda at: self.mutated_slots[at] not in donated)

    def described(self) -> dict[str, Any]:
        """Arguments like those that the program was made for: tensors without values, and ones for numbers."""
        like = [torch.empty_strided(s.size, s.stride, dtype=s.dtype, device="meta") for s in self.slots]
        ones = [n.kind(1) for n in self.numbers]
        return {name: resolve(v, like, ones) for name, v in self.bound.items()}

    def key(self, donate: tuple[int, ...]) -> tuple[Any, ...]:
        """What the program's code depends on; see ``runtime.programs``."""
        spec = self.spec
        slots = tuple(
            (s.param, s.layout.shape, str(s.layout.dtype), s.view.key, s.mutated, i in self.operand_slots, s.size)
            for i, s in enumerate(self.slots)
        )
        static = tuple(
            (n, repr(v) if isinstance(v, (SlotRef, NumberRef)) else _stable(v)) for n, v in sorted(self.bound.items())
        )
        return (
            "eager", spec.name, slots, static, tuple((n.param, n.kind.__name__, str(n.dtype)) for n in self.numbers),
            tuple((o.size, o.stride, str(o.dtype)) for o in self.outs),
            tuple(None if m is None else (m.shape, str(m.dtype)) for m in self.twin_meta),
            torch.get_float32_matmul_precision() if spec.lowering.precision else "",
            str(torch.get_default_dtype()), self.device, donate,
            *([] if spec.lowering.fingerprint is None else [spec.lowering.fingerprint(self._looks())]),
        )  # fmt: skip

    def _looks(self) -> dict[str, Any]:
        """The arguments, with shape and dtype in place of tensors."""
        like = [jax.ShapeDtypeStruct(s.size, dtypes.to_jax(s.dtype)) for s in self.slots]
        return {name: resolve(v, like, []) for name, v in self.bound.items()}

    def compile(self, donate: tuple[int, ...]) -> programs.Program:
        found: list[tuple[str, type[Exception]]] = []
        place = platform.sharding(self.device)

        def aval(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

        operand = [self.slots[i] for i in self.operand_slots]
        avals = [aval(s.layout.shape, s.layout.dtype) for s in operand]
        avals += [aval((), n.dtype) for n in self.numbers]
        if self.spec.lowering.rng:
            avals.append(aval((2,), np.dtype(np.uint32)))
        avals += [
            aval((len(s.view.starts),), views.starts_operand((), s.layout).dtype) for s in operand if s.view.starts
        ]
        return programs.cache.get(
            self.key(donate), self.spec.name, lambda *a: self._body(found, donate, *a), avals, donate,
            notes=lambda: tuple(found), device=self.device,
        )  # fmt: skip

    def _body(self, found: list[tuple[str, type[Exception]]], donate: tuple[int, ...], *operands: Any) -> list[Any]:
        """The program: read the views, apply the lowering, lay out the results, write what is mutated."""
        rest = iter(operands)
        raw = {i: next(rest) for i in self.operand_slots}
        numbers = [dtypes.Scalar(next(rest), n.kind) for n in self.numbers]
        key = jax.random.wrap_key_data(next(rest), impl="threefry2x32") if self.spec.lowering.rng else None
        starts = {i: next(rest) if self.slots[i].view.starts else None for i in self.operand_slots}
        values = [
            s.read(raw[i], starts[i]) if i in raw and self._read(s) else unread(s) for i, s in enumerate(self.slots)
        ]
        inputs = {p.name for p in self.spec.params if not p.out}
        bound = {n: resolve(v, values, numbers) for n, v in self.bound.items() if n in inputs}
        with checks.collect() as made:
            results = registry.call(self.spec.lowering, self.spec.twin._schema, bound, self.twin_meta, key)
        found[:] = [(c.message, c.error) for c in made]
        plain, new = results[: len(self.outs)], results[len(self.outs) :]
        if not self.outs and len(new) != len(self.mutated_slots):
            raise RuntimeError(f"{self.spec.name}: {len(new)} new values for {len(self.mutated_slots)} tensors")
        written = self._in_order_of_slots(new)
        laid = []
        for at in self.written_order(donate):
            i, value = self.mutated_slots[at], written[at]
            s = self.slots[i]
            base = raw[i] if i in raw else jax.numpy.zeros(s.layout.shape, s.layout.dtype)
            laid.append(s.write(base, value, starts.get(i)))
        laid.extend(
            views.lay_out(r, o.size, o.stride, layout)
            for r, o, layout in zip(plain, self.outs, self.out_layouts, strict=True)
        )
        return [*laid, *(c.report for c in made)]


def _stable(value: Any) -> Any:
    """A static argument in a form that hashes, and prints alike in every process."""
    if isinstance(value, (list, tuple)):
        return tuple(_stable(v) for v in value)
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else str(value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    return value


# Making plans --------------------------------------------------------------------------------------------------


def make(spec: Spec, values: dict[str, Any]) -> Plan:
    """The plan for a call with these arguments (device tensors, Python values), bound by the schema's names.

    Raises what PyTorch's CPU kernel raises for them, or else its meta kernel.
    """
    device = _common_device(spec, values)
    with refusals.in_words_of_cpu(spec.op, lambda: values):
        trace = _trace(spec, values, device)
    refusals.check_types(spec.op, values)
    if spec.lowering.rng:
        refusals.check(spec.op, values, refusals.FEW)
    return Plan(spec, trace)


def _trace(spec: Spec, values: dict[str, Any], device: int) -> Trace:
    bound, slots, numbers = {}, [], []
    try:
        asked = None if spec.lowering.own_shapes else ask_meta(spec, values)
    except NotImplementedError:  # there is no meta kernel
        if spec.mutated and spec.plain_returns:
            raise
        asked = None
    if asked is not None and spec.lowering.type_of is not None:
        asked = asked.of_type(values[spec.lowering.type_of].dtype)
    wide = spec.lowering.wide or _is_wide(values, asked)
    overlaps = writes_expanded(spec.name) and not values.get("accumulate")
    for p in spec.params:
        if p.name not in values or p.kind in (Kind.GENERATOR, Kind.DROPPED):
            continue
        bound[p.name] = bind(p, values[p.name], slots, numbers, wide, overlaps)
    outs = [p.name for p in spec.params if p.out]
    results_given = bool(outs) and all(values.get(n) is not None for n in outs)
    if asked is None and spec.mutated and not results_given:
        # Only mutated operands (fused optimizer steps): each gets a value like its old one.
        mutated = sorted((s for s in slots if s.mutated), key=lambda s: s.param not in outs)
        asked = Asked((), (), tuple(registry.Meta(s.size, s.dtype) for s in mutated))
    elif asked is None:
        asked = ask_lowering(spec, bound, slots, numbers)
        if outs:
            check_out_shapes(outs, values, [(o.size, o.stride) for o in asked.outs])
            asked = Asked((), (), asked.twin_meta)
    asked = asked.in_format_of(values.get(n) for n in spec.lowering.format_of)
    return Trace(spec, bound, tuple(slots), tuple(numbers), asked, device)


def _tensors(values: dict[str, Any]) -> list[torch.Tensor]:
    flat = itertools.chain.from_iterable(v if isinstance(v, (list, tuple)) else (v,) for v in values.values())
    return [t for t in flat if isinstance(t, torch.Tensor)]


_WIDE = (torch.float64, torch.complex128)


def _is_wide(values: dict[str, Any], asked: Asked | None) -> bool:
    results = () if asked is None else (*asked.outs, *(m for m in asked.twin_meta if m is not None))
    return any(x.dtype in _WIDE for x in (*_tensors(values), *results))


def _common_device(spec: Spec, values: dict[str, Any]) -> int:
    indices = {t.get_device() for t in _tensors(values)}
    if len(indices) > 1:
        first, second = sorted(indices)[:2]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, tpu:{first} and "
            f"tpu:{second}! (in {spec.name})"
        )
    if indices:
        return indices.pop()
    wanted = values.get("device")
    return current_device() if wanted is None or wanted.index is None else launch.resolve(wanted.index)


current_device: Callable[[], int] = lambda: 0  # noqa: E731  set by binding.device
