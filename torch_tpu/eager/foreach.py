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
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from torch_tpu.binding import dispatcher
from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager import modes
from torch_tpu.eager.plan import is_operand, number_dtype
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
            overload_name(candidate), lowering, candidate._schema, tuple(a.name for a in taken), special, lowering.wide
        )
    return None


_Outs = tuple[tuple[int, tuple[int, ...]], ...]  # (node, shape of the buffer that waits for it)


class Chain:
    """The recorded operators of one element, whose buffers wait for it.

    A node is (element operator, operands); an operand is an input ("i", n), an earlier node ("n", n), a number
    ("s", n), or a value.
    """

    __slots__ = ("__weakref__", "device", "dtype", "inputs", "layout", "nodes", "numbers", "origins", "targets")

    def __init__(self, layout: buffers.Layout, dtype: torch.dtype):
        self.layout, self.dtype, self.device = layout, dtype, layout.device
        self.inputs: list[jax.Array] = []
        self.numbers: list[tuple[Any, Any]] = []
        self.nodes: list[tuple[Element, tuple[Any, ...]]] = []
        self.targets: list[weakref.ref[Buffer]] = []  # for each node, the buffer that waits for it
        self.origins: list[int | None] = []  # for each node, the input that its buffer held before the chain

    def operand(self, buffer: Buffer) -> tuple[str, int]:
        waiting = buffer.pending
        if type(waiting) is Waiting and waiting.chain is self:
            return "n", waiting.node
        return "i", self._input(buffer.array if buffer.array is not None else buffer.force())

    def _input(self, array: jax.Array) -> int:
        for i, known in enumerate(self.inputs):
            if known is array:
                return i
        self.inputs.append(array)
        return len(self.inputs) - 1

    def absorb(self, other: Chain) -> None:
        """Take over what another chain of the same layout has recorded."""
        shift = {
            "i": [self._input(a) for a in other.inputs],
            "s": range(len(self.numbers), len(self.numbers) + len(other.numbers)),
            "n": range(len(self.nodes), len(self.nodes) + len(other.nodes)),
        }
        self.numbers.extend(other.numbers)
        for (element, operands), ref, origin in zip(other.nodes, other.targets, other.origins, strict=True):
            moved = tuple((o[0], shift[o[0]][o[1]]) if isinstance(o, tuple) else o for o in operands)
            self.nodes.append((element, moved))
            self.targets.append(ref)
            self.origins.append(None if origin is None else shift["i"][origin])
            buffer = ref()
            if buffer is not None and isinstance(buffer.pending, Waiting) and buffer.pending.chain is other:
                buffer.pending = Waiting(self, shift["n"][buffer.pending.node])
        other.clear()

    def clear(self) -> None:
        """Forget what was recorded: it has been computed, or another chain has it."""
        self.nodes, self.targets, self.origins, self.inputs, self.numbers = [], [], [], [], []

    def prepare(self) -> _Job | None:
        """What has to be computed for those who still wait; None if nobody does."""
        wanted = []
        for n, ref in enumerate(self.targets):
            buffer = ref()
            waiting = None if buffer is None else buffer.pending
            if buffer is not None and type(waiting) is Waiting and waiting.chain is self and waiting.node == n:
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
        return _Job(self, [buffer for _, buffer in wanted], outs, donate, self._vectors(), self._key(outs, donate))

    def _vectors(self) -> list[np.ndarray]:
        """The numbers, a vector a type: most steps bring new ones, and each vector is one transfer."""
        by_type: dict[np.dtype, list[Any]] = {}
        for value, dtype in self.numbers:
            by_type.setdefault(dtype, []).append(value)
        return [np.asarray(by_type[d], d) for d in sorted(by_type, key=lambda d: d.char)]

    def _is_sole(self, i: int) -> bool:
        """Whether an input is held by this chain alone, and of the shape of the results."""
        return self.inputs[i].shape == self.layout.shape and sys.getrefcount(self.inputs[i]) <= _SOLE_REFERENCES

    def _key(self, outs: _Outs, donate: tuple[int, ...]) -> tuple[Any, ...]:
        return (
            self.layout.shape, str(self.dtype), tuple((e.name, operands) for e, operands in self.nodes),
            tuple(None if a.shape == self.layout.shape else a.shape for a in self.inputs),
            tuple((type(v).__name__, d.char) for v, d in self.numbers), outs, donate,
        )  # fmt: skip

    def body(self, outs: _Outs) -> Callable[..., list[Any]]:
        """What the chain computes, of its inputs and its vectors of numbers."""
        kinds = [(type(v), d) for v, d in self.numbers]
        meta = (registry.Meta(self.layout.shape, self.dtype),)
        nodes, inputs, shape, numel = tuple(self.nodes), len(self.inputs), self.layout.shape, self.layout.numel

        def body(*operands: Any) -> list[Any]:
            values: list[Any] = []
            vectors = {np.dtype(v.dtype): iter(v) for v in operands[inputs:]}
            given = {
                "i": [o.reshape(shape if o.size == numel else ()) for o in operands[:inputs]],
                "s": [dtypes.Scalar(next(vectors[d]), k) for k, d in kinds],
                "n": values,
            }
            for e, operands_ in nodes:
                resolved = (given[o[0]][o[1]] if isinstance(o, tuple) else o for o in operands_)
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
        operands += [scalars.vector(v, device) for v in j.vectors]
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

    label = f"foreach chain of {sum(len(j.chain.nodes) for j in jobs)}"
    return programs.cache.get(key, label, body, avals, tuple(donate), device=device)


