"""Fast Fourier transforms over any number of dimensions.

One dimension after the other (XLA's transform takes at most three, and only the last ones). The normalization is
ATen's: 0 none, 1 by the square root of the number of elements, 2 by that number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.registry import register

_NONE, _BY_ROOT, _BY_N = 0, 1, 2


def _along(x: Any, kind: lax.FftType, length: int, dim: int) -> Any:
    x = lax.fft(jnp.moveaxis(x, dim, -1), kind, (length,))
    return jnp.moveaxis(x, -1, dim)


def _normalize(x: Any, count: int, normalization: int) -> Any:
    if normalization == _NONE or x.size == 0:
        return x
    return x * (1 / (count if normalization == _BY_N else math.sqrt(count)))


def _complex(x: Any) -> Any:
    return x if jnp.issubdtype(x.dtype, jnp.complexfloating) else lax.complex(x, jnp.zeros_like(x))


def _c2c(x: Any, dims: Sequence[int], kind: lax.FftType) -> Any:
    for d in dims:
        if x.size:
            x = _along(x, kind, x.shape[d], d)
    return x


@register("aten::_fft_c2c")
def fft_c2c(self: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    dims = [d % self.ndim for d in dim]
    y = _c2c(self, dims, lax.FftType.FFT if forward else lax.FftType.IFFT)
    count = math.prod(self.shape[d] for d in dims)
    # XLA's inverse is divided by the number of elements.
    return _normalize(y if forward else y * count, count, normalization)


@register("aten::_fft_r2c")
def fft_r2c(self: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    dims = [d % self.ndim for d in dim]
    count = math.prod(self.shape[d] for d in dims)
    if not onesided:
        return _normalize(_c2c(_complex(self), dims, lax.FftType.FFT), count, normalization)
    last, n = dims[-1], self.shape[dims[-1]]
    if self.size == 0:
        shape = [*self.shape]
        shape[last] = n // 2 + 1
        return _complex(jnp.zeros(shape, self.dtype))
    y = _c2c(_along(self, lax.FftType.RFFT, n, last), dims[:-1], lax.FftType.FFT)
    return _normalize(y, count, normalization)


@register("aten::_fft_c2r")
def fft_c2r(self: Any, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    dims = [d % self.ndim for d in dim]
    last = dims[-1]
    shape = [*self.shape]
    shape[last] = last_dim_size
    if math.prod(shape) == 0:
        return jnp.zeros(shape, jnp.finfo(self.dtype).dtype)
    count = math.prod(shape[d] for d in dims)
    y = _c2c(self, dims[:-1], lax.FftType.IFFT)
    needed = last_dim_size // 2 + 1
    y = lax.slice_in_dim(y, 0, min(needed, y.shape[last]), axis=last)
    if y.shape[last] < needed:
        padding = [(0, 0, 0)] * y.ndim
        padding[last] = (0, needed - y.shape[last], 0)
        y = lax.pad(y, jnp.zeros((), y.dtype), padding)
    y = _along(y, lax.FftType.IRFFT, last_dim_size, last)
    return _normalize(y * count, count, normalization)
