"""Buffers: what a storage of device "tpu" owns.

A buffer holds a ``jax.Array`` (ready, or on its way: JAX dispatches asynchronously), or nothing yet. Code that
needs the value asks ``force()``; it never assumes which. Memory that was never written is not allocated: it
becomes zeros when it is first read.

``Layout`` says how the array lies behind the storage: flattened, the array is the storage's elements in order.
Layouts are interned, so that they compare and hash by identity.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_tpu.runtime import errors, memory, platform


class Layout:
    """Shape and dtype of a buffer's array, and the index of its device."""

    __slots__ = ("account", "changes", "device", "dtype", "nbytes", "numel", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, device: int):
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.numel = math.prod(shape)
        self.nbytes = self.numel * dtype.itemsize
        self.account = memory.account(device)
        self.changes = self.account.changes

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}@{self.device}"


_layouts: dict[tuple[tuple[int, ...], np.dtype, int], Layout] = {}


def layout(shape: tuple[int, ...], dtype: np.dtype, device: int) -> Layout:
    """The one ``Layout`` of these properties."""
    key = (shape, dtype, device)
    found = _layouts.get(key)
    return found if found is not None else _layouts.setdefault(key, Layout(*key))


# Fake addresses: storages of the device get ranges of an address space that no host memory can be in (non
# canonical on x86-64 and arm64), far enough apart that views never reach into a neighbour.
ALIGNMENT = 512
next_address = itertools.count(1 << 50)
BY_ADDRESS: dict[int, weakref.ref[Buffer]] = {}


_force_lock = threading.RLock()


class Gone:
    """In place of a pending result: the data was given away, and reading it raises."""

    def __init__(self, message: str):
        self.message = message

    def __call__(self) -> None:
        raise RuntimeError(self.message)


class Buffer:
    """The data of one storage. ``array`` is None while nothing is there; use ``force()`` to read.

    The bytes are on the device's account exactly while ``array`` is not None.
    """

    __slots__ = ("__weakref__", "address", "array", "layout", "pending")

    def __init__(self, layout: Layout, array: jax.Array | None = None):
        self.layout = layout
        self.array = array
        self.address = 0
        self.pending: Callable[[], None] | None = None
        if array is not None:
            changes = layout.changes  # Account.add, without the call: this runs for every result
            changes.append(layout.nbytes)
            if len(changes) > memory.FOLD_AT:
                layout.account.fold()

    def force(self) -> jax.Array:
        """The array, waiting for no computation: pending work is dispatched, missing memory becomes zeros."""
        if self.array is None:
            with _force_lock:  # two threads may want the same pending value
                if self.array is None:
                    pending = self.pending
                    if pending is not None:
                        pending()
                    else:
                        self.set(zeros(self.layout), self.layout)
        assert self.array is not None
        return self.array

    def defer(self, pending: Callable[[], None]) -> None:
        """The value is to come: ``pending`` calls ``set`` when it is asked for. What is there now is let go."""
        self._uncount()
        self.array = None
        self.pending = pending

    def set(self, array: jax.Array, layout: Layout) -> None:
        """Swap the data (an in-place operation, a resize)."""
        if self.array is None or layout is not self.layout:
            self._uncount()
            layout.account.add(layout.nbytes)
        self.array = array
        self.layout = layout
        self.pending = None

    def drop(self, layout: Layout) -> None:
        """Forget the data: the buffer is unallocated again, with a new layout."""
        self._uncount()
        self.array = self.pending = None
        self.layout = layout

    def _uncount(self) -> None:
        if self.array is not None:
            self.layout.changes.append(-self.layout.nbytes)

    def __del__(self) -> None:
        if self.array is not None:
            self.layout.changes.append(-self.layout.nbytes)
        BY_ADDRESS.pop(self.address, None)


def place(buffer: Buffer, nbytes: int) -> int:
    """Give the buffer its address (unique in the process) and enter it in the table of addresses."""
    # Small ranges come from a counter, which needs no lock.
    address = next(next_address) * ALIGNMENT if nbytes <= ALIGNMENT else _reserve(nbytes)
    buffer.address = address
    BY_ADDRESS[address] = weakref.ref(buffer)
    return address


_big_lock = threading.RLock()
_next_big = 1 << 60
_END = 1 << 63


def _reserve(nbytes: int) -> int:
    global _next_big
    with _big_lock:
        address = _next_big
        _next_big += (nbytes // ALIGNMENT + 2) * ALIGNMENT
    if _next_big >= _END:
        raise MemoryError(f"tpu: a storage of {nbytes} bytes is larger than any device's memory")
    return address


def find(address: int) -> Buffer | None:
    """The live buffer whose range starts at ``address``."""
    ref = BY_ADDRESS.get(address)
    return ref() if ref is not None else None


def zeros(layout: Layout) -> jax.Array:
    what = f"allocating {layout.nbytes} bytes for {layout.dtype}{list(layout.shape)}"
    with jax.enable_x64(True), errors.translated(what, layout.device):
        return jnp.zeros(layout.shape, layout.dtype, device=platform.device(layout.device))


def span(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements of storage a view reaches over, from its first element on; 0 for an empty one."""
    return 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def canonical_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of this shape, as PyTorch counts them (empty dims count as one)."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def is_ready(array: Any) -> bool:
    """Whether the array has been computed; asks without waiting."""
    return array.is_ready()


def live_arrays(device: int) -> list[jax.Array]:
    """The arrays of all live buffers of a device; pending ones are dispatched first."""
    found = [ref() for ref in list(BY_ADDRESS.values())]
    for b in found:
        if b is not None and b.pending is not None and not isinstance(b.pending, Gone):
            b.force()
    return [
        b.array for b in found if b is not None and b.array is not None and b.layout.device == device
    ]  # fmt: skip
