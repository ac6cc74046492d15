"""Scaled dot product attention: one program forward, one backward.

``eager/sdpa.py`` decides when it is used.

What the fused operator does: q, k, v of 3 or 4 dimensions, a bool or additive mask that broadcasts, top-left
causal masking, fewer heads in k and v (grouped queries), dropout. Scores and softmax are float32 for half types.
A row with nothing to attend to gives 0 and no gradient, as on CPU. On a TPU, long sequences without a mask take a flash
kernel (``torch_tpu/ops/flash_attention``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.matmul import accumulator, contract
from torch_tpu.lowering.registry import register
from torch_tpu.ops import flash_attention


class _Problem(NamedTuple):
    """Operands as (batch, kv heads, queries a kv head, length, size); mask likewise, with ones where it broadcasts."""

    query: Any
    key: Any  # (batch, kv heads, length, size)
    value: Any
    bias: Any
    scale: Any
    is_causal: bool


def _problem(query: Any, key: Any, value: Any, bias: Any, is_causal: bool, scale: Any) -> _Problem:
    if not jnp.issubdtype(query.dtype, jnp.floating):
        raise NotImplementedError(f"scaled_dot_product_attention: dtype {query.dtype}; supported: floating types")
    if query.ndim == 3:
        query, key, value = query[None], key[None], value[None]
    batch, heads, length, size = query.shape
    kv_heads = key.shape[1]
    if heads % max(kv_heads, 1):
        raise NotImplementedError(
            f"scaled_dot_product_attention: {heads} query heads and {kv_heads} key heads; supported: a multiple"
        )
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        grouped = (kv_heads, heads // max(kv_heads, 1)) if bias.shape[1] != 1 else (1, 1)
        bias = bias.reshape(bias.shape[0], *grouped, *bias.shape[2:])
    if scale is None:
        scale = 1 / math.sqrt(size) if size else 1.0
    query = query.reshape(batch, kv_heads, heads // max(kv_heads, 1), length, size)
    return _Problem(query, key, value, bias, jnp.asarray(scale, accumulator(query.dtype)), is_causal)


def _scores(p: _Problem, bias: Any) -> Any:
    """(batch, kv heads, queries a kv head, query length, key length), masked, in the accumulator's type."""
    scores = contract(p.query, p.key, (4,), (3,), (0, 1), (0, 1)) * p.scale
    if bias is not None and bias.dtype == jnp.bool_:
        # Added to also where it hides, as in PyTorch: what is NaN stays NaN.
        scores = jnp.where(bias, scores, scores - jnp.inf)
    elif bias is not None:
        scores = scores + bias.astype(scores.dtype)
    if p.is_causal:
        scores = jnp.where(_causal(scores.shape[3:]), scores, -jnp.inf)
    return scores


def _causal(shape: Sequence[int]) -> Any:
    row, column = (lax.broadcasted_iota(jnp.int32, tuple(shape), d) for d in (0, 1))
    return column <= row


def _sees_any(p: _Problem) -> Any:
    """Whether a query has any key to attend to (..., query length, 1); None where each has."""
    if p.key.shape[2] == 0:
        return jnp.zeros((1,) * 5, jnp.bool_)
    if p.bias is None:
        return None  # a causal mask hides no query's first key
    seen = p.bias if p.bias.dtype == jnp.bool_ else p.bias != -jnp.inf
    if p.is_causal:
        seen = seen & _causal((p.query.shape[3], p.key.shape[2]))
    return jnp.any(seen, axis=-1, keepdims=True)


def _opened(bias: Any, sees_any: Any) -> Any:
    """The mask with nothing hidden from a query that sees no key: its softmax is finite, and does not count."""
    if bias is None or sees_any is None:
        return bias
    return bias | ~sees_any if bias.dtype == jnp.bool_ else jnp.where(sees_any, bias, 0)


def _softmax_pieces(scores: Any) -> tuple[Any, Any, Any]:
    """exp(scores - peak), its sum over keys, and the peak; a row of -inf has exponentials of 0 and peak 0."""
    peak = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf)
    peak = jnp.where(peak == -jnp.inf, 0.0, peak)
    exponentials = jnp.exp(scores - peak)
    return exponentials, jnp.sum(exponentials, axis=-1, keepdims=True), peak


def _seed(key: Any) -> tuple[Any, Any]:
    """Two int64 from which forward and backward make the same dropout mask."""
    words = jax.random.bits(key, (2, 2), jnp.uint32).astype(jnp.int64)
    return words[0, 0] | (words[0, 1] << 32), words[1, 0]


