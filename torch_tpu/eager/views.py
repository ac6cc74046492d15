"""Strided views of a buffer's array, read and written with slices, reshapes, transposes and broadcasts.

A view is solved by the mixed-radix digits of its strides. The array is reshaped so that each stride of the view is
the weight of one dimension (a *digit*); the view is then a slice in each digit, and what is left is a transpose.
Where the strides of the array's own shape fit between them they become digits too, so that a slice of a
two-dimensional array stays one and needs no relayout on a TPU.

The starts of the slices are operands, but for front parts at offset zero, so views that differ in their offset share a
program. Views whose strides do not divide one another (a diagonal) are read by splitting from the offset on;
overlapping ones (sliding windows) by gather, as are writes to both.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_tpu.lowering.dtypes import to_jax
from torch_tpu.runtime import buffers
from torch_tpu.runtime.buffers import Layout, canonical_strides, span


@dataclasses.dataclass(frozen=True)
class Digit:
    radix: int
    extent: int
    moving: bool  # the start is an operand


@dataclasses.dataclass(frozen=True)
class View:
    """How a view lies in its buffer's array. ``key`` says everything a program needs; ``starts`` are operands."""

    key: tuple[Any, ...]
    size: tuple[int, ...]
    base_shape: tuple[int, ...]
    base_dtype: np.dtype
    dtype: np.dtype
    kind: str  # identity | digits | nested | gather | empty
    digits: tuple[Digit, ...] = ()
    order: tuple[int, ...] = ()  # the view's dimensions that advance, outermost stride first
    strides: tuple[int, ...] = ()
    padded: int = 0  # flat elements the digits cover
    starts: tuple[int, ...] = ()
    whole: bool = False  # every element of the array is an element of the view, once

    @property
    def nbytes(self) -> int:
        return math.prod(self.size) * self.dtype.itemsize

    def read(self, array: Any, starts: Any) -> Any:
        """The view's elements as an array of its logical shape. ``starts``: an operand, or None for the view's own."""
        starts = self._own_starts() if starts is None else starts
        if self.kind == "identity":
            return array
        if self.kind == "empty":
            return jnp.zeros(self.size, self.dtype)
        if self.kind == "digits":
            return self._spread(_slice(self._open(array), self.digits, starts))
        flat = _bitcast(jnp.ravel(array), self.dtype)
        if self.kind == "nested":
            return self._spread(self._split(flat, starts))
        return jnp.take(flat, self._index(starts), mode="clip")

    def write(self, array: Any, value: Any, starts: Any) -> Any:
        """The array with the view's elements replaced by ``value`` (of the view's logical shape)."""
        starts = self._own_starts() if starts is None else starts
        if self.kind == "identity":
            return value
        if self.kind == "empty":
            return array
        if self.kind != "digits":
            flat = _bitcast(jnp.ravel(array), self.dtype)
            return self._close(flat.at[self._index(starts)].set(value))
        value = jnp.transpose(value, (*self.order, *(i for i in range(len(self.size)) if i not in self.order)))
        value = value[tuple(slice(None) if i < len(self.order) else 0 for i in range(value.ndim))]
        value = value.reshape(tuple(d.extent for d in self.digits))
        if self.whole:
            return self._close(value)
        return self._close(_update(self._open(array), value, self.digits, starts))

    def _own_starts(self) -> np.ndarray:
        return np.asarray(self.starts, _start_type(math.prod(self.base_shape)))

    def _open(self, array: Any) -> Any:
        """The array in the shape of the digits."""
        shape = tuple(d.radix for d in self.digits)
        if self.dtype == self.base_dtype and array.shape == shape:
            return array
        flat = _bitcast(jnp.ravel(array), self.dtype)
        return _resized(flat, self.padded).reshape(shape)

    def _close(self, array: Any) -> Any:
        flat = _bitcast(jnp.ravel(array), self.base_dtype)
        return _resized(flat, math.prod(self.base_shape)).reshape(self.base_shape)

    def _spread(self, value: Any) -> Any:
        """From the advancing dimensions, outermost stride first, to the view's own: transpose and broadcast."""
        value = value.reshape(tuple(self.size[i] for i in self.order))
        inverse = sorted(range(len(self.order)), key=lambda k: self.order[k])
        value = jnp.transpose(value, inverse)
        kept = sorted(self.order)
        value = value.reshape(tuple(self.size[i] if i in kept else 1 for i in range(len(self.size))))
        return jnp.broadcast_to(value, self.size)

    def _split(self, flat: Any, starts: Any) -> Any:
        offset = starts[0]
        length = 1 + sum((self.size[i] - 1) * self.strides[i] for i in self.order)
        value = lax.dynamic_slice(flat, (offset,), (length,))
        for i in self.order:
            n, s = self.size[i], self.strides[i]
            shape = value.shape[:-1]
            value = _resized(value, n * s).reshape(*shape, n, s)
        return value[..., 0]

    def _index(self, starts: Any) -> Any:
        index = jnp.asarray(starts[0])
        for i, (n, s) in enumerate(zip(self.size, self.strides, strict=True)):
            steps = lax.broadcasted_iota(index.dtype, self.size, i) if n else jnp.zeros(self.size, index.dtype)
            index = index + steps * s
        return index


