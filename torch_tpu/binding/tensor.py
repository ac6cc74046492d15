"""Making device tensors, and finding the buffer behind one.

A device tensor is a plain ``torch.Tensor`` with real PrivateUse1 keys. It is made from a DLPack struct whose
device type (kDLExtDev) stands for PrivateUse1 and whose data pointer is an address that nothing is at; the storage
that PyTorch makes for it carries the ``Buffer`` as a Python attribute, which lives exactly as long as the storage.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch

from torch_tpu.runtime import buffers
from torch_tpu.runtime.buffers import Buffer

_KDL_EXT_DEV = 12
_DL_CODES = {
    torch.bool: (6, 8), torch.uint8: (1, 8), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.float16: (2, 16), torch.bfloat16: (4, 16), torch.float32: (2, 32), torch.float64: (2, 64),
    torch.complex64: (5, 64), torch.complex128: (5, 128),
}  # fmt: skip
# Types that PyTorch's DLPack import does not know are made as bytes of the same width and reinterpreted.
_BYTE = (1, 8)


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_from_dlpack = torch._C._from_dlpack  # type: ignore[attr-defined]
_reinterpret = torch._C._dynamo.guards._reinterpret_tensor  # type: ignore[attr-defined]
_storage_of = torch.Tensor.untyped_storage
_next_address, _ALIGNMENT, _by_address, _place = (
    buffers.next_address, buffers.ALIGNMENT, buffers.BY_ADDRESS, buffers.place,
)  # fmt: skip
_ref = weakref.ref


class Factory:
    """Makes tensors of one shape, strides, dtype and device.

    PyTorch reads the struct again when the storage dies (for its deleter), so structs are never freed; a struct is
    taken from the pool while its pointer is set and read, so threads and finalizers cannot mix two up.
    """

    __slots__ = ("_keep", "_pool", "device", "dtype", "nbytes", "raw", "shape", "small", "strides")

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: int):
        self.shape, self.strides, self.dtype, self.device = shape, strides, dtype, device
        self.raw = dtype not in _DL_CODES
        self.nbytes = buffers.span(shape, strides) * dtype.itemsize
        self.small = self.nbytes <= _ALIGNMENT
        self._pool: list[tuple[_DLTensor, int]] = []
        self._keep: list[Any] = []

    def _new(self) -> tuple[_DLTensor, int]:
        shape, strides = ((self.nbytes,), (1,)) if self.raw else (self.shape, self.strides)
        n = len(shape)
        sizes, steps = (ctypes.c_int64 * n)(*shape), (ctypes.c_int64 * n)(*strides)
        code, bits = _DL_CODES.get(self.dtype, _BYTE)
        s = _DLTensor()
        s.device.kind, s.device.index, s.ndim = _KDL_EXT_DEV, self.device, n
        s.dtype.code, s.dtype.bits, s.dtype.lanes = code, bits, 1
        s.shape, s.strides = ctypes.addressof(sizes), ctypes.addressof(steps)
        self._keep.append((s, sizes, steps))
        return s, ctypes.addressof(s)

    def make(self, buffer: Buffer) -> torch.Tensor:
        """A tensor over a new storage that owns ``buffer``."""
        pool = self._pool
        try:
            entry = pool.pop()
        except IndexError:
            entry = self._new()
        if self.small:  # buffers.place, without the call: this runs for every result
            buffer.address = address = next(_next_address) * _ALIGNMENT
            _by_address[address] = _ref(buffer)
        else:
            address = _place(buffer, self.nbytes)
        entry[0].data = address
        t = _from_dlpack(_new_capsule(entry[1], b"dltensor", None))
        pool.append(entry)
        _storage_of(t).tpu_buffer = buffer  # type: ignore[attr-defined]
        if self.raw:
            t = _set_dtype(t, self.shape, self.strides, self.dtype)
        return t


_factories: dict[Any, Factory] = {}


def factory(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: int) -> Factory:
    """The one ``Factory`` of these properties."""
    key = (shape, strides, dtype, device)
    found = _factories.get(key)
    return found if found is not None else _factories.setdefault(key, Factory(*key))


def _set_dtype(t: torch.Tensor, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """The bytes of ``t`` seen as another dtype, over the same storage."""
    with torch._C._AutoDispatchBelowAutograd():  # type: ignore[attr-defined]
        flat = torch.ops.aten.view.dtype(t, dtype)
    return _reinterpret(flat, shape, strides, 0)


def buffer_of(t: torch.Tensor) -> Buffer:
    """The buffer behind a device tensor; TypeError for a tensor that is not on device "tpu"."""
    storage = _storage_of(t)
    try:
        return storage.tpu_buffer  # type: ignore[attr-defined]
    except AttributeError:
        return adopt(storage)


def adopt(storage: torch.UntypedStorage) -> Buffer:
    """Find the buffer of a storage that C++ made from another storage's address, and tie it to this one too."""
    if storage.device.type != "tpu":
        raise TypeError(f"expected a tensor on tpu, got one on {storage.device}")
    buffer = buffers.find(storage.data_ptr())
    if buffer is None:
        raise RuntimeError(
            f"tpu: a storage of {storage.nbytes()} bytes at {storage.data_ptr():#x} has no data: it was not made by "
            "this backend, or what it shared has been freed"
        )
    storage.tpu_buffer = buffer  # type: ignore[attr-defined]
    return buffer


def view(t: torch.Tensor, shape: Any, strides: Any, offset: int) -> torch.Tensor:
    """A tensor over the same storage, with the offset counted from ``t``'s own; no bounds check, no autograd."""
    return _reinterpret(t, shape, strides, offset)
