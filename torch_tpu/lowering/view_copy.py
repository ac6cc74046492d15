"""Views as values: ``*_copy`` (a view's result, copied), ``*_scatter`` (a value written into a view) and
``*_backward`` (a view's gradient)."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.gather_scatter import IN_BOUNDS, cast_like, scatter_rows, take_rows, widen_half
from torch_tpu.lowering.registry import Meta, register
from torch_tpu.lowering.shape import diagonal, on_diagonal


@register(
    "aten::view_copy", "aten::_reshape_copy", "aten::_reshape_alias_copy", "aten::squeeze_copy",
    "aten::squeeze_copy.dim", "aten::squeeze_copy.dims", "aten::unsqueeze_copy", "aten::detach_copy",
    "aten::alias_copy", "aten::lift_fresh_copy", meta=True,
)  # fmt: skip
def reshaped(self: Any, *_: Any, meta: tuple[Meta, ...]) -> Any:
    return self.reshape(meta[0].shape)


@register("aten::view_copy.dtype", meta=True)
def view_as_dtype(self: Any, dtype: Any, *, meta: tuple[Meta, ...]) -> Any:
    """The same bits in another type; a narrower or wider one changes the last dimension."""
    target = dtypes.to_jax(dtype)
    x = self.astype(jnp.uint8) if self.dtype == jnp.bool_ else self
    if x.dtype.kind == "c" or target.kind == "c":
        raise NotImplementedError(f"aten::view_copy: {self.dtype} as {dtype}; supported: view_as_real, view_as_complex")
    if target == np.bool_:
        raise NotImplementedError(f"aten::view_copy: {self.dtype} as {dtype}; supported: types other than bool")
    ratio = target.itemsize // x.dtype.itemsize
    if ratio > 1:
        x = x.reshape(*x.shape[:-1], x.shape[-1] // ratio, ratio)
    return lax.bitcast_convert_type(x, target).reshape(meta[0].shape)


@register("aten::expand_copy", meta=True)
def expand_copy(self: Any, size: Any, *, implicit: bool = False, meta: tuple[Meta, ...]) -> Any:
    return jnp.broadcast_to(self, meta[0].shape)


@register("aten::permute_copy")
def permute_copy(self: Any, dims: list[int]) -> Any:
    return jnp.transpose(self, [d % max(self.ndim, 1) for d in dims])


@register("aten::transpose_copy.int")
def transpose_copy(self: Any, dim0: int, dim1: int) -> Any:
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@register("aten::t_copy")
def t_copy(self: Any) -> Any:
    return self.T


@register("aten::_conj_copy")
def conj_copy(self: Any) -> Any:
    return jnp.conj(self)


@register("aten::_neg_view_copy")
def neg_copy(self: Any) -> Any:
    return -self


@register("aten::view_as_real_copy")
def view_as_real_copy(self: Any) -> Any:
    return jnp.stack([jnp.real(self), jnp.imag(self)], -1)


@register("aten::view_as_complex_copy")
def view_as_complex_copy(self: Any) -> Any:
    return lax.complex(self[..., 0], self[..., 1])


# ---- slices and selections; their positions are operands, so that x[3:5] and x[4:6] share a program


def _start(start: Any, size: int) -> Any:
    """A slice's first position: negative ones count from the end, and the range is clamped."""
    if start is None:
        return jnp.zeros((), jnp.int32)
    start = jnp.asarray(start)
    return jnp.clip(jnp.where(start < 0, start + size, start), 0, size).astype(jnp.int32)


def _offsets(ndim: int, dim: int, start: Any) -> list[Any]:
    return [start if d == dim else jnp.zeros((), jnp.int32) for d in range(ndim)]


def _span(length: int, step: int) -> int:
    return (length - 1) * step + 1


def _spread(values: Any, dim: int, step: int) -> Any:
    """``values`` with ``step - 1`` zeros between its elements along ``dim``."""
    pads = [(0, 0, step - 1 if d == dim else 0) for d in range(values.ndim)]
    return lax.pad(values, jnp.zeros((), values.dtype), pads)


@register("aten::slice_copy.Tensor", operands=["start", "end"], meta=True)
def slice_copy(
    self: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1, *, meta: tuple[Meta, ...]
) -> Any:
    dim %= self.ndim
    length = meta[0].shape[dim]
    if length == 0:
        return jnp.zeros(meta[0].shape, self.dtype)
    out = lax.dynamic_slice_in_dim(self, _start(start, self.shape[dim]), _span(length, step), dim)
    return lax.slice_in_dim(out, 0, out.shape[dim], step, axis=dim)


@register("aten::narrow_copy", operands=["start"], meta=True)
def narrow_copy(self: Any, dim: int, start: Any, length: int, *, meta: tuple[Meta, ...]) -> Any:
    return slice_copy(self, dim, start, meta=meta)


@register("aten::select_copy.int", operands=["index"])
def select_copy(self: Any, dim: int, index: Any) -> Any:
    dim %= self.ndim
    return lax.squeeze(lax.dynamic_slice_in_dim(self, _start(index, self.shape[dim]), 1, dim), (dim,))


@register("aten::slice_backward", operands=["start", "end"])
def slice_backward(grad_output: Any, input_sizes: list[int], dim: int, start: Any, end: Any, step: int) -> Any:
    return slice_scatter(jnp.zeros(input_sizes, grad_output.dtype), grad_output, dim, start, end, step)


