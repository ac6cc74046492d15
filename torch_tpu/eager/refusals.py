"""What PyTorch's CPU kernels refuse, the device refuses, in the same words.

Meta kernels check shapes, but not all of them, not in the words of the other kernels, and hardly ever the types. So
the CPU kernel is asked, with stand-ins of the operands: at the first call with new types of operands
(``check_types``), where an operand shares its memory with what is written (``check_overlap``), and for its words
where the device cannot do what it is asked (``in_words_of_cpu``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager.spec import arguments
from torch_tpu.lowering import registry
from torch_tpu.runtime import buffers

_MOST = 2**22  # elements of stand-ins: a kernel that does not refuse computes
FEW = 2**12  # elements up to which the stand-ins of ``check_types`` are as large as the operands,
_SMALL = 2  # and what their dimensions are cut to above

# Types that the CPU has fewer kernels for than other devices have.
_SPARED = frozenset({torch.float16, torch.bfloat16, torch.complex32, torch.uint16, torch.uint32, torch.uint64})
_REAL = frozenset({torch.float32, torch.float64})

# Operators that CUDA has for types that CPU lacks, where libraries count on it on every device but CPU: Transformers
# counts the tokens of each expert.
MORE_TYPES = {"aten::histc": frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})}

StandIn = Callable[[torch.Tensor], torch.Tensor]
_FILLINGS = ((0.5, 0), (0.5, 1))  # what stand-ins hold, floating and other ones: probabilities; indices, divisors


def _filled(n: int, dtype: torch.dtype, filling: tuple[float, int]) -> torch.Tensor:
    value = filling[0] * (1 + 1j) if dtype.is_complex else filling[not dtype.is_floating_point]
    return torch.full((n,), value, dtype=dtype, device="cpu")


def _mapped(x: Any, stand_in: StandIn) -> Any:
    if isinstance(x, torch.Tensor):
        return stand_in(x)
    if isinstance(x, (list, tuple)):
        return [_mapped(v, stand_in) for v in x]
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _answer(op: Operator, values: dict[str, Any], stand_in: StandIn) -> Exception | None:
    """What the CPU kernel raises for stand-ins of the operands; None if it takes them, or cannot be asked."""
    values = {n: v for n, v in values.items() if n != "generator"}
    if torch.Tag.nondeterministic_seeded in op.tags:
        drawing = _with_generator(op)
        if drawing is None:
            return None
        op, values["generator"] = drawing, torch.Generator()  # nothing is drawn from PyTorch's own
    try:
        args, kwargs = arguments(op, {n: _mapped(v, stand_in) for n, v in values.items()})
    except Exception:  # a type that CPU cannot fill, memory
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op(*args, **kwargs)
    except Exception as e:
        return e.with_traceback(None)
    return None


@functools.cache
def _with_generator(op: Operator) -> Operator | None:
    """The overload that takes a generator: itself, or another."""
    if any(a.name == "generator" for a in op._schema.arguments):
        return op
    names = {a.name for a in op._schema.arguments} | {"generator"}
    packet = op.overloadpacket
    for overload in (getattr(packet, o) for o in packet.overloads()):
        if {a.name for a in overload._schema.arguments} == names:
            return overload
    return None


def tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [t for v in x for t in tensors(v)] if isinstance(x, (list, tuple)) else []


# Words ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_words_of_cpu(op: Operator, values: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """An error raised inside is raised as the CPU kernel's, if that refuses the operands (``values``) too."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, LookupError, AssertionError) as e:
        if type(e).__module__.startswith("jax"):  # not the operands' fault
            raise
        theirs = _words(op, values())
        if theirs is None or (type(theirs) is type(e) and str(theirs) == str(e)):
            raise
        raise theirs from e


def _words(op: Operator, values: dict[str, Any], most: int = _MOST) -> Exception | None:
    given = tensors(values)
    if not given or op.namespace != "aten":
        return None
    size = sum(buffers.span(tuple(t.shape), t.stride()) for t in given)
    if size > most or any(t.device.type == "cpu" for t in given):
        return None
    theirs = None
    for filling in _FILLINGS:
        theirs = _answer(op, values, functools.partial(_as_it_is, filling))
        if theirs is None or isinstance(theirs, torch._C._LinAlgError) or _has_no_kernel(theirs):  # type: ignore[attr-defined]
            return None
    return theirs


