"""Between tensors and what collectives take: arrays on the device, bytes on the host."""

from __future__ import annotations

import jax
import torch

from torch_tpu.binding import tensor as tensors
from torch_tpu.lowering import dtypes
from torch_tpu.runtime import buffers
from torch_tpu.runtime.buffers import Buffer


def _is_whole(t: torch.Tensor, buffer: Buffer) -> bool:
    """Whether the tensor is all of its storage, as the array lies."""
    return (
        buffer.layout.shape == tuple(t.shape)
        and t.is_contiguous()
        and t.storage_offset() == 0
        and buffer.layout.dtype == dtypes.to_jax(t.dtype)
        and not t.is_conj()
        and not t.is_neg()
    )


def array_of(t: torch.Tensor) -> jax.Array:
    """The values of a device tensor as an array of its shape."""
    buffer = tensors.buffer_of(t)
    if not _is_whole(t, buffer):
        with torch.no_grad():
            t = t.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        buffer = tensors.buffer_of(t)
    array = buffer.force()
    if array.shape != tuple(t.shape):
        with jax.enable_x64(True):
            array = array.reshape(-1)[t.storage_offset() : t.storage_offset() + t.numel()].reshape(t.shape)
    return array


def tensor_of(array: jax.Array, like: torch.Tensor) -> torch.Tensor:
    """A new contiguous tensor of ``like``'s shape, type and device, whose values are the array."""
    shape = tuple(like.shape)
    layout = buffers.layout(shape, dtypes.to_jax(like.dtype), like.get_device())
    made = tensors.factory(shape, buffers.canonical_strides(shape), like.dtype, like.get_device())
    return made.make(Buffer(layout, array))


def write(t: torch.Tensor, array: jax.Array) -> None:
    """Make the array the values of a device tensor. Collectives leave version counters alone, so this does."""
    buffer = tensors.buffer_of(t)
    if _is_whole(t, buffer):
        buffer.force()  # what was deferred on the old values is dispatched first
        buffer.set(array, buffer.layout)
    else:
        with torch.no_grad():
            t.data.copy_(tensor_of(array, t))


def bytes_of(ts: list[torch.Tensor]) -> torch.Tensor:
    """The values of tensors as one row of bytes on the host."""
    parts = [t.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1) for t in ts]
    return torch.cat([p.view(torch.uint8) if p.numel() else p.new_empty(0, dtype=torch.uint8) for p in parts])


def size_in_bytes(t: torch.Tensor) -> int:
    return t.numel() * t.element_size()


def from_bytes(row: torch.Tensor, likes: list[torch.Tensor]) -> list[torch.Tensor]:
    """CPU tensors with the shapes and types of ``likes``, cut from a row of bytes."""
    out, at = [], 0
    for like in likes:
        n = size_in_bytes(like)
        part = row[at : at + n].clone()  # bytes at any place are not aligned for every type
        at += n
        out.append((part.view(like.dtype) if n else part.new_empty(0, dtype=like.dtype)).reshape(like.shape))
    return out


def write_host(t: torch.Tensor, value: torch.Tensor) -> None:
    """Copy CPU values into a tensor."""
    with torch.no_grad():
        t.data.copy_(value)
