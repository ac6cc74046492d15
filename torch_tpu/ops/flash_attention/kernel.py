"""Attention without a matrix of scores, by JAX's splash attention kernels (``jax.experimental.pallas.ops.tpu``).

What is added to them: any length (padded to the tile, what is padded hidden by segment ids), a batch, a scale, float32
at float32's precision, and a mask for each sequence, in which a query may see nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from torch_tpu.ops.flash_attention.sizes import Tiles, padded


def _mask(length: int, keys: int, is_causal: bool, window: int | None) -> Callable[[int, int], Any]:
    """What is seen, for lengths that are padded."""
    if window is not None:
        return lambda long, wide: masks.LocalMask((long, wide), (window - 1, 0 if is_causal else window - 1), 0)
    kind = masks.CausalMask if is_causal else masks.FullMask
    return lambda long, wide: kind((long, wide))


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
        mask = _mask(query.shape[2], key.shape[2], is_causal, window)
        return _attention(query, key, value, mask, tiles, scale, soft_cap, False, interpret)

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
    query: Any, key: Any, value: Any, mask: Any = None, *, tiles: Tiles, is_causal: bool, scale: Any,
    interpret: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """(the same, the log of each query's sum of exponentials: float32 (batch, heads, length)); no derivative.

    Args:
      mask: bool, (batch or 1, heads or 1, length, keys): which keys a query sees. One that sees none gives 0 and -inf.
    """
    with jax.enable_x64(False):
        seen = _seen(mask, query, key, is_causal)
        out, (logsumexp,) = _attention(query, key, value, seen.mask, tiles, scale, None, True, interpret)
        if seen.any is None:
            return out, logsumexp
        return jnp.where(seen.any, out, 0), jnp.where(seen.any[..., 0], logsumexp, -jnp.inf)


def gradients(
    grad: Any, query: Any, key: Any, value: Any, mask: Any = None, *, tiles: Tiles, is_causal: bool, scale: Any
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Of query, key and value, as ``with_logsumexp`` has them. The forward pass runs again."""
    with jax.enable_x64(False):
        seen = _seen(mask, query, key, is_causal)

        def run(query: Any, key: Any, value: Any) -> Any:
            return _attention(query, key, value, seen.mask, tiles, scale, None, False, False)

        return jax.vjp(run, query, key, value)[1](grad if seen.any is None else jnp.where(seen.any, grad, 0))


class _Seen(NamedTuple):
    mask: Any
    any: Any  # bool (batch or 1, heads or 1, length, 1): whether a query sees a key; None where each does


def _seen(mask: Any, query: Any, key: Any, is_causal: bool) -> _Seen:
    """A mask with nothing hidden from a query that sees no key: what the kernel makes of it is finite, and not used."""
    length, keys = query.shape[2], key.shape[2]
    if mask is None:
        return _Seen(_mask(length, keys, is_causal, None), None)
    mask = jnp.broadcast_to(mask, (*mask.shape[:2], length, keys))
    if is_causal:
        mask = mask & jnp.tril(jnp.ones((length, keys), jnp.bool_))
    some = jnp.any(mask, axis=-1, keepdims=True)
    return _Seen(mask | ~some, some)


def _attention(
    query: Any, key: Any, value: Any, mask: Any, tiles: Tiles, scale: Any, soft_cap: float | None, with_sums: bool,
    interpret: bool,
) -> Any:  # fmt: skip
    """``mask``: an array (batch or 1, heads or 1, length, keys), or a function of the padded lengths."""
    length, keys = query.shape[2], key.shape[2]
    long, wide = padded(length, tiles.queries), padded(keys, tiles.keys)
    make = functools.partial(
        splash.make_splash_mha_single_device, block_sizes=_blocks(tiles), attn_logits_soft_cap=soft_cap,
        save_residuals=with_sums, interpret=interpret,
    )  # fmt: skip
    # The kernel does not scale. In query's own type a power of two loses nothing, others a rounding.
    query = (query.astype(jnp.float32) * jnp.asarray(scale, jnp.float32)).astype(query.dtype)
    heads, precise = query.shape[1], query.dtype == jnp.float32
    query, key, value = _longer(query, long), _longer(key, wide), _longer(value, wide)
    with jax.default_matmul_precision("highest") if precise else contextlib.nullcontext():
        if callable(mask):
            call = make(masks.MultiHeadMask([mask(long, wide)] * heads))
            out = jax.vmap(call, in_axes=(0, 0, 0, None))(query, key, value, _padding(length, long, keys, wide))
        else:
            mask = jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (0, wide - keys)))
            mask = jnp.pad(mask, ((0, 0), (0, 0), (0, long - length), (0, 0)), constant_values=True)
            out = _for_each_mask(make, mask, query, key, value)
    return jax.tree.map(lambda x: x[:, :, :length], out)


def _for_each_mask(make: Callable[[Any], Any], mask: Any, query: Any, key: Any, value: Any) -> Any:
    """One mask for all heads costs its own bytes once a head; one for each sequence a loop over these."""

    def of(mask: Any) -> Any:
        call = make(mask)
        # JAX 0.10 makes an array of this flag, and then asks whether it is true.
        for name in ("fwd_mask_info", "dq_mask_info", "dkv_mask_info"):
            setattr(call, name, getattr(call, name)._replace(is_dynamic_mask=None))
        return call

    if mask.shape[0] == 1:
        return jax.vmap(of(mask[0]))(query, key, value)
    return jax.lax.map(lambda each: of(each[0])(*each[1:]), (mask, query, key, value))


def _blocks(tiles: Tiles) -> Any:
    return splash.BlockSizes(
        block_q=tiles.queries, block_kv=tiles.keys, block_kv_compute=tiles.keys,
        block_q_dkv=tiles.queries, block_kv_dkv=tiles.keys, block_kv_dkv_compute=tiles.keys,
        block_q_dq=tiles.queries, block_kv_dq=tiles.keys,
    )  # fmt: skip


def _padding(length: int, long: int, keys: int, wide: int) -> Any:
    """Segment ids that hide padded keys; None where there are none."""
    if wide == keys:
        return None
    # Queries that are padding see padding, or there would be rows that see nothing.
    return splash.SegmentIds(
        (jnp.arange(long) >= length).astype(jnp.int32), (jnp.arange(wide) >= keys).astype(jnp.int32)
    )


def _longer(x: Any, length: int) -> Any:
    return jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, 0))) if length != x.shape[2] else x
