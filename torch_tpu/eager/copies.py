"""Making tensors, and moving values: host to device, device to host, device to device, to a Python number."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.eager import foreach, modes, views
from torch_tpu.eager import plan as plans_module
from torch_tpu.eager.spec import Spec, spec_for
from torch_tpu.lowering import dtypes
from torch_tpu.runtime import buffers, launch, platform, transfer
from torch_tpu.runtime.buffers import Buffer

_READ_WHOLE = 4096  # elements up to which a single value is read by fetching its whole buffer


def _index_of(device: torch.device | None) -> int:
    index = plans_module.current_device() if device is None or device.index is None else device.index
    platform.device(index)  # IndexError where there is none
    return launch.resolve(index)


def new_empty(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, index: int) -> torch.Tensor:
    """An unallocated tensor: its memory comes into being when it is first written or read."""
    jax_dtype = dtypes.to_jax(dtype)
    arranged = views.arrangement(size, stride)
    shape = arranged[0] if arranged is not None else (buffers.span(size, stride),)
    return binding_tensor.factory(size, stride, dtype, index).make(Buffer(buffers.layout(shape, jax_dtype, index)))


def _check_options(name: str, layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout is not None and layout != torch.strided:
        raise NotImplementedError(f"{name}: layout {layout} is not supported on tpu; supported: torch.strided")
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned; a tensor on tpu can not")


def empty(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    _check_options("aten::empty", layout, pin_memory)
    size = tuple(size)
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension in size {list(size)}")
    if memory_format in (None, torch.contiguous_format):
        stride = buffers.canonical_strides(size)
    else:
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return new_empty(size, stride, dtype or torch.get_default_dtype(), _index_of(device))


def empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    _check_options("aten::empty_strided", layout, pin_memory)
    return new_empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), _index_of(device))


def resize_(self: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
    """PyTorch's resize: elements stay in storage order, a storage that is too small grows."""
    size = tuple(size)
    if size == tuple(self.shape) and memory_format in (None, torch.preserve_format):
        return self
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        stride = buffers.canonical_strides(size)
    else:
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    return restride(self, size, stride)


