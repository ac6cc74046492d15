"""Attention in float64, with its matrix of scores."""

from __future__ import annotations

import numpy as np


def flash_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, is_causal: bool = False, scale: float = 1.0,
    window: int | None = None, soft_cap: float | None = None,
) -> np.ndarray:  # fmt: skip
    """As ``kernel.flash_attention``."""
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * q @ k.swapaxes(-1, -2)
    if soft_cap is not None:
        scores = soft_cap * np.tanh(scores / soft_cap)
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None]
    seen = np.ones((q.shape[2], k.shape[2]), bool)
    if is_causal:
        seen &= j <= i
    if window is not None:
        seen &= (j > i - window) & (j < i + window)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
