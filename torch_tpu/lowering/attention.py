"""Scaled dot product attention: one program forward, one backward.

``eager/sdpa.py`` decides when it is used.

What the fused operator does: q, k, v of 3 or 4 dimensions, a bool or additive mask that broadcasts, top-left
causal masking, fewer heads in k and v (grouped queries), dropout. Scores and softmax are float32 for half types.
A row with nothing to attend to gives 0 and no gradient, as on CPU. On a TPU, long sequences without a mask that is
added take a flash kernel (``torch_tpu/ops/flash_attention``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    first: Any = 0  # the place of the first query among all


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
        scores = jnp.where(_causal(p), scores, -jnp.inf)
    return scores


def _causal(p: _Problem) -> Any:
    shape = (p.query.shape[3], p.key.shape[2])
    row, column = (lax.broadcasted_iota(jnp.int32, shape, d) for d in (0, 1))
    return column <= row + p.first


def _sees_any(p: _Problem) -> Any:
    """Whether a query has any key to attend to (..., query length, 1); None where each has."""
    if p.key.shape[2] == 0:
        return jnp.zeros((1,) * 5, jnp.bool_)
    if p.bias is None:
        return None  # a causal mask hides no query's first key
    seen = p.bias if p.bias.dtype == jnp.bool_ else p.bias != -jnp.inf
    if p.is_causal:
        seen = seen & _causal(p)
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
        out, logsumexp = flash_attention.forward(query, key_, value, attn_bias, is_causal, scale)
        nothing = jnp.zeros((), jnp.int64)
        return out, logsumexp, None, None, query.shape[-2], key_.shape[-2], nothing, nothing, None
    p = _problem(query, key_, value, attn_bias, is_causal, scale)
    seed = offset = jnp.zeros((), jnp.int64)
    if not _no_dropout(dropout_p):
        seed, offset = _seed(key)
        out, logsumexp = _attend(p, lambda weights: _drop(weights, _kept(seed, weights.shape, dropout_p), dropout_p))
    elif (block := _block(p)) is not None:
        out, logsumexp = _attend_in_blocks(p, block)
    else:
        out, logsumexp = _attend(p)
    batch, heads = (query.shape[0], query.shape[1]) if query.ndim == 4 else (1, query.shape[0])
    return (
        out.reshape(*query.shape[:-1], value.shape[-1]), logsumexp.reshape(batch, heads, query.shape[-2]),
        None, None, query.shape[-2], key_.shape[-2], seed, offset, None,
    )  # fmt: skip


def _attend(p: _Problem, drop: Callable[[Any], Any] = lambda weights: weights) -> tuple[Any, Any]:
    """The result and the log-sum-exp of every query, in five dimensions."""
    sees_any = _sees_any(p)
    scores = _scores(p, _opened(p.bias, sees_any))
    peak = (
        jnp.max(scores, axis=-1, keepdims=True)
        if scores.shape[-1]
        else jnp.zeros((*scores.shape[:-1], 1), scores.dtype)
    )
    exponentials = jnp.exp(scores - peak)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    weights = drop(exponentials / total)
    out = contract(weights.astype(p.value.dtype), p.value, (4,), (2,), (0, 1), (0, 1)).astype(p.value.dtype)
    logsumexp = (peak + jnp.log(total)).astype(jnp.float32)
    if sees_any is not None:
        out, logsumexp = jnp.where(sees_any, out, 0), jnp.where(sees_any, logsumexp, -jnp.inf)
    return out, logsumexp


# Long sequences: blocks of queries, one after the other -------------------------------------------------------------

MOST_SCORES = 2**29  # bytes; 512 MiB
BLOCK_SCORES = 2**27


def _block(p: _Problem) -> int | None:
    """How many queries are attended at a time, so that their scores fit the memory; None: all of them.

    In an exported program with symbolic sizes nobody knows how many scores there will be: it attends all at once.
    """
    length, keys = p.query.shape[3], p.key.shape[2]
    if not all(isinstance(n, int) for n in (*p.query.shape, keys)):
        return None
    row = math.prod(p.query.shape[:3]) * keys * jnp.dtype(accumulator(p.query.dtype)).itemsize
    if row * length <= MOST_SCORES:
        return None
    return max(8, BLOCK_SCORES // row)


def _split(x: Any, block: int) -> Any:
    """(..., length, n) as (blocks, ..., block, n); the last block is filled up with zeros."""
    count = -(-x.shape[3] // block)
    x = jnp.pad(x, [(0, count * block - x.shape[3] if d == 3 else 0) for d in range(x.ndim)])
    return jnp.moveaxis(x.reshape(*x.shape[:3], count, block, x.shape[4]), 3, 0)


def _joined(x: Any, length: int) -> Any:
    x = jnp.moveaxis(x, 0, 3)
    return x.reshape(*x.shape[:3], -1, x.shape[-1])[:, :, :, :length]


def _parts(p: _Problem, block: int) -> tuple[Any, Callable[[Any], _Problem]]:
    """What differs from block to block, and what makes the problem of a block of it."""
    varies = p.bias is not None and p.bias.shape[3] > 1
    query = _split(p.query, block)
    first = jnp.arange(query.shape[0], dtype=jnp.int32) * block

    def problem(part: Any) -> _Problem:
        query, bias, first = part
        return p._replace(query=query, bias=bias if varies else p.bias, first=first)

    return (query, _split(p.bias, block) if varies else None, first), problem


def _attend_in_blocks(p: _Problem, block: int) -> tuple[Any, Any]:
    parts, problem = _parts(p, block)
    out, logsumexp = lax.map(lambda part: _attend(problem(part)), parts)
    return _joined(out, p.query.shape[3]), _joined(logsumexp, p.query.shape[3])


class _Gradients(NamedTuple):
    """In five dimensions (keys and values in four), in the accumulator's type; ``scores`` of every score."""

    query: Any
    key: Any
    value: Any
    scores: Any


