"""Attention without a matrix of scores, by JAX's splash attention kernels (``jax.experimental.pallas.ops.tpu``).

What is added to them: any length (padded to the tile, what is padded hidden by segment ids), a batch, a scale, and
float32 at float32's precision.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from torch_tpu.ops.flash_attention.sizes import Tiles, padded


def _mask(length: int, keys: int, is_causal: bool, window: int | None) -> Any:
    if window is not None:
        return masks.LocalMask((length, keys), (window - 1, 0 if is_causal else window - 1), 0)
    return masks.CausalMask((length, keys)) if is_causal else masks.FullMask((length, keys))


def flash_attention(
    query: Any, key: Any, value: Any, *, tiles: Tiles, is_causal: bool = False, scale: Any = 1.0,
    window: int | None = None, soft_cap: float | None = None, interpret: bool = False,
) -> Any:  # fmt: skip
    """softmax(scale * query @ key.T, masked) @ value, differentiable.

    Args:
      query: (batch, heads, length, size) bfloat16 or float32.
      key, value: (batch, kv heads, keys, size); heads is a multiple of kv heads.
      is_causal: query i sees keys 0..i.
      window: query i sees keys i-window+1 .. i+window-1 (with ``is_causal`` .. i).
      soft_cap: scores become soft_cap * tanh(scores / soft_cap).

    Returns:
      (batch, heads, length, size) of query's type. With a window, each query has to see a key.
    """

    def run(query: Any, key: Any, value: Any) -> Any:
        return _attention(query, key, value, tiles, is_causal, scale, window, soft_cap, False, interpret)

    # Derivatives are traced when they are asked for, which is outside of JAX's 32-bit mode.
    @jax.custom_vjp
    def in_32_bits(query: Any, key: Any, value: Any) -> Any:
        with jax.enable_x64(False):
            return run(query, key, value)

    def forward(query: Any, key: Any, value: Any) -> Any:
        with jax.enable_x64(False):
            return jax.vjp(run, query, key, value)

    def backward(pull: Any, grad: Any) -> Any:
        with jax.enable_x64(False):
            return pull(grad)

    in_32_bits.defvjp(forward, backward)
    return in_32_bits(query, key, value)


def with_logsumexp(
    query: Any, key: Any, value: Any, *, tiles: Tiles, is_causal: bool, scale: Any, interpret: bool = False
) -> tuple[Any, Any]:  # fmt: skip
    """(the same, the log of each query's sum of exponentials: float32 (batch, heads, length)); no derivative."""
    with jax.enable_x64(False):
        out, (logsumexp,) = _attention(query, key, value, tiles, is_causal, scale, None, None, True, interpret)
    return out, logsumexp


def _attention(
    query: Any, key: Any, value: Any, tiles: Tiles, is_causal: bool, scale: Any, window: int | None,
    soft_cap: float | None, with_sums: bool, interpret: bool,
) -> Any:  # fmt: skip
    length, keys = query.shape[2], key.shape[2]
    block = splash.BlockSizes(
        block_q=tiles.queries, block_kv=tiles.keys, block_kv_compute=tiles.keys,
        block_q_dkv=tiles.queries, block_kv_dkv=tiles.keys, block_kv_dkv_compute=tiles.keys,
        block_q_dq=tiles.queries, block_kv_dq=tiles.keys,
    )  # fmt: skip
    long, wide = padded(length, tiles.queries), padded(keys, tiles.keys)
    mask = masks.MultiHeadMask([_mask(long, wide, is_causal, window)] * query.shape[1])
    call = splash.make_splash_mha_single_device(
        mask, block_sizes=block, attn_logits_soft_cap=soft_cap, save_residuals=with_sums, interpret=interpret
    )
    # The kernel does not scale. In query's own type a power of two loses nothing, others a rounding.
    query = (query.astype(jnp.float32) * jnp.asarray(scale, jnp.float32)).astype(query.dtype)
    query, key, value = _longer(query, long), _longer(key, wide), _longer(value, wide)
    segments = None
    if wide != keys:  # queries that are padding see padding, or there would be rows that see nothing
        segments = splash.SegmentIds(
            (jnp.arange(long) >= length).astype(jnp.int32), (jnp.arange(wide) >= keys).astype(jnp.int32)
        )
    precise = query.dtype == jnp.float32
    with jax.default_matmul_precision("highest") if precise else contextlib.nullcontext():
        out = jax.vmap(call, in_axes=(0, 0, 0, None))(query, key, value, segments)
    return jax.tree.map(lambda x: x[:, :, :length], out)


def _longer(x: Any, length: int) -> Any:
    return jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, 0))) if length != x.shape[2] else x
