"""hash_tensor: the exclusive or of all elements as 64-bit words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.checks import require_elements
from torch_tpu.lowering.registry import register


def _bits_of_float32_as_float64(x: Any) -> Any:
    """The bits that the values have as float64: by integers, since a TPU has no float64 whose bits could be seen."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    sign, exponent, fraction = bits >> 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF
    # A subnormal becomes normal: its highest bit goes to where the hidden one is.
    shift = jnp.where(fraction == 0, 0, lax.clz(fraction) - 8)
    subnormal = (exponent == 0) & (fraction != 0)
    fraction = jnp.where(subnormal, (fraction << shift) & 0x7FFFFF, fraction)
    wide = jnp.where(
        subnormal, 897 - shift.astype(jnp.int32),
        jnp.where(exponent == 0xFF, 0x7FF, jnp.where(exponent == 0, 0, exponent.astype(jnp.int32) + 896)),
    )  # fmt: skip
    words = (sign.astype(jnp.uint64) << 63) | (wide.astype(jnp.uint64) << 52) | (fraction.astype(jnp.uint64) << 29)
    return jnp.where(jnp.isnan(x), words | (jnp.uint64(1) << 51), words)


def _words(x: Any) -> Any:
    if x.dtype == jnp.float64:
        return lax.bitcast_convert_type(x, jnp.uint64)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _bits_of_float32_as_float64(x.astype(jnp.float32))
    return (
        x.astype(jnp.int64).astype(jnp.uint64) if jnp.issubdtype(x.dtype, jnp.signedinteger) else x.astype(jnp.uint64)
    )


@register("aten::hash_tensor")
def hash_tensor(self: Any, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> Any:
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    if self.ndim == 0:
        return _words(self)
    dims = tuple(d % self.ndim for d in dim) or tuple(range(self.ndim))
    for d in dims:
        require_elements(self, d, "hash_tensor")
    made = lax.reduce(_words(self), jnp.uint64(0), lax.bitwise_xor, dims)
    return jnp.expand_dims(made, sorted(dims)) if keepdim else made