def _gradients(
    p: _Problem, grad: Any, result: Any, lse: Any, drop: Callable[[Any], Any], rows: Any = None
) -> _Gradients:
    """Gradients of the result's, ``lse`` (..., 1) the saved log-sum-exp; ``rows``: which queries there are."""
    scores = _scores(p, p.bias)
    if scores.dtype == jnp.float64:  # the saved log-sum-exp is float32
        weights, total, _ = _softmax_pieces(scores)
        weights = jnp.where(total == 0, 0, weights / total)
    else:
        weights = jnp.exp(scores - jnp.where(lse == -jnp.inf, 0, lse))
    if rows is not None:
        weights = jnp.where(rows, weights, 0)
    dtype, wide = p.query.dtype, scores.dtype
    value = contract(drop(weights).astype(dtype), grad, (2, 3), (2, 3), (0, 1), (0, 1))
    along = jnp.sum(grad.astype(wide) * result.astype(wide), axis=-1, keepdims=True)
    by_score = weights * (drop(contract(grad, p.value, (4,), (3,), (0, 1), (0, 1))) - along)
    narrow = by_score.astype(dtype)
    query = contract(narrow, p.key, (4,), (2,), (0, 1), (0, 1)) * p.scale
    key = contract(narrow, p.query, (2, 3), (2, 3), (0, 1), (0, 1)) * p.scale
    return _Gradients(query, key, value, by_score)


def _gradients_in_blocks(p: _Problem, grad: Any, result: Any, lse: Any, block: int) -> _Gradients:
    length = p.query.shape[3]
    parts, problem = _parts(p, block)

    def step(sums: tuple[Any, Any], given: Any) -> tuple[tuple[Any, Any], Any]:
        part, grad, result, lse = given
        one = problem(part)
        rows = (lax.broadcasted_iota(jnp.int32, (block, 1), 0) + one.first) < length
        made = _gradients(one, grad, result, lse, lambda weights: weights, rows)
        return (sums[0] + made.key, sums[1] + made.value), made.query

    wide = accumulator(p.query.dtype)
    zeros = jnp.zeros(p.key.shape, wide), jnp.zeros(p.value.shape, wide)
    (key, value), query = lax.scan(step, zeros, (parts, *(_split(x, block) for x in (grad, result, lse))))
    return _Gradients(_joined(query, length), key, value, None)


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
        return *flash_attention.backward(grad_out, query, key, value, attn_bias, is_causal, scale), None
    p = _problem(query, key, value, attn_bias, is_causal, scale)
    grad, result = (x.reshape(*p.query.shape[:-1], value.shape[-1]) for x in (grad_out, out))
    lse = logsumexp.reshape(*p.query.shape[:-1], 1)
    of_bias = grad_input_mask[3] and attn_bias is not None and attn_bias.dtype != jnp.bool_
    block = None if of_bias or not _no_dropout(dropout_p) else _block(p)
    if block is not None:
        made = _gradients_in_blocks(p, grad, result, lse, block)
    else:
        shape = (*p.query.shape[:4], p.key.shape[2])
        kept = None if _no_dropout(dropout_p) else _kept(philox_seed, shape, dropout_p)
        made = _gradients(p, grad, result, lse, lambda weights: _drop(weights, kept, dropout_p))
    wanted = zip((made.query, made.key, made.value), (query, key, value), grad_input_mask, strict=False)
    grads = [g.reshape(x.shape).astype(query.dtype) if asked else None for g, x, asked in wanted]
    return *grads, _bias_gradient(made.scores, attn_bias) if of_bias else None
