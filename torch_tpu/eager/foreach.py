"""foreach operators: the chain of them that an optimizer step is, as one program a parameter.

``torch.optim`` calls a dozen ``_foreach_*`` operators in a row, each over all parameters. Run one by one they read and
write every state a dozen times. Here a call only *records* what it does to each element of its lists; the chain of an
element runs, as one fused program, when somebody asks for one of its values (the next forward pass does). Nobody can
see the difference: the operands are the arrays of the time of the call, and arrays are immutable.

Recorded are pointwise operators over whole floating tensors of one shape and dtype; any other call, and every call
in blocking mode, goes to PyTorch's own loop over the elements. The element's operator and its lowering are found from
the schema, as for in-place forms: nothing is written here for an operator.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import torch

from torch_tpu.binding import dispatcher
from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager import modes
from torch_tpu.eager.operands import is_operand, number_dtype
from torch_tpu.eager.spec import overload_name
from torch_tpu.lowering import dtypes, registry
from torch_tpu.runtime import buffers, errors, platform, programs, scalars
from torch_tpu.runtime.buffers import Buffer

# Operators of one result, of its first operand's shape and dtype.
POINTWISE = (
    "abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "copy", "div", "exp", "lerp", "maximum", "minimum",
    "mul", "neg", "pow", "reciprocal", "rsqrt", "sign", "sqrt", "sub", "zero",
)  # fmt: skip
# Up to this many elements run as one program: a small model's step is mostly the cost of starting programs. More of
# them would take long to compile together, and run long enough alone.
_TOGETHER = 16
_LONGEST = 64  # operators in a chain; a longer one runs and starts anew
_SOLE_REFERENCES = 2  # the chain's list, and getrefcount's argument


@dataclasses.dataclass(frozen=True, eq=False)
class Element:
    """What a foreach operator does to one element of its lists."""

    name: str
    lowering: registry.Lowering
    schema: torch.FunctionSchema
    params: tuple[str, ...]  # the element operator's parameters, in the order of the foreach operator's
    tensors: tuple[bool, ...]  # for each parameter: whether it is a tensor
    special: tuple[tuple[object, ...], ...]  # for each parameter: numbers that are part of the program
    wide: bool


def _element_type(text: str) -> str:
    return text.removeprefix("List[").removesuffix("]") if text.startswith("List[") else text


def element_of(op: Operator) -> Element | None:
    """The element operator of a foreach overload, by their schemas; None if no lowering serves one."""
    base = op._schema.name.removeprefix("aten::_foreach_").removesuffix("_")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return None
    wanted = [_element_type(str(a.type)) for a in op._schema.arguments]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        if any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
            continue
        have, rest = [str(a.type) for a in arguments[: len(wanted)]], arguments[len(wanted) :]
        lowering = registry.get(overload_name(candidate))
        if lowering is None or lowering.meta or have != wanted or not all(a.has_default_value() for a in rest):
            continue
        taken = arguments[: len(wanted)]
        special = tuple((a.default_value, *lowering.specialize.get(a.name, ())) for a in taken)
        return Element(
            overload_name(candidate), lowering, candidate._schema, tuple(a.name for a in taken),
            tuple(str(a.type) == "Tensor" for a in taken), special, lowering.wide,
        )  # fmt: skip
    return None


_Outs = tuple[tuple[int, tuple[int, ...]], ...]  # (node, shape of the buffer that waits for it)


class State:
    """What a chain has recorded so far, without its operands: chains that did the same share one state.

    States are a tree that recording walks down, one step an operator, so that the next step of an optimizer finds all
    of its states there (how many there are does not depend on shapes or numbers). They are the chain's part of a
    program's key: equal by identity, printed in full.

    A step is (element operator, operands); an operand is an input ("i", n), an earlier node ("n", n), the next number
    of a type ("s", kind, dtype), or a value that is part of the program ("=", its text, value).
    """

    __slots__ = ("count", "first", "next", "parent", "step")

    def __init__(self, parent: State | None = None, step: tuple[Element, tuple[Any, ...]] | None = None):
        self.parent, self.step = parent, step
        self.first: Any = step if parent is None or step is None else parent.first or step[0]  # the first element
        self.count: int = 0 if parent is None else parent.count + 1
        self.next: dict[tuple[Element, tuple[Any, ...]], State] = {}

    def then(self, step: tuple[Element, tuple[Any, ...]]) -> State:
        found = self.next.get(step)
        return found if found is not None else self.next.setdefault(step, State(self, step))

    def steps(self) -> list[tuple[Element, tuple[Any, ...]]]:
        steps, state = [], self
        while state.parent is not None and state.step is not None:
            steps.append(state.step)
            state = state.parent
        return steps[::-1]

    def __repr__(self) -> str:
        return repr([(e.name, tuple(o[:-1] if o[0] == "=" else o for o in operands)) for e, operands in self.steps()])


_START = State()
_KINDS = {"int": int, "float": float, "complex": complex}


class Chain:
    """The recorded operators of one element, whose buffers wait for it."""

    __slots__ = ("__weakref__", "device", "dtype", "inputs", "layout", "numbers", "origins", "state", "targets")

    def __init__(self, layout: buffers.Layout, dtype: torch.dtype):
        self.layout, self.dtype, self.device = layout, dtype, layout.device
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded: it has been computed, or another chain has it."""
        self.state = _START
        self.inputs: list[jax.Array] = []
        self.numbers: dict[str, list[Any]] = {}  # by the character of their dtype, in the order of the nodes
        self.targets: list[weakref.ref[Buffer]] = []  # for each node, the buffer that waits for it
        self.origins: list[int | None] = []  # for each node, the input that its buffer held before the chain

    def operand(self, buffer: Buffer) -> tuple[str, int]:
        waiting = buffer.pending
        if type(waiting) is Waiting and waiting.chain is self:
            return waiting.operand
        return "i", self._input(buffer.array if buffer.array is not None else buffer.force())

    def number(self, value: Any, dtype: np.dtype) -> tuple[str, str, str]:
        self.numbers.setdefault(dtype.char, []).append(value)
        return "s", type(value).__name__, dtype.char

    def _input(self, array: jax.Array) -> int:
        for i, known in enumerate(self.inputs):
            if known is array:
                return i
        self.inputs.append(array)
        return len(self.inputs) - 1

    def add(
        self, step: tuple[Element, tuple[Any, ...]], target: weakref.ref[Buffer], origin: int | None
    ) -> tuple[str, int]:
        """Record a step whose result ``target`` waits for; what later steps call that result."""
        node = ("n", self.state.count)
        self.state = self.state.then(step)
        self.targets.append(target)
        self.origins.append(origin)
        return node

    def absorb(self, other: Chain) -> None:
        """Take over what another chain of the same layout has recorded."""
        moved: dict[str, Any] = {
            "i": [self._input(a) for a in other.inputs],
            "n": range(self.state.count, self.state.count + other.state.count),
        }
        for dtype, values in other.numbers.items():
            self.numbers.setdefault(dtype, []).extend(values)
        for (element, operands), ref, origin in zip(other.state.steps(), other.targets, other.origins, strict=True):
            there = tuple((o[0], moved[o[0]][o[1]]) if o[0] in moved else o for o in operands)
            self.add((element, there), ref, None if origin is None else moved["i"][origin])
            buffer = ref()
            waiting = None if buffer is None else buffer.pending
            if buffer is not None and type(waiting) is Waiting and waiting.chain is other:
                buffer.pending = Waiting(self, ("n", moved["n"][waiting.operand[1]]))
        other.clear()

    def prepare(self) -> _Job | None:
        """What has to be computed for those who still wait; None if nobody does."""
        wanted = []
        for n, ref in enumerate(self.targets):
            buffer = ref()
            waiting = None if buffer is None else buffer.pending
            if buffer is not None and type(waiting) is Waiting and waiting.chain is self and waiting.operand[1] == n:
                wanted.append((n, buffer))
        if not wanted:
            self.clear()
            return None
        # XLA gives the first result the memory of the first donated input, and so on: a result that takes the place
        # of its own old value must stand in that order, or it is copied there.
        own = {}
        for n, _ in wanted:
            origin = self.origins[n]
            if origin is not None and self._is_sole(origin):
                own[n] = origin
        wanted.sort(key=lambda w: own.get(w[0], len(self.inputs)))
        # Each buffer keeps its layout: a kernel may have looked at it before it asked for the value.
        outs = tuple((n, buffer.layout.shape) for n, buffer in wanted)
        donate = tuple(sorted(own.values()))
        # A vector of numbers a type; most steps bring new ones.
        vectors = [np.asarray(values, dtype) for dtype, values in sorted(self.numbers.items())]
        return _Job(self, [buffer for _, buffer in wanted], outs, donate, vectors, self._key(outs, donate))

    def _is_sole(self, i: int) -> bool:
        """Whether an input is held by this chain alone, and of the shape of the results."""
        return self.inputs[i].shape == self.layout.shape and sys.getrefcount(self.inputs[i]) <= _SOLE_REFERENCES

    def _key(self, outs: _Outs, donate: tuple[int, ...]) -> tuple[Any, ...]:
        shape = self.layout.shape
        return (
            shape, str(self.dtype), self.state, tuple(None if a.shape == shape else a.shape for a in self.inputs),
            outs, donate,
        )  # fmt: skip

    def body(self, outs: _Outs) -> Callable[..., list[Any]]:
        """What the chain computes, of its inputs and its vectors of numbers."""
        meta = (registry.Meta(self.layout.shape, self.dtype),)
        steps, inputs, shape, numel = self.state.steps(), len(self.inputs), self.layout.shape, self.layout.numel

        def body(*operands: Any) -> list[Any]:
            values: list[Any] = []
            vectors = {v.dtype.char: iter(v) for v in operands[inputs:]}
            arrays = [o.reshape(shape if o.size == numel else ()) for o in operands[:inputs]]
            given: dict[str, Callable[..., Any]] = {
                "i": lambda n: arrays[n],
                "n": lambda n: values[n],
                "s": lambda kind, dtype: dtypes.Scalar(next(vectors[dtype]), _KINDS[kind]),
                "=": lambda text, value: value,
            }
            for e, operands_ in steps:
                resolved = [given[o[0]](*o[1:]) for o in operands_]
                values.extend(registry.call(e.lowering, e.schema, dict(zip(e.params, resolved, strict=True)), meta))
            return [values[n].reshape(to) for n, to in outs]

        return body


