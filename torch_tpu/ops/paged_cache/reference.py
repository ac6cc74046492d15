"""The same as plain array programs: what is checked against, and what runs where there is no TPU.

``np`` is numpy for a reference in float64, or ``jax.numpy``.
"""

from __future__ import annotations

from typing import Any


def _softmax(np: Any, scores: Any, seen: Any) -> Any:
    scores = np.where(seen, scores, -np.inf)
    peak = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(peak == -np.inf, 0, peak))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def paged_attention(
    np: Any, query: Any, key_pages: Any, value_pages: Any, lengths: Any, page_indices: Any, scale: float, wide: Any
) -> Any:
    """As ``kernel.paged_attention``, computed in ``wide``."""
    batch, heads, size = query.shape
    kv_heads = key_pages.shape[0]
    keys, values = (
        x[:, page_indices].reshape(kv_heads, batch, -1, size).astype(wide) for x in (key_pages, value_pages)
    )
    q = query.reshape(batch, kv_heads, heads // kv_heads, size).astype(wide)
    scores = np.einsum("bkgd,kbsd->bkgs", q, keys) * scale
    seen = np.arange(keys.shape[2])[None, None, None] < lengths[:, None, None, None]
    out = np.einsum("bkgs,kbsd->bkgd", _softmax(np, scores, seen), values)
    return out.reshape(query.shape)


def ragged_paged_attention(
    np: Any, query: Any, pages: Any, lengths: Any, page_indices: Any, starts: Any, count: Any, scale: float, wide: Any
) -> Any:
    """As ``kernel.ragged_paged_attention``; tokens of no sequence give 0."""
    tokens, heads, size = query.shape
    sequences, kv_heads = lengths.shape[0], pages.shape[2] // 2
    token = np.arange(tokens)
    mine = (token[:, None] >= starts[None, :-1]) & (token[:, None] < starts[None, 1:])
    mine = mine & (np.arange(sequences)[None] < count[0])
    sequence = np.argmax(mine, axis=1)
    cache = pages[page_indices].reshape(sequences, -1, kv_heads, 2, size).astype(wide)[sequence]
    q = query.reshape(tokens, kv_heads, heads // kv_heads, size).astype(wide)
    scores = np.einsum("tkgd,tskd->tkgs", q, cache[:, :, :, 0]) * scale
    # The last new token of a sequence sees its whole cache.
    sees = lengths[sequence] - (starts[1:][sequence] - token) + 1
    seen = (np.arange(cache.shape[1])[None] < sees[:, None]) & mine.any(1)[:, None]
    out = np.einsum("tkgs,tskd->tkgd", _softmax(np, scores, seen[:, None, None]), cache[:, :, :, 1])
    return out.reshape(query.shape)