def _kept(seed: Any, shape: Sequence[int], dropout_p: Any) -> Any:
    words = jnp.stack([seed, seed >> 32]).astype(jnp.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    return jax.random.uniform(key, tuple(shape), jnp.float32) >= jnp.asarray(dropout_p, jnp.float32)


def _drop(x: Any, kept: Any, dropout_p: Any) -> Any:
    return x if kept is None else jnp.where(kept, x / (1 - jnp.asarray(dropout_p, x.dtype)), 0)


def _no_dropout(dropout_p: Any) -> bool:
    return isinstance(dropout_p, (int, float)) and dropout_p == 0


@register("aten::_scaled_dot_product_fused_attention_overrideable", rng=True, precision=True)
def fused_attention(
    query: Any,
    key_: Any,
    value: Any,
    attn_bias: Any = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: Any = None,
    key: Any = None,
) -> Any:
    """Attention, its log-sum-exp (float32), and the seed of the dropout mask; ``key`` is the PRNG key.

    The nine results of the schema: those that only other backends use are None, the two lengths Python ints.
    """
    # Softmax in just this form, its peak used nowhere else, is what XLA:TPU computes in two passes over the scores and
    # not three: it makes them anew for the peak. So rows that see nothing are known from the mask, not from the peak.
    if flash_attention.pays(query, key_, value, attn_bias, dropout_p):
        out, logsumexp = flash_attention.forward(query, key_, value, is_causal, scale)
        nothing = jnp.zeros((), jnp.int64)
        return out, logsumexp, None, None, query.shape[-2], key_.shape[-2], nothing, nothing, None
    p = _problem(query, key_, value, attn_bias, is_causal, scale)
    sees_any = _sees_any(p)
    scores = _scores(p, _opened(p.bias, sees_any))
    peak = (
        jnp.max(scores, axis=-1, keepdims=True)
        if scores.shape[-1]
        else jnp.zeros((*scores.shape[:-1], 1), scores.dtype)
    )
    exponentials = jnp.exp(scores - peak)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    weights = exponentials / total
    seed = offset = jnp.zeros((), jnp.int64)
    if not _no_dropout(dropout_p):
        seed, offset = _seed(key)
        weights = _drop(weights, _kept(seed, scores.shape, dropout_p), dropout_p)
    out = contract(weights.astype(value.dtype), p.value, (4,), (2,), (0, 1), (0, 1)).astype(value.dtype)
    logsumexp = (peak + jnp.log(total)).astype(jnp.float32)
    if sees_any is not None:
        out, logsumexp = jnp.where(sees_any, out, 0), jnp.where(sees_any, logsumexp, -jnp.inf)
    batch, heads = (query.shape[0], query.shape[1]) if query.ndim == 4 else (1, query.shape[0])
    return (
        out.reshape(*query.shape[:-1], value.shape[-1]), logsumexp.reshape(batch, heads, query.shape[-2]),
        None, None, query.shape[-2], key_.shape[-2], seed, offset, None,
    )  # fmt: skip


def _bias_gradient(grad: Any, bias: Any) -> Any:
    """``grad`` (five dimensions) summed to the shape of ``bias`` as the user gave it (at most four)."""
    batch, kv_heads, group, length, keys = grad.shape
    grad = grad.reshape(batch, kv_heads * group, length, keys)
    shape = (1,) * (4 - bias.ndim) + tuple(bias.shape)
    axes = tuple(d for d in range(4) if shape[d] == 1 and grad.shape[d] != 1)
    return jnp.sum(grad, axis=axes, keepdims=True).reshape(bias.shape).astype(bias.dtype)


# Without dropout no mask is made: the schema of the backward has no default that would say so.
@register(
    "aten::_scaled_dot_product_fused_attention_overrideable_backward", precision=True, specialize={"dropout_p": (0,)}
)
def fused_attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    grad_input_mask: Sequence[bool],
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: Any,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    scale: Any = None,
) -> Any:
    if flash_attention.pays(query, key, value, attn_bias, dropout_p):
        return *flash_attention.backward(grad_out, query, key, value, is_causal, scale), None
    p = _problem(query, key, value, attn_bias, is_causal, scale)
    scores = _scores(p, p.bias)
    if scores.dtype == jnp.float64:  # the saved log-sum-exp is float32
        weights, total, _ = _softmax_pieces(scores)
        weights = jnp.where(total == 0, 0, weights / total)
    else:
        lse = logsumexp.reshape(*scores.shape[:-1], 1)
        weights = jnp.exp(scores - jnp.where(lse == -jnp.inf, 0, lse))
    kept = None if _no_dropout(dropout_p) else _kept(philox_seed, scores.shape, dropout_p)
    dtype, wide = query.dtype, scores.dtype
    grad, result = (x.reshape(*p.query.shape[:-1], value.shape[-1]) for x in (grad_out, out))
    grad_query = grad_key = grad_value = grad_bias = None
    if grad_input_mask[2]:
        dropped = _drop(weights, kept, dropout_p).astype(dtype)
        grad_value = contract(dropped, grad, (2, 3), (2, 3), (0, 1), (0, 1)).reshape(value.shape).astype(dtype)
    if grad_input_mask[0] or grad_input_mask[1] or grad_input_mask[3]:
        along = jnp.sum(grad.astype(wide) * result.astype(wide), axis=-1, keepdims=True)
        grad_weights = _drop(contract(grad, p.value, (4,), (3,), (0, 1), (0, 1)), kept, dropout_p)
        grad_scores = weights * (grad_weights - along)
        if grad_input_mask[3] and attn_bias is not None and attn_bias.dtype != jnp.bool_:
            grad_bias = _bias_gradient(grad_scores, attn_bias)
        grad_scores = grad_scores.astype(dtype)
        if grad_input_mask[0]:
            grad_query = contract(grad_scores, p.key, (4,), (2,), (0, 1), (0, 1)) * p.scale
            grad_query = grad_query.reshape(query.shape).astype(dtype)
        if grad_input_mask[1]:
            grad_key = contract(grad_scores, p.query, (2, 3), (2, 3), (0, 1), (0, 1)) * p.scale
            grad_key = grad_key.reshape(key.shape).astype(dtype)
    return grad_query, grad_key, grad_value, grad_bias
