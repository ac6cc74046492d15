"""Rearranging elements: cat, stack, flip, roll, repeat, triangles, diagonals, pixel shuffles, sliding blocks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.gather_scatter import widen_half
from torch_tpu.lowering.registry import Meta, register


@register("aten::cat", meta=True)
def cat(tensors: list[Any], dim: int = 0, *, meta: tuple[Meta, ...]) -> Any:
    """A tensor of shape (0,) fits anywhere: PyTorch's legacy exception."""
    parts = [dtypes.cast(t, meta[0].dtype) for t in tensors]
    if len(meta[0].shape) > 1:
        parts = [t for t in parts if t.shape != (0,)]
    return jnp.concatenate(parts, dim) if parts else jnp.zeros(meta[0].shape, dtypes.to_jax(meta[0].dtype))


@register("aten::stack", "aten::_stack", meta=True)
def stack(tensors: list[Any], dim: int = 0, *, meta: tuple[Meta, ...]) -> Any:
    return jnp.stack([dtypes.cast(t, meta[0].dtype) for t in tensors], dim)


@register("aten::flip")
def flip(self: Any, dims: list[int]) -> Any:
    return lax.rev(self, tuple(d % self.ndim for d in dims)) if self.ndim else self


@register("aten::roll")
def roll(self: Any, shifts: list[int], dims: Any = ()) -> Any:
    if self.size == 0:
        return self
    return jnp.roll(self, tuple(shifts), tuple(dims)) if dims else jnp.roll(self, shifts[0])


@register("aten::rot90")
def rot90(self: Any, k: int = 1, dims: Any = (0, 1)) -> Any:
    return jnp.rot90(self, k, tuple(dims))


@register("aten::repeat")
def repeat(self: Any, repeats: list[int]) -> Any:
    return jnp.tile(self.reshape((1,) * (len(repeats) - self.ndim) + self.shape), repeats)


# ---- triangles


def _below(rows: int, columns: int, diagonal: int) -> Any:
    """Whether an element is on or below the diagonal."""
    row = lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    return lax.broadcasted_iota(jnp.int32, (rows, columns), 1) - row <= diagonal


@register("aten::tril")
def tril(self: Any, diagonal: int = 0) -> Any:
    return jnp.where(_below(self.shape[-2], self.shape[-1], diagonal), self, jnp.zeros((), self.dtype))


@register("aten::triu")
def triu(self: Any, diagonal: int = 0) -> Any:
    return jnp.where(_below(self.shape[-2], self.shape[-1], diagonal - 1), jnp.zeros((), self.dtype), self)


def _positions(mask: Any, size: int) -> Any:
    return jnp.stack(jnp.nonzero(mask, size=size)) if size else jnp.zeros((2, 0), jnp.int32)


@register("aten::tril_indices", meta=True)
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _positions(_below(row, col, offset), meta[0].shape[1])


@register("aten::triu_indices", meta=True)
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _positions(~_below(row, col, offset - 1), meta[0].shape[1])


# ---- diagonals


def diagonal(x: Any, offset: int, dim1: int, dim2: int) -> Any:
    """The diagonal as the last dimension: a strided slice of the flattened matrices."""
    x = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    *batch, rows, columns = x.shape
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    if length == 0:
        return jnp.zeros((*batch, 0), x.dtype)
    start = offset if offset >= 0 else -offset * columns
    flat = x.reshape(*batch, rows * columns)
    return lax.slice_in_dim(flat, start, start + (length - 1) * (columns + 1) + 1, columns + 1, axis=-1)


def on_diagonal(values: Any, rows: int, columns: int, offset: int) -> Any:
    """Matrices with the last dimension of ``values`` on a diagonal and zeros elsewhere."""
    length = values.shape[-1]
    zeros = jnp.zeros((*values.shape[:-1], rows, columns), values.dtype)
    if length == 0 or zeros.size == 0:
        return zeros
    start = offset if offset >= 0 else -offset * columns
    end = start + (length - 1) * (columns + 1) + 1
    pads = [(0, 0, 0)] * (values.ndim - 1) + [(start, rows * columns - end, columns)]
    return lax.pad(values, jnp.zeros((), values.dtype), pads).reshape(zeros.shape)