def _as_it_is(filling: tuple[float, int], t: torch.Tensor) -> torch.Tensor:
    n = buffers.span(tuple(t.shape), t.stride())
    return _filled(n, t.dtype, filling).as_strided(tuple(t.shape), t.stride(), 0)


def check(op: Operator, values: dict[str, Any], most: int = _MOST) -> None:
    """Raise what the CPU kernel raises for operands like these, if they have no more than ``most`` elements."""
    theirs = _words(op, values, most)
    if theirs is not None:
        raise theirs


def _has_no_kernel(error: Exception | None) -> bool:
    return isinstance(error, NotImplementedError) and str(error).startswith("Could not run")


# Types ---------------------------------------------------------------------------------------------------------

_taken: set[Any] = set()


def check_types(op: Operator, values: dict[str, Any]) -> None:
    """Raise what the CPU kernel raises for the types of the operands.

    It is their types that it refuses if it takes operands that are alike but for them. Types that CPU has fewer kernels
    for than other devices (half types) are not asked about, but for a mixture of types of which it takes each alone.
    """
    given = tensors(values)
    types = {*(t.dtype for t in given), *(v for v in values.values() if isinstance(v, torch.dtype))}
    numbers = _odd_numbers(op, values)
    if types <= MORE_TYPES.get(op._schema.name, frozenset()):
        return
    plain = len(types) == 1 and types <= _REAL and not numbers
    if plain and not any(a.is_out for a in op._schema.arguments):
        return
    turned_complex = any(isinstance(v, complex) for v in numbers.values()) and not any(t.is_complex for t in types)
    spared = not turned_complex and any(map(_is_spared, types))
    floating = {id(t): t.dtype for t in given if t.dtype.is_floating_point}
    # A gradient comes with what forward saved: statistics of half types in float32, as on CUDA.
    if spared and (len({*floating.values()}) < 2 or "backward" in op._schema.name):
        return
    key = (op._schema.name, op._schema.overload_name, *map(_type_of, values.values()))
    if key in _taken or not _can_be_asked(op, given):
        return
    small = sum(t.numel() for t in given) > FEW
    kept = {n: v for n, v in values.items() if n not in registry.DROPPED}
    theirs = None
    for filling in _FILLINGS:
        theirs = _answer(op, kept, _Typed(filling, small))
        if theirs is None:
            if all(t.numel() > 1 for t in given):  # some kernels do not look where there is one element, or none
                _taken.add(key)
            return
        if _has_no_kernel(theirs):
            return
    if spared:
        alike = ([_Typed(f, small, dict.fromkeys(floating, d)) for f in _FILLINGS] for d in {*floating.values()})
        refused = all(any(_answer(op, kept, s) is None for s in stand_ins) for stand_ins in alike)
    else:
        refused = any(_answer(op, _real_numbers(kept | numbers), s) is None for s in _substitutes(given, small))
    if theirs is not None and refused:
        raise theirs


def _odd_numbers(op: Operator, values: dict[str, Any]) -> dict[str, complex]:
    """Numbers that are bool or complex, which some operators refuse; bool ones as the integers that they take."""
    kinds = ((a.name, str(a.type).removeprefix("Optional[")) for a in op._schema.arguments)
    given = {n: values.get(n) for n, kind in kinds if kind.startswith(("Tensor", "number"))}
    return {n: v if isinstance(v, complex) else int(v) for n, v in given.items() if isinstance(v, (bool, complex))}


def _is_spared(dtype: torch.dtype) -> bool:
    return dtype in _SPARED or (dtype.is_floating_point and dtype.itemsize == 1)


def _can_be_asked(op: Operator, given: list[torch.Tensor]) -> bool:
    """Internal operators trust their operands: no smaller ones are made up for them."""
    bare = op._schema.name.partition("::")[2]
    if bare.startswith(("_foreach", "_fused", "_amp")):
        return False
    return not (bare.startswith("_") or "_backward" in bare) or sum(t.numel() for t in given) <= FEW


def _type_of(v: Any) -> Any:
    if isinstance(v, torch.Tensor):
        return v.dtype
    if isinstance(v, (list, tuple)):
        return tuple(map(_type_of, v))
    return v if isinstance(v, (torch.dtype, str)) else type(v)