def restride(self: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Give the tensor these sizes and strides; a storage that is too small for them grows."""
    end = int(self.storage_offset()) + buffers.span(size, stride)
    resize_buffer(binding_tensor.buffer_of(self), self.untyped_storage(), end * self.element_size(), self.dtype)
    self.data = binding_tensor.view(self, size, stride, 0)
    return self


def resize_buffer(buffer: Buffer, storage: torch.UntypedStorage, nbytes: int, dtype: torch.dtype) -> None:
    """Let the buffer hold at least ``nbytes``, keeping what is there."""
    if nbytes > buffer.layout.nbytes:
        set_nbytes(buffer, storage, nbytes, dtypes.to_jax(dtype))


def set_nbytes(buffer: Buffer, storage: torch.UntypedStorage, nbytes: int, dtype: np.dtype | None = None) -> None:
    """Make the storage ``nbytes`` long: grown or cut, its first bytes kept; 0 frees the memory."""
    if buffer.pending is not None and nbytes:
        buffer.force()
    old = buffer.layout
    if dtype is None or nbytes % dtype.itemsize:
        dtype = old.dtype if nbytes % old.dtype.itemsize == 0 else np.dtype(np.uint8)
    layout = buffers.layout((nbytes // dtype.itemsize,), dtype, old.device)
    if buffer.array is None or old.nbytes == 0 or nbytes == 0:
        buffer.drop(layout)
    else:
        with jax.enable_x64(True):
            flat = views._bitcast(jax.numpy.ravel(buffer.force()), dtype)
            buffer.set(views._resized(flat, layout.numel), layout)
    storage.tpu_nbytes = nbytes  # type: ignore[attr-defined]


# Values --------------------------------------------------------------------------------------------------------


def _view_of(t: torch.Tensor) -> tuple[Buffer, views.View]:
    buffer = binding_tensor.buffer_of(t)
    v = views.solve(buffer.layout, tuple(t.shape), t.stride(), int(t.storage_offset()), dtypes.to_jax(t.dtype))
    return buffer, v


def from_host(t: torch.Tensor, index: int) -> torch.Tensor:
    """A new device tensor with the values of a CPU tensor; dense strides are kept."""
    if t.layout is not torch.strided:
        return t.to(torch.device("tpu", index))
    arranged = views.arrangement(tuple(t.shape), t.stride())
    stride = t.stride()
    if arranged is None:
        t = t.contiguous()
        stride = t.stride()
        arranged = views.arrangement(tuple(t.shape), stride)
        assert arranged is not None
    jax_dtype = dtypes.to_jax(t.dtype)
    array = transfer.to_device(t.permute(arranged[1]), jax_dtype, index)
    layout = buffers.layout(arranged[0], jax_dtype, index)
    return binding_tensor.factory(tuple(t.shape), stride, t.dtype, index).make(Buffer(layout, array))


def _synchronize() -> None:
    """What reading a value on the host is: recorded work is dispatched, failed index checks are raised."""
    foreach.run_recorded()
    modes.raise_failed()


def to_host(t: torch.Tensor) -> torch.Tensor:
    """A new CPU tensor with the values of a device tensor, in the strides that ``Tensor.clone`` gives; waits."""
    if t.layout is not torch.strided:
        return t.cpu()  # made of dense tensors, which come here one by one
    _synchronize()
    t = resolved(t)
    shape, stride = tuple(t.shape), t.stride()
    arranged = views.arrangement(shape, stride)
    if arranged is None:
        arranged = views.arrangement(shape, _dense_strides(shape, stride))
        assert arranged is not None
    buffer, dtype = binding_tensor.buffer_of(t), dtypes.to_jax(t.dtype)
    if not _worth_fetching(buffer, t.nbytes):
        t = contiguous_copy(t)
        buffer = binding_tensor.buffer_of(t)
    views.solve(buffer.layout, shape, t.stride(), int(t.storage_offset()), dtype)  # raises outside of the storage
    raw = _flat(buffer).view(np.uint8)
    steps = tuple(s * dtype.itemsize for s in t.stride())
    offset = int(t.storage_offset()) * dtype.itemsize
    values = np.ndarray(shape, dtype, raw, offset, steps) if t.numel() else np.empty(shape, dtype)
    inverse = [arranged[1].index(i) for i in range(t.ndim)]
    return transfer.tensor_from(values.transpose(arranged[1]), t.dtype).permute(inverse)


def _dense_strides(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that a copy of a tensor with gaps or overlaps gets."""
    return torch.empty_like(torch.empty_strided(shape, stride, device="meta")).stride()


def _worth_fetching(buffer: Buffer, nbytes: int) -> bool:
    """Whether to cut a view out on the host: where host memory is the device's, or little else is fetched."""
    return platform.name() == "cpu" or buffer.layout.nbytes <= max(4 * nbytes, 4096)


def _flat(buffer: Buffer) -> np.ndarray:
    """The buffer's elements in storage order; waits for them."""
    while True:
        array = buffer.force()
        try:
            return np.ascontiguousarray(transfer.to_host(array)).reshape(-1)
        except RuntimeError:
            # Another thread wrote to the buffer, and the new value took the old one's memory: read the new one.
            if not array.is_deleted() or buffer.array is array:
                raise


def _flat_bytes(buffer: Buffer, dtype: np.dtype) -> np.ndarray:
    """The buffer's elements, in storage order, as ``dtype``; waits for them."""
    flat = _flat(buffer)
    if flat.dtype == dtype:
        return flat
    return flat.view(np.uint8)[: flat.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)


def resolved(t: torch.Tensor) -> torch.Tensor:
    """``t`` with its conjugate and negative bits carried out.

    PyTorch hands lazily conjugated or negated tensors to copies and to matrix products; other operators get them
    carried out.
    """
    if t.is_conj():
        return torch.ops.aten._conj_physical(resolved(t.conj()))
    if t.is_neg():
        return torch.ops.aten.neg(t._neg_view())
    return t


def _lazy(t: torch.Tensor) -> bool:
    return t.is_conj() or t.is_neg()


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``self`` gets the values of ``src``, in its own dtype; either may be on the host."""
    here, there = self.device, src.device
    if here.type == "tpu" and _lazy(self):
        src = src.to(self.dtype)
        raw, value = (self.conj(), src.conj()) if self.is_conj() else (self._neg_view(), src.neg())
        copy_(raw, value)
        return self
    src = resolved(src)
    if here.type == "tpu" and there == here:
        return device_copy_(self, src)
    if here.type == "cpu" and there.type == "tpu":
        self.copy_(to_host(src))
        return self
    if there.type == "tpu":
        moved = transfer.move(binding_tensor.buffer_of(contiguous_copy(src)).force(), here.index)
        layout = buffers.layout(tuple(moved.shape), np.dtype(moved.dtype), here.index)
        f = binding_tensor.factory(tuple(src.shape), buffers.canonical_strides(tuple(src.shape)), src.dtype, here.index)
        return device_copy_(self, f.make(Buffer(layout, moved)))
    if there.type != "cpu":
        raise NotImplementedError(f"copying from {there} to {here} is not supported; go through the CPU")
    return _fill_from_host(self, src)


def _fill_from_host(self: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    src = src.detach().to(self.dtype)
    buffer = binding_tensor.buffer_of(self)
    arranged = views.arrangement(tuple(self.shape), self.stride())
    whole = arranged is not None and buffer.layout.shape == arranged[0] and self.storage_offset() == 0
    if src.shape != self.shape:
        src = src.expand(self.shape)
    if whole and arranged is not None and buffer.layout.dtype == dtypes.to_jax(self.dtype):
        layout = buffer.layout
        buffer.set(transfer.to_device(src.permute(arranged[1]), layout.dtype, layout.device), layout)
        return self
    return device_copy_(self, from_host(src, self.get_device()))


def to_copy(
    self: torch.Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    non_blocking: bool = False, memory_format: Any = None,
) -> torch.Tensor:  # fmt: skip
    """A copy on ``device`` in ``dtype``: what ``Tensor.to`` comes to."""
    _check_options("aten::_to_copy", layout, False)
    self = resolved(self)
    target = self.device if device is None else torch.device(device)
    if target.type == "tpu":
        stays = target.index is None and self.device.type == "tpu"
        target = torch.device("tpu", self.device.index if stays else _index_of(target))
    dtype = dtype or self.dtype
    if self.device == target:
        if dtype == self.dtype:
            return clone(self, memory_format=memory_format)
        return device_to_copy(self, dtype=dtype, memory_format=memory_format)
    if target.type == "cpu":
        out = to_host(self).to(dtype)
        return out if memory_format in (None, torch.preserve_format) else out.contiguous(memory_format=memory_format)
    if self.device.type == "cpu":
        source = self.detach().to(dtype)
        if memory_format not in (None, torch.preserve_format):
            source = source.contiguous(memory_format=memory_format)
        return from_host(source, _index_of(target))
    out = torch.empty_like(self, dtype=dtype, device=target)
    return copy_(out, self)


_shared: dict[Any, binding_tensor.Factory | plans_module.Plan] = {}


def clone(self: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """A copy with a storage of its own. Arrays are immutable: a copy of a whole storage shares its array until
    one of the two is written to."""  # fmt: skip
    if _lazy(self):
        return clone(resolved(self), memory_format=memory_format)
    buffer = binding_tensor.buffer_of(self)
    layout = buffer.layout
    key = (self.shape, self.stride(), self.storage_offset(), self.dtype, layout, memory_format)
    array = buffer.array if buffer.array is not None else buffer.force()
    try:
        how = _shared[key]
    except KeyError:
        how = _shared[key] = _how_to_clone(self, layout, memory_format)
    if isinstance(how, binding_tensor.Factory):
        return how.make(Buffer(layout, array))
    return how.run([array], (), None, ())


def _how_to_clone(
    t: torch.Tensor, layout: buffers.Layout, memory_format: Any
) -> binding_tensor.Factory | plans_module.Plan:
    """A factory where the copy may share the array, else the plan that copies."""
    if len(_shared) > 50_000:
        _shared.clear()
    like = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
    stride = torch.ops.aten.clone.default(like, memory_format=memory_format).stride()
    arranged = views.arrangement(tuple(t.shape), stride)
    same = arranged is not None and arranged[0] == layout.shape and stride == t.stride() and t.storage_offset() == 0
    if not same or layout.dtype != dtypes.to_jax(t.dtype):
        return plans_module.make(clone_spec(), {"self": t, "memory_format": memory_format})
    return binding_tensor.factory(tuple(t.shape), stride, t.dtype, layout.device)


def contiguous_copy(t: torch.Tensor) -> torch.Tensor:
    """A contiguous device copy with a storage of its own."""
    return clone(t, memory_format=torch.contiguous_format)


def local_scalar_dense(self: torch.Tensor) -> Any:
    """The one value of a one-element tensor, as a Python number; waits for it."""
    _synchronize()
    self = resolved(self)
    buffer = binding_tensor.buffer_of(self)
    offset = self.storage_offset()
    if buffer.layout.numel > _READ_WHOLE and platform.name() != "cpu":
        buffer, offset = binding_tensor.buffer_of(contiguous_copy(self)), 0
    return _flat_bytes(buffer, dtypes.to_jax(self.dtype))[offset].item()


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return copy_(dst, self, non_blocking)


def copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    dst.resize_(self.shape)
    return copy_(dst, self)


def _unset(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("torch_tpu is not loaded")


@functools.cache
def clone_spec() -> Spec:
    found = spec_for(torch.ops.aten.clone.default)
    assert found is not None
    return found


# Kernels derived from lowerings, set when they are registered.
device_copy_: Callable[..., torch.Tensor] = _unset
device_to_copy: Callable[..., torch.Tensor] = _unset