@register("aten::diag_embed")
def diag_embed(self: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    size = self.shape[-1] + abs(offset)
    return jnp.moveaxis(on_diagonal(self, size, size, offset), (-2, -1), (dim1, dim2))


@register("aten::block_diag", meta=True)
def block_diag(tensors: list[Any], *, meta: tuple[Meta, ...]) -> Any:
    _, columns = meta[0].shape
    rows, at = [], 0
    for t in tensors:
        block = dtypes.cast(t, meta[0].dtype)
        block = block.reshape((1, -1) if block.ndim < 2 else block.shape)
        rows.append(jnp.pad(block, ((0, 0), (at, columns - at - block.shape[1]))))
        at += block.shape[1]
    return jnp.concatenate(rows, 0)


# ---- images


@register("aten::pixel_shuffle", format_of=["self"])
def pixel_shuffle(self: Any, upscale_factor: int) -> Any:
    *batch, channels, height, width = self.shape
    r, b = upscale_factor, len(batch)
    x = self.reshape(*batch, channels // r**2, r, r, height, width)
    x = jnp.transpose(x, (*range(b), b, b + 3, b + 1, b + 4, b + 2))
    return x.reshape(*batch, channels // r**2, height * r, width * r)


@register("aten::pixel_unshuffle")
def pixel_unshuffle(self: Any, downscale_factor: int) -> Any:
    *batch, channels, height, width = self.shape
    r, b = downscale_factor, len(batch)
    x = self.reshape(*batch, channels, height // r, r, width // r, r)
    x = jnp.transpose(x, (*range(b), b, b + 2, b + 4, b + 1, b + 3))
    return x.reshape(*batch, channels * r**2, height // r, width // r)


@register("aten::channel_shuffle")
def channel_shuffle(self: Any, groups: int) -> Any:
    n, channels, *rest = self.shape
    return jnp.swapaxes(self.reshape(n, groups, channels // groups, *rest), 1, 2).reshape(self.shape)


def _blocks(size: int, kernel: int, dilation: int, padding: int, stride: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@register("aten::im2col")
def im2col(self: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Sliding blocks as columns: a strided slice for each position in the kernel."""
    x = self if self.ndim == 4 else self[None]
    n, channels, height, width = x.shape
    rows, columns = (_blocks(s, *a) for s, a in zip((height, width), _axes(kernel_size, dilation, padding, stride)))
    x = jnp.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    parts = []
    for i in range(kernel_size[0]):
        for j in range(kernel_size[1]):
            top, left = i * dilation[0], j * dilation[1]
            end = (n, channels, top + (rows - 1) * stride[0] + 1, left + (columns - 1) * stride[1] + 1)
            parts.append(lax.slice(x, (0, 0, top, left), end, (1, 1, *stride)))
    out = jnp.stack(parts, 2).reshape(n, channels * len(parts), rows * columns)
    return out if self.ndim == 4 else out[0]


def _axes(*lists: Any) -> list[tuple[int, ...]]:
    return [tuple(e[a] for e in lists) for a in (0, 1)]


@register("aten::col2im")
def col2im(self: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """The sum of blocks at their places: im2col transposed."""
    x = widen_half(self if self.ndim == 3 else self[None])
    n, (kh, kw) = x.shape[0], kernel_size
    rows, columns = (_blocks(s, *a) for s, a in zip(output_size, _axes(kernel_size, dilation, padding, stride)))
    x = x.reshape(n, x.shape[1] // (kh * kw), kh, kw, rows, columns)
    zero = jnp.zeros((), x.dtype)
    total: Any = 0
    tall, wide = output_size[0] + 2 * padding[0], output_size[1] + 2 * padding[1]
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation[0], j * dilation[1]
            below = tall - top - (rows - 1) * stride[0] - 1
            right = wide - left - (columns - 1) * stride[1] - 1
            pads = [(0, 0, 0), (0, 0, 0), (top, below, stride[0] - 1), (left, right, stride[1] - 1)]
            total = total + lax.pad(x[:, :, i, j], zero, pads)
    out = total[:, :, padding[0] : tall - padding[0], padding[1] : wide - padding[1]]
    return out if self.ndim == 3 else out[0]