@dataclasses.dataclass(frozen=True)
class _Typed:
    """Stand-ins of which only the types matter.

    Args:
      small: dimensions are cut.
      instead: the type of some of them, by the operand's id.
    """

    filling: tuple[float, int]
    small: bool
    instead: Mapping[int, torch.dtype] = dataclasses.field(default_factory=dict)

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        shape = tuple(min(n, _SMALL) if self.small else n for n in t.shape)
        return _filled(math.prod(shape), self.instead.get(id(t), t.dtype), self.filling).reshape(shape)


def _substitutes(given: list[torch.Tensor], small: bool) -> Iterator[_Typed]:
    """Stand-ins of other types, which CPU may take: for all of them, the complex ones, one, or all but one."""
    ids = list(dict.fromkeys(map(id, given)))
    complex_ = [id(t) for t in given if t.dtype.is_complex]
    others = [[j for j in ids if j != i] for i in ids]
    sets = [ids, complex_, *([i] for i in ids), *(others if len(ids) > 2 else [])]
    for at, dtype, filling in itertools.product(sets, (torch.float32, torch.int64, torch.bool), _FILLINGS):
        yield _Typed(filling, small, dict.fromkeys(at, dtype))


def _real_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers and ``dtype`` that go with operands of real types."""
    plain = {n: v.real if isinstance(v, complex) else v for n, v in values.items()}
    return {n: torch.float32 if isinstance(v, torch.dtype) else v for n, v in plain.items()}


# Numbers -------------------------------------------------------------------------------------------------------


def check_numbers(op: Operator, values: dict[str, Any]) -> None:
    """Raise what the CPU kernel raises for the parameters of a distribution."""
    kept = {n: [1] if n == "size" else v for n, v in values.items() if n not in registry.DROPPED}
    theirs = _answer(op, kept, lambda t: _filled(1, t.dtype, _FILLINGS[0]).reshape((1,) * t.ndim))
    if theirs is not None and not _has_no_kernel(theirs):
        raise theirs


# Overlap -------------------------------------------------------------------------------------------------------

_apart: set[Any] = set()
_KEEP = 20_000


def check_overlap(op: Operator, key: Any, values: dict[str, Any]) -> None:
    """Raise what the CPU kernel raises for operands that share memory with what is written.

    Args:
      key: tells calls with other sizes, strides and offsets apart.
    """
    places = [_place(t) for t in tensors(values)]
    key = (op._schema.name, op._schema.overload_name, key, *(places.index(p) for p in places))
    if key in _apart:
        return
    if len(_apart) > _KEEP:
        _apart.clear()
    writes = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    written = tensors([values.get(n) for n in writes])
    read = tensors([v for n, v in values.items() if n not in writes])
    if any(_meet(a, b) for a in written for b in read):
        kept = {n: v for n, v in values.items() if n not in registry.DROPPED}
        theirs = _answer(op, kept, _Shared())
        if theirs is not None and str(theirs).startswith("unsupported operation"):
            raise theirs
    _apart.add(key)


def _place(t: torch.Tensor) -> int:
    return id(binding_tensor.buffer_of(t))


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may have elements of a storage in common."""
    if _place(a) != _place(b):
        return False
    if a is b:
        return True
    (start, end), (low, high) = _bytes(a), _bytes(b)
    return start < high and low < end and end - start <= _MOST and high - low <= _MOST


def _bytes(t: torch.Tensor) -> tuple[int, int]:
    start = int(t.storage_offset())
    return start * t.itemsize, (start + buffers.span(tuple(t.shape), t.stride())) * t.itemsize


class _Shared:
    """Stand-ins that share memory as the operands do."""

    def __init__(self) -> None:
        self._made: dict[int, torch.UntypedStorage] = {}

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        place = _place(t)
        if place not in self._made:
            self._made[place] = torch.zeros(
                binding_tensor.buffer_of(t).layout.nbytes, dtype=torch.uint8, device="cpu"
            ).untyped_storage()
        made = torch.empty(0, dtype=t.dtype, device="cpu")
        return made.set_(self._made[place], int(t.storage_offset()), tuple(t.shape), t.stride())