@dataclasses.dataclass(eq=False)
class _Job:
    """A chain that is about to run."""

    chain: Chain
    buffers: list[Buffer]
    outs: _Outs
    donate: tuple[int, ...]
    vectors: list[np.ndarray]
    key: tuple[Any, ...]

    @property
    def width(self) -> int:
        return len(self.chain.inputs) + len(self.vectors)


def _run(jobs: list[_Job]) -> None:
    """Run the chains as one program."""
    device = jobs[0].chain.device
    key = ("foreach", tuple(j.key for j in jobs), device)
    program = programs.cache.programs.get(key)
    if program is None:
        program = _compile(key, jobs, device)
    else:
        programs.cache.stats.hits += 1
    operands: list[Any] = []
    for j in jobs:
        operands += j.chain.inputs
        # JAX takes small numpy arrays as they are, for less than putting them on the device first costs; those of 64
        # bits it would narrow.
        operands += [v if v.itemsize < 8 else scalars.vector(v, device) for v in j.vectors]
    with errors.translated("a chain of foreach operators", device):
        results = iter(program.call(*operands))
    for j in jobs:
        for buffer in j.buffers:
            buffer.set(next(results), buffer.layout)
        j.chain.clear()


def _compile(key: tuple[Any, ...], jobs: list[_Job], device: int) -> programs.Program:
    place = platform.sharding(device)
    avals, donate, bodies = [], [], []
    for j in jobs:
        donate += [len(avals) + i for i in j.donate]
        arrays = (*j.chain.inputs, *j.vectors)
        avals += [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place) for a in arrays]
        bodies.append((j.chain.body(j.outs), j.width))

    def body(*operands: Any) -> list[Any]:
        results, at = [], 0
        for one, width in bodies:
            results += one(*operands[at : at + width])
            at += width
        return results

    label = f"foreach chain of {sum(j.chain.state.count for j in jobs)}"
    return programs.cache.get(key, label, body, avals, tuple(donate), device=device)


