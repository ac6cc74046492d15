"""What PyTorch's CPU kernels refuse, the device refuses, in the same words.

Meta kernels check shapes, but not all of them, not in the words of the other kernels, and hardly ever the types. So
the CPU kernel is asked, with stand-ins of the operands: at the first call with new types of operands
(``check_types``), where an operand shares its memory with what is written (``check_overlap``), and for its words
where the device cannot do what it is asked (``in_words_of_cpu``).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager.spec import arguments
from torch_tpu.lowering import registry
from torch_tpu.runtime import buffers

_MOST = 2**22  # elements of stand-ins: a kernel that does not refuse computes
_FEW = 2**12  # elements up to which the stand-ins of ``check_types`` are as large as the operands,
_SMALL = 2  # and what their dimensions are cut to above

# Types that the CPU has fewer kernels for than other devices have.
_SPARED = frozenset({torch.float16, torch.bfloat16, torch.complex32, torch.uint16, torch.uint32, torch.uint64})
_REAL = frozenset({torch.float32, torch.float64})

StandIn = Callable[[torch.Tensor], torch.Tensor]


def _filled(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Values that most operators take: probabilities, positive numbers, indices."""
    return torch.full((n,), 0.5 if dtype.is_floating_point or dtype.is_complex else 0, dtype=dtype, device="cpu")


def _as_it_is(t: torch.Tensor) -> torch.Tensor:
    n = buffers.span(tuple(t.shape), t.stride())
    return _filled(n, t.dtype).as_strided(tuple(t.shape), t.stride(), 0)


def _mapped(x: Any, stand_in: StandIn) -> Any:
    if isinstance(x, torch.Tensor):
        return stand_in(x)
    if isinstance(x, (list, tuple)):
        return [_mapped(v, stand_in) for v in x]
    if isinstance(x, torch.device):
        return torch.device("cpu")
    return torch.Generator() if isinstance(x, torch.Generator) else x


def _answer(op: Operator, args: Any, kwargs: dict[str, Any], stand_in: StandIn) -> Exception | None:
    """What the CPU kernel raises for stand-ins of the operands; None if it takes them, or cannot be asked."""
    if any(a.name == "generator" for a in op._schema.arguments):
        kwargs = {**kwargs, "generator": torch.Generator()}  # nothing is drawn from PyTorch's own
    elif torch.Tag.nondeterministic_seeded in op.tags:
        return None
    try:
        theirs = _mapped(list(args), stand_in)
        named = {n: _mapped(v, stand_in) for n, v in kwargs.items()}
    except Exception:  # a type that CPU cannot fill, memory
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            op(*theirs, **named)
    except Exception as e:
        return e.with_traceback(None)
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
        theirs = _words(op, *arguments(op, values()))
        if theirs is None or (type(theirs) is type(e) and str(theirs) == str(e)):
            raise
        raise theirs from e


