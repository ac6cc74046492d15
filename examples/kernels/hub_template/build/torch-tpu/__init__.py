"""RMS normalization for TPUs: the operator ``rms_norm_tpu::rms_norm``, and a layer for ``kernelize``."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from torch_tpu._internal.pallas import jax_op

_BLOCK = 64


def _kernel(x_ref, weight_ref, out_ref, *, eps):
    x = x_ref[...].astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    out_ref[...] = (x * scale * weight_ref[...].astype(jnp.float32)).astype(out_ref.dtype)


@jax_op("rms_norm_tpu::rms_norm")
def rms_norm(x: jax.Array, weight: jax.Array, eps: float = 1e-6) -> jax.Array:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""
    rows = x.reshape(-1, x.shape[-1])
    n, features = rows.shape
    if n == 0:
        return x
    block = min(_BLOCK, pl.cdiv(n, 8) * 8)
    padded = jnp.pad(rows, ((0, pl.cdiv(n, block) * block - n), (0, 0)))
    out = pl.pallas_call(
        functools.partial(_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(padded.shape, x.dtype),
        grid=(padded.shape[0] // block,),
        in_specs=[pl.BlockSpec((block, features), lambda i: (i, 0)), pl.BlockSpec((1, features), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((block, features), lambda i: (i, 0)),
        name="rms_norm",
    )(padded, weight[None])
    return out[:n].reshape(x.shape)


from . import layers  # noqa: E402  it uses the operator

__all__ = ["layers", "rms_norm"]
