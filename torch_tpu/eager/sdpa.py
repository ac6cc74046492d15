"""``F.scaled_dot_product_attention`` on the device: which attention runs.

PyTorch asks a C++ stub which attention a device has, and Python cannot register in it: left alone, the function takes
the math path of many operators. So it is a kernel here, for both keys "PrivateUse1" and "AutogradPrivateUse1". It calls
``aten::_scaled_dot_product_fused_attention_overrideable`` (``lowering/attention.py``), whose autograd formula PyTorch
has (also for a mask that requires grad), under eager, inference mode, FakeTensor and AOTAutograd alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend

from torch_tpu.binding.dispatcher import overrideable_attention_enabled


def is_fusible(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, enable_gqa: bool = False) -> bool:
    """Whether the fused operator takes these; else PyTorch's math path does (or says what is wrong)."""
    dims = query.dim()
    if dims not in (3, 4) or key.dim() != dims or value.dim() != dims or not query.dtype.is_floating_point:
        return False
    if key.dtype != query.dtype or value.dtype != query.dtype or not overrideable_attention_enabled():
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return False
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if query.shape[:-3] != key.shape[:-3] or key.shape[:-2] != value.shape[:-2]:
        return False
    return heads == kv_heads or (enable_gqa and dims == 4 and kv_heads > 0 and heads % kv_heads == 0)


def fused_sdp_choice(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """The kernel of ``aten::_fused_sdp_choice``: an ``SDPBackend`` as int. It looks at metadata only."""
    fused = is_fusible(query, key, value, enable_gqa=enable_gqa)
    return int((SDPBackend.OVERRIDEABLE if fused else SDPBackend.MATH).value)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The kernel of ``aten::scaled_dot_product_attention``; calls operators on torch tensors, with autograd."""
    if attn_mask is not None:
        if is_causal and (dropout_p > 0 or not is_fusible(query, key, value, enable_gqa=enable_gqa)):  # as on CPU
            raise RuntimeError("scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
        if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            raise RuntimeError(
                f"Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
                f"{attn_mask.dtype} and query.dtype: {query.dtype} instead."
            )
    if not 0.0 <= dropout_p <= 1.0:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")
    scores = (*query.shape[:-1], key.shape[-2])
    if is_fusible(query, key, value, enable_gqa=enable_gqa) and _broadcasts(attn_mask, scores):
        return torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
            query, key, value, attn_mask, dropout_p, is_causal, False, scale=scale
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -math.inf)
    return torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _broadcasts(mask: torch.Tensor | None, scores: Sequence[int]) -> bool:
    if mask is None:
        return True
    lengths = zip(reversed(mask.shape), reversed(scores), strict=False)
    return mask.dim() <= len(scores) and all(m in (1, s) for m, s in lengths)