@register("aten::slice_scatter", operands=["start", "end"])
def slice_scatter(self: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    dim %= self.ndim
    if src.size == 0:
        return self
    at, src = _start(start, self.shape[dim]), cast_like(src, self)
    if step > 1:
        held = lax.dynamic_slice_in_dim(self, at, _span(src.shape[dim], step), dim)
        ours = lax.broadcasted_iota(jnp.int32, held.shape, dim) % step == 0
        src = jnp.where(ours, _spread(src, dim, step), held)
    return lax.dynamic_update_slice(self, src, _offsets(self.ndim, dim, at))


@register("aten::select_backward", operands=["index"])
def select_backward(grad_output: Any, input_sizes: list[int], dim: int, index: Any) -> Any:
    return select_scatter(jnp.zeros(input_sizes, grad_output.dtype), grad_output, dim, index)


@register("aten::select_scatter", operands=["index"])
def select_scatter(self: Any, src: Any, dim: int, index: Any) -> Any:
    dim %= self.ndim
    src = jnp.expand_dims(cast_like(src, self), dim)
    return lax.dynamic_update_slice(self, src, _offsets(self.ndim, dim, _start(index, self.shape[dim])))


@register("aten::split_copy.Tensor")
def split_copy(self: Any, split_size: int, dim: int = 0) -> tuple[Any, ...]:
    size = self.shape[dim]
    ends = [*range(split_size, size, split_size), size] if split_size else [size]
    return _pieces(self, [e - s for s, e in zip([0, *ends], ends)], dim)


@register("aten::split_with_sizes_copy")
def split_with_sizes_copy(self: Any, split_sizes: list[int], dim: int = 0) -> tuple[Any, ...]:
    return _pieces(self, split_sizes, dim)


def _pieces(x: Any, sizes: list[int], dim: int) -> tuple[Any, ...]:
    ends = np.cumsum(sizes).tolist()
    return tuple(lax.slice_in_dim(x, e - n, e, axis=dim % x.ndim) for e, n in zip(ends, sizes))


@register("aten::unbind_copy.int")
def unbind_copy(self: Any, dim: int = 0) -> tuple[Any, ...]:
    return tuple(jnp.squeeze(p, dim) for p in _pieces(self, [1] * self.shape[dim], dim))


# ---- diagonals


@register("aten::diagonal_copy")
def diagonal_copy(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return diagonal(self, offset, dim1, dim2)


@register("aten::diagonal_backward")
def diagonal_backward(grad_output: Any, input_sizes: list[int], offset: int, dim1: int, dim2: int) -> Any:
    out = on_diagonal(grad_output, input_sizes[dim1], input_sizes[dim2], offset)
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


@register("aten::diagonal_scatter")
def diagonal_scatter(self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    ours = diagonal_backward(jnp.ones(src.shape, jnp.bool_), self.shape, offset, dim1, dim2)
    return jnp.where(ours, diagonal_backward(cast_like(src, self), self.shape, offset, dim1, dim2), self)


# ---- sliding windows and arbitrary strides


def _windows(count: int, size: int, step: int) -> Any:
    kind = (count, size)
    return lax.broadcasted_iota(jnp.int32, kind, 0) * step + lax.broadcasted_iota(jnp.int32, kind, 1)


@register("aten::unfold_copy", meta=True)
def unfold_copy(self: Any, dimension: int, size: int, step: int, *, meta: tuple[Meta, ...]) -> Any:
    if self.ndim == 0:
        return jnp.broadcast_to(self, meta[0].shape)
    dim = dimension % self.ndim
    out = take_rows(self, _windows(meta[0].shape[dim], size, step), dim)
    return jnp.moveaxis(out, dim + 1, -1)


@register("aten::unfold_backward")
def unfold_backward(grad_in: Any, input_sizes: list[int], dim: int, size: int, step: int) -> Any:
    if not input_sizes:
        return grad_in.reshape(-1)[:1].reshape(())
    dim %= len(input_sizes)
    count = grad_in.shape[dim]
    grad = jnp.moveaxis(widen_half(grad_in), -1, dim + 1)
    rows = grad.reshape(*grad.shape[:dim], count * size, *grad.shape[dim + 2 :])
    zeros = jnp.zeros(input_sizes, grad.dtype)
    return scatter_rows(zeros, dim, _windows(count, size, step).reshape(-1), rows, "sum")


def _strided_places(size: list[int], stride: list[int], offset: Any) -> Any:
    place = jnp.asarray(0 if offset is None else offset, jnp.int64)
    for d, s in enumerate(stride):
        place = place + lax.broadcasted_iota(jnp.int64, tuple(size), d) * s
    return jnp.broadcast_to(place, tuple(size))


@register("aten::as_strided_copy", operands=["storage_offset"])
def as_strided_copy(self: Any, size: list[int], stride: list[int], storage_offset: Any = None) -> Any:
    return take_rows(self.reshape(-1), _strided_places(size, stride, storage_offset), 0)


@register("aten::as_strided_scatter", operands=["storage_offset"])
def as_strided_scatter(
    self: Any, src: Any, size: list[int], stride: list[int], storage_offset: Any = None
) -> Any:  # fmt: skip
    if math.prod(size) == 0:
        return self
    place = _strided_places(size, stride, storage_offset).reshape(-1)
    flat = self.reshape(-1).at[place].set(
        cast_like(src, self).reshape(-1), mode=IN_BOUNDS, wrap_negative_indices=False
    )  # fmt: skip
    return flat.reshape(self.shape)