_Common = tuple[tuple[int, ...], tuple[int, ...], np.dtype, np.dtype]  # size, base_shape, base_dtype, dtype


def solve(layout: Layout, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: np.dtype) -> View:
    """How the view (sizes, strides and offset in elements of ``dtype``) lies in an array of ``layout``.

    Raises:
      RuntimeError: it reaches outside the storage.
    """
    common: _Common = (size, layout.shape, layout.dtype, dtype)
    numel = layout.nbytes // dtype.itemsize
    if 0 in size:
        return View(("empty", size, str(dtype)), *common, "empty", whole=layout.numel == 0)
    reach = offset + span(size, stride)
    if reach > numel:
        raise RuntimeError(
            f"a view of sizes {list(size)}, strides {list(stride)} and offset {offset} needs {reach} elements of "
            f"{dtype}; its storage on tpu has {numel}"
        )
    plain = _is_contiguous(size, stride)
    if plain and offset == 0 and dtype == layout.dtype and size == layout.shape:
        return View(("all",), *common, "identity", whole=True)
    order = tuple(sorted((i for i, n in enumerate(size) if n > 1 and stride[i] > 0), key=lambda i: -stride[i]))
    optional = canonical_strides(layout.shape) if dtype == layout.dtype else ()
    for extra in (optional, ()):
        digits = _digits(size, stride, offset, numel, order, extra)
        if digits is not None:
            return _digit_view(common, digits, order, stride, offset, numel)
    wide = "int64" if numel > 2**31 - 1 else "int32"
    nested = all(
        stride[outer] >= 1 + sum((size[i] - 1) * stride[i] for i in order[k + 1 :])
        for k, outer in enumerate(order)
    )  # fmt: skip
    kind = "nested" if nested else "gather"
    key = (kind, size, stride, str(dtype), wide)
    return View(key, *common, kind, order=order, strides=stride, starts=(offset,))


def _digits(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    numel: int,
    order: tuple[int, ...],
    optional: tuple[int, ...],
) -> list[tuple[int, int, int]] | None:
    """[(radix, extent, start)] outermost first, or None where the strides do not nest as digits."""  # fmt: skip
    extent_of = {stride[i]: size[i] for i in order}
    if len(extent_of) != len(order):
        return None  # two dimensions advance by the same stride: they overlap
    weights = sorted({*extent_of, *(w for w in optional if w > 0), 1}, reverse=True)
    kept: list[int] = []
    for w in weights:
        if w in extent_of or w == 1:
            kept.append(w)
            continue
        # An optional weight helps only if the view's next dimension below does not cross it.
        below = next((s for s in sorted(extent_of, reverse=True) if s < w), None)
        reach = 1 if below is None else (offset % w) // below + extent_of[below]
        if numel % w == 0 and (below is None or (w % below == 0 and reach * below <= w)):
            kept.append(w)
    out: list[tuple[int, int, int]] = []
    above = -(-numel // kept[0]) * kept[0]
    for w in kept:
        if above % w:
            return None
        radix, extent, start = above // w, extent_of.get(w, 1), (offset // w) % (above // w)
        if start + extent > radix:
            return None
        out.append((radix, extent, start))
        above = w
    return out


def _digit_view(
    common: _Common, found: list[tuple[int, int, int]], order: tuple[int, ...], stride: tuple[int, ...],
    offset: int, numel: int,
) -> View:  # fmt: skip
    moving = offset != 0
    # One element of many may be any of them (``timesteps[0]`` and ``timesteps[1]`` share a program); a front part that
    # is read at offset zero most often is read there again.
    digits = tuple(Digit(r, e, (moving or e == 1) and e < r) for r, e, _ in found)
    starts = tuple(s for d, (_, _, s) in zip(digits, found, strict=True) if d.moving)
    padded = math.prod(d.radix for d in digits)
    size, shape, base, dtype = common
    whole = padded == numel and all(d.extent == d.radix for d in digits) and numel * dtype.itemsize == (
        math.prod(shape) * base.itemsize
    )  # fmt: skip
    key = ("digits", size, tuple((d.radix, d.extent, d.moving) for d in digits), order, str(dtype))
    return View(
        key, *common, "digits", digits=digits, order=order, strides=stride, padded=padded, starts=starts, whole=whole
    )


def _is_contiguous(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(size, stride, canonical_strides(size), strict=True))


def _slice(array: Any, digits: tuple[Digit, ...], starts: Any) -> Any:
    if not any(d.moving for d in digits):
        return lax.slice(array, [0] * array.ndim, [d.extent for d in digits])
    return lax.dynamic_slice(array, _all_starts(digits, starts), [d.extent for d in digits])


def _update(array: Any, value: Any, digits: tuple[Digit, ...], starts: Any) -> Any:
    zero = [np.int32(0)] * array.ndim
    where = _all_starts(digits, starts) if any(d.moving for d in digits) else zero
    return lax.dynamic_update_slice(array, value, where)


def _all_starts(digits: tuple[Digit, ...], starts: Any) -> list[Any]:
    out, at = [], 0
    for d in digits:
        out.append(starts[at] if d.moving else jnp.zeros((), starts.dtype))
        at += d.moving
    return out


def _resized(flat: Any, n: int) -> Any:
    """The last dimension cut or zero-padded to ``n`` elements."""
    have = flat.shape[-1]
    if have == n:
        return flat
    if have > n:
        return flat[..., :n]
    return jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, n - have)])