class Waiting:
    """What a buffer in a chain is pending on; calling it runs the chain and gives the buffer's array."""

    __slots__ = ("chain", "operand")

    def __init__(self, chain: Chain, operand: tuple[str, int]):
        self.chain, self.operand = chain, operand

    def __call__(self) -> None:
        run_recorded(self.chain)


def run_recorded(first: Chain | None = None) -> None:
    """Dispatch what this thread has recorded, and the chain ``first`` whoever recorded it.

    The first value that is read ends the step, as does a synchronization: what the other elements hold (gradients)
    is let go too.
    """
    if first is None and not _open.chains:
        return
    # In the order of the lists, whichever value was asked for: the program is the same then.
    chains = {
        chain: None for ref in list(_open.chains.values()) if (chain := ref()) is not None and chain.state is not _START
    }
    _open.chains.clear()
    if first is not None:
        chains.setdefault(first)
    if chains:
        jobs = [job for chain in chains if (job := chain.prepare()) is not None]
        together = len(jobs) <= _TOGETHER and len({j.chain.device for j in jobs}) == 1
        for part in [jobs] if together else [[j] for j in jobs]:
            if part:
                _run(part)


# Recording -----------------------------------------------------------------------------------------------------


class _Open(threading.local):
    """The chains of the latest call, by element: the next call over lists of the same shapes goes on with them."""

    def __init__(self) -> None:
        self.chains: dict[int, weakref.ref[Chain]] = {}


