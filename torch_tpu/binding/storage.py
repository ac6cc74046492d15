"""Storages of device "tpu": making, sizing, reading and sharing them from Python.

PyTorch's own code would hand a null allocator to C++ (``UntypedStorage(n, device="tpu")`` and ``resize_`` crash the
process) or read an address that nothing is at (``storage[0]``). The methods below are replaced for tpu storages; all
other devices go to PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch

_from_pointer = torch._C._construct_storage_from_data_pointer  # type: ignore[attr-defined]
_base = torch._C.StorageBase


def new_storage(nbytes: int, index: int) -> torch.UntypedStorage:
    """An unallocated storage of ``nbytes`` on ``tpu:index``."""
    import numpy as np

    from torch_tpu.runtime import buffers

    buffer = buffers.Buffer(buffers.layout((nbytes,), np.dtype(np.uint8), index))
    storage: Any = _from_pointer(buffers.place(buffer, nbytes), torch.device("tpu", index), nbytes)
    storage.tpu_buffer = buffer
    return storage


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """The storage as a one-dimensional uint8 tensor."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _is_tpu(storage: Any) -> bool:
    return storage.device.type == "tpu"


def _new(cls: type, *args: Any, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "tpu":
        return _base.__new__(cls, *args, **kwargs)
    from torch_tpu.binding.device import index_of
    from torch_tpu.binding.loading import load

    load()
    index = index_of(device)
    given = args[0] if args else kwargs.get("size", 0)
    if isinstance(given, int):
        return new_storage(given, index)
    storage = new_storage(len(given), index)
    _bytes_of(storage).copy_(torch.tensor(list(given), dtype=torch.uint8, device="cpu"))
    return storage


def _resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    from torch_tpu.binding import tensor
    from torch_tpu.eager import copies

    copies.set_nbytes(tensor.buffer_of(_bytes_of(storage)), storage, int(size))
    return storage


def _current_nbytes(storage: torch.UntypedStorage) -> int:
    known = getattr(storage, "tpu_nbytes", None)
    return _originals["nbytes"](storage) if known is None else known


def _getitem(storage: torch.UntypedStorage, index: Any) -> Any:
    found = _bytes_of(storage)[index]
    return found.cpu().untyped_storage() if isinstance(index, slice) else int(found.item())


def _setitem(storage: torch.UntypedStorage, index: Any, value: int) -> None:
    _bytes_of(storage)[index] = value


def _fill(storage: torch.UntypedStorage, value: int) -> torch.UntypedStorage:
    _bytes_of(storage).fill_(value)
    return storage


def _tolist(storage: torch.UntypedStorage) -> list[int]:
    return _bytes_of(storage).tolist()


def _new_like(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return new_storage(0, storage.device.index)


def _byteswap(storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
    swapped = _bytes_of(storage).cpu().untyped_storage()
    swapped.byteswap(dtype)
    storage.copy_(swapped)


def _no(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> bool:
    return False


def _yes(storage: torch.UntypedStorage) -> bool:
    return True


def _pin_memory(storage: torch.UntypedStorage, device: Any = "tpu") -> Any:
    raise TypeError("cannot pin a storage on tpu: only CPU memory can be pinned")


def _swap_pointers(storage: torch.UntypedStorage, other: torch.UntypedStorage) -> Any:
    raise NotImplementedError("UntypedStorage._swap_data_ptr_ is not supported on tpu; copy_ the values")


def _share_memory(storage: torch.UntypedStorage) -> Any:
    raise RuntimeError(
        "a storage on tpu cannot be put in shared memory: send .cpu() to the other process, or let every process "
        "load its own"
    )


def _replacements() -> dict[str, Any]:
    return {
        "resize_": _resize,
        "nbytes": _current_nbytes,
        "size": _current_nbytes,
        "__len__": _current_nbytes,
        "__getitem__": _getitem,
        "__setitem__": _setitem,
        "fill_": _fill,
        "tolist": _tolist,
        "new": _new_like,
        "byteswap": _byteswap,
        "resizable": _yes,
        "is_shared": _no,
        "is_pinned": _no,
        "pin_memory": _pin_memory,
        "_swap_data_ptr_": _swap_pointers,
        "_share_cuda_": _share_memory,
        "share_memory_": _share_memory,
        "_share_filename_cpu_": _share_memory,
        "_share_fd_cpu_": _share_memory,
    }


_originals: dict[str, Any] = {}


def _dispatching(name: str, ours: Any, original: Any) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (ours if _is_tpu(self) else original)(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = getattr(original, "__doc__", None)
    return method


def install() -> None:
    """Replace the methods of ``torch.UntypedStorage`` that are unsafe for tpu storages."""
    torch.UntypedStorage.__new__ = staticmethod(_new)  # type: ignore[assignment]
    for name, ours in _replacements().items():
        original = getattr(torch.UntypedStorage, name)
        _originals[name] = original
        setattr(torch.UntypedStorage, name, _dispatching(name, ours, original))
