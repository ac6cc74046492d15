"""Operands: the tensors and numbers that a program of an operator is given, and how they stand in its arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.eager import views
from torch_tpu.eager.spec import Kind, Param
from torch_tpu.lowering import dtypes
from torch_tpu.runtime.buffers import Layout


@dataclasses.dataclass(frozen=True)
class Slot:
    """One tensor operand: where it comes from and how it lies in its buffer."""

    param: str
    view: views.View
    layout: Layout
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    mutated: bool

    def read(self, array: Any, starts: Any) -> Any:
        value = self.view.read(array, starts)
        return value if value.shape == self.size else jax.numpy.broadcast_to(value, self.size)

    def write(self, array: Any, value: Any, starts: Any) -> Any:
        value = jax.numpy.broadcast_to(dtypes.cast(value, self.dtype), self.size)
        if self.view.size == self.size:
            return self.view.write(array, value, starts)
        return self.view.write(array, self._last_written(array, value, starts), starts)

    def _last_written(self, array: Any, value: Any, starts: Any) -> Any:
        """Of elements that lie in one place, the last that the operator changed."""
        old = self.view.read(array, starts)
        for dim, (n, kept) in enumerate(zip(self.size, self.view.size, strict=True)):
            if n == kept:
                continue
            same = (value == old) | ((value != value) & (old != old))
            last = n - 1 - jax.numpy.argmin(jax.numpy.flip(same, dim), axis=dim, keepdims=True)
            value = jax.numpy.take_along_axis(value, last, dim)
        return value


@dataclasses.dataclass(frozen=True)
class Number:
    param: str
    kind: type
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class SlotRef:
    """Stands for tensor operands in the bound arguments: one index, or a list (None for an absent tensor)."""

    index: Any


@dataclasses.dataclass(frozen=True)
class NumberRef:
    index: Any


def resolve(value: Any, arrays: list[Any], numbers: list[Any]) -> Any:
    source = arrays if isinstance(value, SlotRef) else numbers if isinstance(value, NumberRef) else None
    if source is None:
        return value
    if isinstance(value.index, tuple):
        return [None if i is None else source[i] for i in value.index]
    return source[value.index]


def unread(slot: Slot) -> Any:
    return jax.numpy.zeros(slot.size, dtypes.to_jax(slot.dtype))


def bind(p: Param, value: Any, slots: list[Slot], numbers: list[Number], wide: bool, overlaps: bool) -> Any:
    if isinstance(value, torch.Tensor):
        slots.append(_slot(p, value, overlaps))
        return SlotRef(len(slots) - 1)
    if p.kind is Kind.TENSORS and value is not None:
        at = []
        for t in value:
            if t is not None:
                slots.append(_slot(p, t, overlaps))
            at.append(None if t is None else len(slots) - 1)
        return SlotRef(tuple(at))
    if p.kind is Kind.NUMBER and isinstance(value, (list, tuple)):
        start = len(numbers)
        numbers.extend(Number(p.name, type(v), number_dtype(v, wide)) for v in value)
        return NumberRef(tuple(range(start, len(numbers))))
    if p.kind in (Kind.NUMBER, Kind.TENSOR) and is_operand(value, p.special):
        numbers.append(Number(p.name, type(value), number_dtype(value, wide)))
        return NumberRef(len(numbers) - 1)
    return value


def is_operand(value: Any, special: tuple[object, ...]) -> bool:
    """Whether a number is passed to the program, rather than written into it."""
    return type(value) in (int, float, complex) and value not in special


def number_dtype(value: Any, wide: bool) -> np.dtype:
    """The type a number operand travels in: 64-bit where a 64-bit floating tensor takes part, or for ints."""
    if isinstance(value, bool):
        return np.dtype(np.bool_)
    if isinstance(value, int):
        return np.dtype(np.int64 if -(2**63) <= value < 2**63 else np.uint64)
    if isinstance(value, float):
        return np.dtype(np.float64 if wide else np.float32)
    return np.dtype(np.complex128 if wide else np.complex64)


# In place on expanded tensors: CPU writes with these, and refuses with all others.
_WRITE_EXPANDED = frozenset({
    "aten::fill_.Scalar", "aten::zero_", "aten::full.out", "aten::masked_fill_.Scalar", "aten::masked_fill_.Tensor",
    "aten::index_put_", "aten::_index_put_impl_", "aten::index_fill_.int_Scalar", "aten::index_fill_.int_Tensor",
})  # fmt: skip


def writes_expanded(name: str) -> bool:
    """Whether an operator may write to a tensor whose elements lie in one place."""
    return name in _WRITE_EXPANDED


def _slot(p: Param, t: torch.Tensor, overlaps: bool) -> Slot:
    layout = binding_tensor.buffer_of(t).layout
    size, stride = tuple(t.shape), t.stride()
    written = size
    if p.mutated and 0 not in size and any(n > 1 and step == 0 for n, step in zip(size, stride, strict=True)):
        if not overlaps:
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory "
                "location. Please clone() the tensor before performing the operation."
            )
        written = tuple(1 if step == 0 else n for n, step in zip(size, stride, strict=True))
    view = views.solve(layout, written, stride, int(t.storage_offset()), dtypes.to_jax(t.dtype))
    return Slot(p.name, view, layout, size, stride, t.dtype, p.mutated)