_open = _Open()
_FLOATING = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_storage_of = torch.Tensor.untyped_storage


# For (layout of a buffer; shape, dtype of a tensor): the layout of the chains of such tensors. They are floating, and
# the tensor is the whole buffer.
_chain_layouts: dict[Any, buffers.Layout] = {}


def _chain_layout(layout: buffers.Layout, shape: torch.Size, dtype: torch.dtype) -> buffers.Layout | None:
    if dtype not in _FLOATING or layout.dtype != dtypes.to_jax(dtype) or layout.numel != shape.numel():
        return None
    found = buffers.layout(tuple(shape), layout.dtype, layout.device)
    _chain_layouts[layout, shape, dtype] = found
    return found


def _buffers_of(tensors: Iterable[torch.Tensor]) -> tuple[list[Buffer], buffers.Layout] | None:
    """The buffers of one element's tensors and their chain's layout, if what is done to them may be recorded.

    They must be whole floating tensors on one device, of the first one's dtype, and of its shape or one element.
    """
    found: list[Buffer] = []
    first: buffers.Layout | None = None
    for t in tensors:
        try:
            buffer = _storage_of(t).tpu_buffer  # type: ignore[attr-defined]
        except AttributeError:
            return None
        shape, dtype, layout = t.shape, t.dtype, buffer.layout
        own = _chain_layouts.get((layout, shape, dtype)) or _chain_layout(layout, shape, dtype)
        if own is None or t.storage_offset() or not t.is_contiguous():
            return None
        if first is None:
            first = own
        elif own is not first and not _takes_part(own, first):
            return None
        found.append(buffer)
    return None if first is None else (found, first)


def _takes_part(layout: buffers.Layout, first: buffers.Layout) -> bool:
    alike = layout.dtype == first.dtype and layout.device == first.device
    return alike and layout.numel == 1 and len(layout.shape) <= len(first.shape)