class Waiting:
    """What a buffer in a chain is pending on; calling it runs the chain and gives the buffer's array."""

    __slots__ = ("chain", "node")

    def __init__(self, chain: Chain, node: int):
        self.chain, self.node = chain, node

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
    chains = {chain: None for ref in list(_open.chains.values()) if (chain := ref()) is not None and chain.nodes}
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


def _buffers_of(tensors: list[torch.Tensor]) -> list[Buffer] | None:
    """The buffers of one element's tensors, if what is done to them may be recorded; else None.

    They must be whole floating tensors on one device, of the first one's dtype, and of its shape or one element.
    """
    first = tensors[0]
    shape, dtype, found = first.shape, first.dtype, []
    if dtype not in _FLOATING:
        return None
    for t in tensors:
        try:
            buffer = _storage_of(t).tpu_buffer  # type: ignore[attr-defined]
        except AttributeError:
            return None
        layout, numel = buffer.layout, t.numel()
        whole = layout.numel == numel and t.is_contiguous() and t.dtype is dtype and t.storage_offset() == 0
        if not whole or layout.dtype.itemsize != dtype.itemsize or (found and layout.device != found[0].layout.device):
            return None
        if t.shape != shape and (numel != 1 or t.ndim > first.ndim):
            return None
        found.append(buffer)
    return found


def _chain_of(
    element: Element, i: int, shape: torch.Size, dtype: torch.dtype, found: list[Buffer], again: bool
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
        repeats = again and other.nodes[0][0] is element and other.targets[0]() is buffer
        if repeats or len(other.nodes) >= _LONGEST or other.layout.shape != shape:
            buffer.force()
        elif chain is None:
            chain = other
        else:
            chain.absorb(other)
    if chain is None:
        ref = _open.chains.get(i)
        latest = None if ref is None else ref()
        layout = found[0].layout
        fits = latest is not None and latest.nodes and latest.layout.shape == shape and latest.dtype == dtype
        if latest is not None and fits and latest.device == layout.device and len(latest.nodes) < _LONGEST:
            chain = latest
        else:
            chain = Chain(buffers.layout(tuple(shape), layout.dtype, layout.device), dtype)
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
    types = [str(a.type) for a in arguments]
    is_list = [t.startswith("List[") for t in types]
    is_tensor = [t in ("Tensor", "List[Tensor]") for t in types]
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
            made = _record(element, i, one, is_tensor, in_place)
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


def _record(
    element: Element, i: int, values: tuple[Any, ...], is_tensor: list[bool], in_place: bool
) -> torch.Tensor | None:
    """Record what is done to element ``i``; its result, or None if it may not be recorded."""
    tensors = [v for v, tensor in zip(values, is_tensor) if tensor]
    found = _buffers_of(tensors)
    if found is None:
        return None
    target = tensors[0]
    dtype = target.dtype
    chain = _chain_of(element, i, target.shape, dtype, found, in_place)
    operands: list[Any] = []
    rest = iter(found)
    for v, tensor, special in zip(values, is_tensor, element.special):
        if tensor:
            operands.append(chain.operand(next(rest)))
        elif is_operand(v, special):
            operands.append(("s", len(chain.numbers)))
            chain.numbers.append((v, number_dtype(v, element.wide or dtype is torch.float64)))
        else:
            operands.append(v)
    buffer = found[0]
    if not in_place:
        buffer = Buffer(chain.layout)
        shape = chain.layout.shape
        target = binding_tensor.factory(shape, buffers.canonical_strides(shape), dtype, chain.device).make(buffer)
    chain.origins.append(_origin(chain, operands[0]) if in_place else None)
    chain.nodes.append((element, tuple(operands)))
    chain.targets.append(weakref.ref(buffer))
    buffer.defer(Waiting(chain, len(chain.nodes) - 1))
    return target


def _origin(chain: Chain, operand: tuple[str, int]) -> int | None:
    return operand[1] if operand[0] == "i" else chain.origins[operand[1]]


@functools.cache
def names() -> tuple[str, ...]:
    """The foreach overloads that may be recorded."""
    wanted = {f"aten::_foreach_{b}{suffix}" for b in POINTWISE for suffix in ("", "_")}
    found = dispatcher.operator_names()
    return tuple(n for n in found if n.partition(".")[0] in wanted and not n.endswith("out"))