def _words(op: Operator, args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    given = tensors([args, kwargs])
    if sum(buffers.span(tuple(t.shape), t.stride()) for t in given) > _MOST or any(
        t.device.type == "cpu" for t in given
    ):
        return None
    theirs = _answer(op, args, kwargs, _as_it_is)
    return None if _is_of_values(theirs) or _has_no_kernel(theirs) else theirs


def check(op: Operator, values: dict[str, Any]) -> None:
    """Raise what the CPU kernel raises for operands like these."""
    theirs = _words(op, *arguments(op, values))
    if theirs is not None:
        raise theirs


def _is_of_values(error: Exception | None) -> bool:
    """The values of stand-ins are made up: what is said of them says nothing."""
    return isinstance(error, torch.linalg.LinAlgError)


def _has_no_kernel(error: Exception | None) -> bool:
    return isinstance(error, NotImplementedError) and str(error).startswith("Could not run")


# Types ---------------------------------------------------------------------------------------------------------

_taken: set[Any] = set()


def check_types(op: Operator, values: dict[str, Any]) -> None:
    """Raise what the CPU kernel raises for the types of the operands.

    It is their types that it refuses if it takes operands that are alike but for them. Types that CPU has fewer kernels
    for than other devices (half types) are not asked about.
    """
    given = tensors(values)
    types = [*(t.dtype for t in given), *(v for v in values.values() if isinstance(v, torch.dtype))]
    if all(d in _REAL for d in types) or any(map(_is_spared, types)) or any(t.numel() == 0 for t in given):
        return  # where there are no elements, most kernels do not look
    key = (op._schema.name, op._schema.overload_name, *map(_type_of, values.values()))
    if key in _taken or not _can_be_asked(op, given):
        return
    small = sum(t.numel() for t in given) > _FEW
    kept = {n: v for n, v in values.items() if n not in registry.DROPPED}
    theirs = _answer(op, *arguments(op, kept), lambda t: _stand_in(t, t.dtype, small))
    if theirs is None:
        _taken.add(key)
    elif not _has_no_kernel(theirs):
        for substitute in _substitutes(given, small):
            if _answer(op, *arguments(op, _real_numbers(kept)), substitute) is None:
                raise theirs


def _is_spared(dtype: torch.dtype) -> bool:
    return dtype in _SPARED or (dtype.is_floating_point and dtype.itemsize == 1)


def _can_be_asked(op: Operator, given: list[torch.Tensor]) -> bool:
    """Internal operators trust their operands: no smaller ones are made up for them."""
    bare = op._schema.name.partition("::")[2]
    if bare.startswith(("_foreach", "_fused", "_amp")):
        return False
    return not (bare.startswith("_") or "_backward" in bare) or sum(t.numel() for t in given) <= _FEW


def _type_of(v: Any) -> Any:
    if isinstance(v, torch.Tensor):
        return v.dtype
    if isinstance(v, (list, tuple)):
        return tuple(map(_type_of, v))
    return v if isinstance(v, (torch.dtype, str)) else type(v)


def _stand_in(t: torch.Tensor, dtype: torch.dtype, small: bool) -> torch.Tensor:
    shape = tuple(min(n, _SMALL) if small else n for n in t.shape)
    return _filled(math.prod(shape), dtype).reshape(shape)


def _substitutes(given: list[torch.Tensor], small: bool) -> Iterator[StandIn]:
    """Stand-ins of other types, which CPU may take: float or int64 for all, the first, all but the last, or one."""
    odd = [i for i, t in enumerate(given) if t.dtype not in _REAL]
    sets = [odd, [i for i in odd if i < len(given) - 1], *([i] for i in odd)]
    complex_ = [i for i in odd if given[i].dtype.is_complex]
    for at in [complex_, *sets]:
        for dtype in (torch.float32, torch.int64):
            others = {id(given[i]) for i in at}
            yield lambda t, others=others, dtype=dtype: _stand_in(t, dtype if id(t) in others else t.dtype, small)


def _real_numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers and ``dtype`` that go with operands of real types."""
    plain = {n: v.real if isinstance(v, complex) else v for n, v in values.items()}
    return {n: torch.float32 if isinstance(v, torch.dtype) else v for n, v in plain.items()}


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
        theirs = _answer(op, *arguments(op, kept), _Shared())
        if theirs is not None and str(theirs).startswith("unsupported operation"):
            raise theirs
    _apart.add(key)


def _place(t: torch.Tensor) -> int:
    return id(binding_tensor.buffer_of(t))


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may have elements of a storage in common."""
    if _place(a) != _place(b):
        return False
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
            self._made[place] = torch.UntypedStorage(binding_tensor.buffer_of(t).layout.nbytes, device="cpu").fill_(0)
        made = torch.empty(0, dtype=t.dtype, device="cpu")
        return made.set_(self._made[place], int(t.storage_offset()), tuple(t.shape), t.stride())