def _chain_of(
    element: Element, i: int, layout: buffers.Layout, dtype: torch.dtype, found: list[Buffer], again: bool
) -> Chain:
    """The chain that one of the buffers waits for, that of the latest call, or a new one.

    A chain ends where it would begin again (the next step of an optimizer whose values nobody has read), so that
    every step is the same program.
    """
    chain: Chain | None = None
    for buffer in found:
        waiting = buffer.pending
        if type(waiting) is not Waiting or waiting.chain is chain:
            continue
        other = waiting.chain
        repeats = again and other.targets[0]() is buffer and other.state.first is element
        if repeats or other.state.count >= _LONGEST or other.layout is not layout:
            buffer.force()
        elif chain is None:
            chain = other
        else:
            chain.absorb(other)
    if chain is None:
        ref = _open.chains.get(i)
        chain = None if ref is None else ref()
        if chain is None or chain.layout is not layout or not 0 < chain.state.count < _LONGEST:
            chain = Chain(layout, dtype)
    _open.chains[i] = weakref.ref(chain)
    return chain


def kernel_for(op: Operator, loop: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of a foreach overload; ``loop`` is PyTorch's own, for what is not recorded."""
    element = element_of(op)
    if element is None:
        return loop
    in_place = op._schema.name.endswith("_")
    arguments = op._schema.arguments
    names = [a.name for a in arguments]
    is_list = [str(a.type).startswith("List[") for a in arguments]
    first = is_list.index(True)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        values: list[Any] = [
            args[i] if i < len(args) else kwargs.get(n, a.default_value)
            for i, (n, a) in enumerate(zip(names, arguments, strict=True))
        ]
        n = len(values[first])
        columns = [v if many else (v,) * n for v, many in zip(values, is_list)]
        if modes.state.blocking or any(len(c) != n for c in columns):
            return loop(*args, **kwargs)
        results = []
        for i, one in enumerate(zip(*columns)):
            made = _record(element, i, one, in_place)
            if made is None:
                alone = _call(loop, arguments, [[v] if many else v for v, many in zip(one, is_list)])
                results.extend(alone or ())
            else:
                results.append(made)
        return None if in_place else results

    return kernel


def _call(loop: Callable[..., Any], arguments: Any, values: list[Any]) -> Any:
    keywords = {a.name: v for a, v in zip(arguments, values) if a.kwarg_only}
    return loop(*(v for a, v in zip(arguments, values) if not a.kwarg_only), **keywords)


def _record(element: Element, i: int, values: tuple[Any, ...], in_place: bool) -> torch.Tensor | None:
    """Record what is done to element ``i``; its result, or None if it may not be recorded."""
    recordable = _buffers_of(itertools.compress(values, element.tensors))
    if recordable is None:
        return None
    found, layout = recordable
    target = next(itertools.compress(values, element.tensors))
    dtype = target.dtype
    chain = _chain_of(element, i, layout, dtype, found, in_place)
    operands: list[Any] = []
    rest = iter(found)
    for v, tensor, special in zip(values, element.tensors, element.special):
        if tensor:
            operands.append(chain.operand(next(rest)))
        elif is_operand(v, special):
            operands.append(chain.number(v, number_dtype(v, element.wide or dtype is torch.float64)))
        else:
            operands.append(("=", repr(v), v))
    buffer = found[0]
    if not in_place:
        buffer = Buffer(layout)
        shape = layout.shape
        target = binding_tensor.factory(shape, buffers.canonical_strides(shape), dtype, layout.device).make(buffer)
    origin = None
    if in_place:
        kind, n = operands[0]
        origin = n if kind == "i" else chain.origins[n]
    buffer.defer(Waiting(chain, chain.add((element, tuple(operands)), weakref.ref(buffer), origin)))
    return target


@functools.cache
def names() -> tuple[str, ...]:
    """The foreach overloads that may be recorded."""
    wanted = {f"aten::_foreach_{b}{suffix}" for b in POINTWISE for suffix in ("", "_")}
    found = dispatcher.operator_names()
    return tuple(n for n in found if n.partition(".")[0] in wanted and not n.endswith("out"))
