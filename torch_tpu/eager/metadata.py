"""View operators: new metadata over the same storage. Every other view operator is a composite of these."""

from __future__ import annotations

import functools
from operator import mul
from typing import Any

import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.binding.dispatcher import cpu_kernel
from torch_tpu.runtime import buffers
from torch_tpu.runtime.buffers import canonical_strides

_reinterpret = binding_tensor.view
_storage_of = torch.Tensor.untyped_storage
_strides: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # sizes and strides of views, by what they are of
_LIMIT = 50_000


def as_strided(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    own = int(self.storage_offset())
    offset = own if storage_offset is None else storage_offset
    # Offset of the last element, unless a dimension is empty.
    last = offset + sum(map(mul, size, stride)) - sum(stride)
    try:
        nbytes = _storage_of(self).tpu_buffer.layout.nbytes  # type: ignore[attr-defined]
    except AttributeError:
        nbytes = binding_tensor.buffer_of(self).layout.nbytes
    if last * self.itemsize >= nbytes or offset < 0 or (stride and min(stride) < 0):
        _check_strided(self, size, stride, offset, nbytes)
    return _reinterpret(self, size, stride, offset - own)


_PLAIN: Any = torch.Tensor


def as_strided_(self: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """What ``squeeze_``, ``t_`` and the like come to. PyTorch's own kernel goes by its record of the storage's size,
    which is out of date where the storage was resized."""
    kind: Any = type(self)
    if kind.__torch_dispatch__ is not _PLAIN.__torch_dispatch__:  # a tracer's wrapper: it has no memory
        return _own_as_strided_()(self, size, stride, storage_offset)
    self.data = as_strided(self, size, stride, storage_offset)
    return self


@functools.cache
def _own_as_strided_() -> Any:
    return cpu_kernel("aten::as_strided_")


def _check_strided(self: torch.Tensor, size: Any, stride: Any, offset: int, nbytes: int) -> None:
    if len(size) != len(stride):
        raise RuntimeError(f"mismatch in length of strides and shape: {list(stride)} and {list(size)}")
    if any(s < 0 for s in stride):
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(stride)}")
    span = buffers.span(size, stride)
    if offset < 0 or (span and (offset + span) * self.itemsize > nbytes):
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
            f"{self.itemsize} requiring a storage size of {(offset + span) * self.itemsize} are out of bounds for "
            f"storage of size {nbytes}"
        )


def view(self: torch.Tensor, size: Any) -> torch.Tensor:
    """PyTorch's own kernel decides on the strides, those of dimensions of size 1 too; it is asked once."""
    key = (self.shape, self.stride(), *size)
    known = _strides.get(key)
    if known is not None:
        return _reinterpret(self, *known, 0)
    result = _any_view(self, size)
    if len(_strides) > _LIMIT:
        _strides.clear()
    _strides[key] = (tuple(result.shape), result.stride())
    return result


def reshape_alias(self: torch.Tensor, size: Any, stride: Any) -> torch.Tensor:
    return _reinterpret(self, size, stride, 0)


_any_view = cpu_kernel("aten::view")
_any_unfold = cpu_kernel("aten::unfold")
_any_complex, _any_real = cpu_kernel("aten::view_as_complex"), cpu_kernel("aten::view_as_real")
_any_set = cpu_kernel("aten::set_.source_Storage_storage_offset")


def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    return _any_unfold(self, dimension, size, step)


def view_as_complex(self: torch.Tensor) -> torch.Tensor:
    return _any_complex(self)


def view_as_real(self: torch.Tensor) -> torch.Tensor:
    return _any_real(self)


def set_storage_offset(
    self: torch.Tensor, source: torch.UntypedStorage, storage_offset: int, size: Any, stride: Any = ()
) -> torch.Tensor:
    """``self`` becomes a view of another storage."""
    size = tuple(size)
    stride = tuple(stride) if len(stride) or not size else canonical_strides(size)
    if source.device != self.device:
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{self.device}" to a storage on different device '
            f'"{source.device}". This is not allowed; the devices must match.'
        )
    buffer = getattr(source, "tpu_buffer", None) or binding_tensor.adopt(source)
    span = buffers.span(size, stride)
    if (storage_offset + span) * self.itemsize > buffer.layout.nbytes:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)} and offset {storage_offset} need a storage of "
            f"{(storage_offset + span) * self.itemsize} bytes; this one has {buffer.layout.nbytes}"
        )
    known = getattr(source, "tpu_nbytes", None)
    if known is None:
        return _any_set(self, source, storage_offset, size, stride)
    # PyTorch's own record of the size of a storage that was resized is out of date, and its kernel would resize.
    _any_set(self, source, 0, (0,), (1,))
    self.data = _reinterpret(self, size, stride, storage_offset)
    return self


def set_storage(self: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    return set_storage_offset(self, source, 0, (source.nbytes() // self.itemsize,), (1,))


def set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return set_storage_offset(
        self, source.untyped_storage(), int(source.storage_offset()), tuple(source.shape), source.stride()
    )


def set_empty(self: torch.Tensor) -> torch.Tensor:
    return set_tensor(self, torch.empty(0, dtype=self.dtype, device=self.device))