def _bitcast(flat: Any, dtype: np.dtype) -> Any:
    """The bytes of a one-dimensional array as elements of another dtype; a rest that fills no element is lost."""
    source = np.dtype(flat.dtype)
    if source == dtype:
        return flat
    if source == np.bool_:
        return _bitcast(flat.astype(np.uint8), dtype)
    if dtype == np.bool_:
        return _bitcast(flat, np.dtype(np.uint8)) != 0
    if source.kind == "c":
        part = np.dtype(np.float32 if source.itemsize == 8 else np.float64)
        return _bitcast(jnp.stack([lax.real(flat), lax.imag(flat)], -1).reshape(-1).astype(part), dtype)
    if dtype.kind == "c":
        part = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
        pairs = _bitcast(flat, part)
        pairs = pairs[: pairs.shape[0] // 2 * 2].reshape(-1, 2)
        return lax.complex(pairs[:, 0], pairs[:, 1])
    if source.itemsize < dtype.itemsize:
        k = dtype.itemsize // source.itemsize
        flat = flat[: flat.shape[0] // k * k].reshape(-1, k)
    return lax.bitcast_convert_type(flat, dtype).reshape(-1)


def arrangement(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(shape of the array behind a fresh tensor, the permutation from logical to it), or None if not dense.

    The array of a dense permuted tensor is laid out in stride order, so that flattened it is the storage.
    """
    identity = tuple(range(len(size)))
    if 0 in size or _is_contiguous(size, stride):
        return size, identity
    order = tuple(sorted(identity, key=lambda i: (-stride[i], i)))
    permuted = tuple(size[i] for i in order)
    if not _is_contiguous(permuted, tuple(stride[i] for i in order)):
        # Dimensions of size one may carry any stride: put them last and look again.
        order = (*(i for i in order if size[i] > 1), *(i for i in order if size[i] == 1))
        permuted = tuple(size[i] for i in order)
        if not _is_contiguous(permuted, tuple(stride[i] for i in order)):
            return None
    return permuted, order


def layout_of(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: int) -> Layout:
    """The layout of the buffer behind a new tensor of these sizes and strides."""
    arranged = arrangement(size, stride)
    return buffers.layout(arranged[0] if arranged is not None else (span(size, stride),), to_jax(dtype), device)


def lay_out(value: Any, size: tuple[int, ...], stride: tuple[int, ...], layout: Layout) -> Any:
    """The array behind a new tensor (see ``layout_of``), from the tensor's values."""
    arranged = arrangement(size, stride)
    if arranged is None:
        return solve(layout, size, stride, 0, layout.dtype).write(jnp.zeros(layout.shape, layout.dtype), value, None)
    return value if arranged[1] == tuple(range(value.ndim)) else jnp.transpose(value, arranged[1])


def starts_operand(starts: tuple[int, ...], layout: Layout) -> np.ndarray:
    return np.asarray(starts, _start_type(layout.numel))


def _start_type(numel: int) -> type[np.integer[Any]]:
    return np.int64 if numel > 2**31 - 1 else np.int32
