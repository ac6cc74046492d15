"""Attention without a matrix of scores on TPUs; README.md says when it is used and what it saves."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torch_tpu.ops import chips
from torch_tpu.ops.flash_attention import sizes


def pays(query: Any, key: Any, value: Any, bias: Any, dropout_p: Any) -> bool:
    """Whether programs traced now are for a TPU, and XLA's own attention would write its scores to HBM.

    The kernels have no mask that is an operand, and no dropout; float32 in one bfloat16 pass would not be PyTorch's.
    """
    chip = chips.current()
    if chip is None or bias is not None or not (isinstance(dropout_p, (int, float)) and dropout_p == 0):
        return False
    if query.dtype != jnp.bfloat16 or query.ndim != 4 or query.shape[-1] != value.shape[-1]:
        return False
    shape = (*query.shape, *key.shape)
    if not all(isinstance(n, int) for n in shape) or 0 in shape:
        return False
    batch, heads, length, size = query.shape
    return sizes.pays(batch * heads, length, key.shape[2], size, chip)


def forward(query: Any, key: Any, value: Any, is_causal: bool, scale: Any) -> tuple[Any, Any]:
    """(attention, log-sum-exp), as ``_scaled_dot_product_fused_attention_overrideable`` has them."""
    from torch_tpu.ops.flash_attention import kernel  # Pallas takes half a second to import

    tiles, scale = _of(query, key, scale)
    return kernel.with_logsumexp(query, key, value, tiles=tiles, is_causal=is_causal, scale=scale)


def backward(grad: Any, query: Any, key: Any, value: Any, is_causal: bool, scale: Any) -> tuple[Any, Any, Any]:
    """The gradients of query, key and value. The forward pass runs again: it is less than half of the backward's."""
    from torch_tpu.ops.flash_attention import kernel

    tiles, scale = _of(query, key, scale)

    def run(query: Any, key: Any, value: Any) -> Any:
        return kernel.flash_attention(query, key, value, tiles=tiles, is_causal=is_causal, scale=scale)

    return jax.vjp(run, query, key, value)[1](grad)


def _of(query: Any, key: Any, scale: Any) -> tuple[sizes.Tiles, Any]:
    size = query.shape[-1]
    tiles = sizes.tiles(query.shape[2], key.shape[2], size, query.dtype.itemsize, chips.current() or "v6e")
    return tiles, 1 / math.sqrt(size) if scale is None else scale
