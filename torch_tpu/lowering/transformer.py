"""The fast paths of nn.MultiheadAttention and nn.TransformerEncoderLayer.

These modules call one fused operator when they are in evaluation mode, no gradient is needed and the device is
the CPU, CUDA or a PrivateUse1 backend. Nested tensors, which they may make from a padding mask elsewhere, do not
exist on this device.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torch_tpu.lowering.matmul import contract
from torch_tpu.lowering.norm import layer_norm
from torch_tpu.lowering.registry import register

_OVER_QUERIES, _OVER_PADDING, _MERGED = 0, 1, 2  # mask_type


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    return (contract(x, weight, (x.ndim - 1,), (1,)) + bias).astype(x.dtype)


def _hidden(mask: Any, mask_type: int | None) -> Any:
    """The mask (True: hidden) as something that broadcasts to (batch, heads, query length, key length)."""
    if mask_type == _OVER_QUERIES:
        return mask[None, None]
    if mask_type == _OVER_PADDING:
        return mask[:, None, None, :]
    if mask_type == _MERGED:
        return mask
    raise NotImplementedError(f"_native_multi_head_attention: a mask with mask_type={mask_type}; supported: 0, 1, 2")


def _attend(query: Any, key: Any, value: Any, num_head: int, mask: Any, mask_type: int | None) -> tuple[Any, Any]:
    """(batch, length, embedding) results and (batch, heads, query length, key length) weights."""

    def heads(x: Any) -> Any:
        return jnp.swapaxes(x.reshape(*x.shape[:2], num_head, -1), 1, 2)

    q, k, v = heads(query), heads(key), heads(value)
    scores = contract(q, k, (3,), (3,), (0, 1), (0, 1)) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(_hidden(mask, mask_type), -jnp.inf, scores)
    weights = jax.nn.softmax(scores, axis=-1)
    out = contract(weights.astype(v.dtype), v, (3,), (2,), (0, 1), (0, 1)).astype(v.dtype)
    return jnp.swapaxes(out, 1, 2).reshape(query.shape), weights


@register("aten::_native_multi_head_attention", precision=True, own_shapes=True)
def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """The result, and the attention weights (None unless ``need_weights``)."""
    weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
    q, k, v = (_linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    out, attention = _attend(q, k, v, num_head, mask, mask_type)
    out = _linear(out, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, (jnp.mean(attention, axis=1) if average_attn_weights else attention).astype(query.dtype)


@register("aten::_transformer_encoder_layer_fwd", precision=True)
def transformer_encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: Any,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return layer_norm(x, (embed_dim,), weight, bias, eps)[0].astype(x.dtype)

    def attend(x: Any) -> Any:
        q, k, v = jnp.split(_linear(x, qkv_weight, qkv_bias), 3, axis=-1)
        return _linear(_attend(q, k, v, num_heads, mask, mask_type)[0], proj_weight, proj_bias)

    def feed_forward(x: Any) -> Any:
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jnp.maximum(hidden, 0)
        return _linear(hidden, ffn_weight_2, ffn_bias_2)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        x = src + attend(norm(src, *first))
        return x + feed_forward(norm(x, *second))
    x = norm(src + attend(src), *first)
    return norm(x + feed_forward(x), *second)
