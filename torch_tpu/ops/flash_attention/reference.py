"""Attention and its gradients in float64, with the matrix of scores."""

from __future__ import annotations

from typing import Any

import numpy as np


def _weights(
    q: np.ndarray, k: np.ndarray, *, is_causal: bool, scale: float, window: int | None, soft_cap: float | None,
    mask: np.ndarray | None,
) -> tuple[np.ndarray, Any]:  # fmt: skip
    """(weights, how a score's change reaches the product of query and key)."""
    scores, slope = scale * q @ k.swapaxes(-1, -2), scale
    if soft_cap is not None:
        bent = np.tanh(scores / soft_cap)
        scores, slope = soft_cap * bent, scale * (1 - bent**2)
    i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])[None]
    seen = np.ones((q.shape[2], k.shape[2]), bool)
    if is_causal:
        seen &= j <= i
    if window is not None:
        seen &= (j > i - window) & (j < i + window)
    seen = np.broadcast_to(seen if mask is None else seen & mask, scores.shape)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30))  # of a row that sees nothing: 0
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total), slope


def flash_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, is_causal: bool = False, scale: float = 1.0,
    window: int | None = None, soft_cap: float | None = None, mask: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """As ``kernel.flash_attention``; with a mask as ``kernel.with_logsumexp``."""
    group = query.shape[1] // key.shape[1]
    q, k, v = query.astype(np.float64), np.repeat(key, group, 1), np.repeat(value, group, 1)
    weights, _ = _weights(q, k, is_causal=is_causal, scale=scale, window=window, soft_cap=soft_cap, mask=mask)
    return weights @ v


def gradients(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, grad: np.ndarray, *, is_causal: bool = False,
    scale: float = 1.0, window: int | None = None, soft_cap: float | None = None, mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Of query, key and value."""
    group = query.shape[1] // key.shape[1]
    k, v = np.repeat(key, group, 1), np.repeat(value, group, 1)
    weights, slope = _weights(
        query, k, is_causal=is_causal, scale=scale, window=window, soft_cap=soft_cap, mask=mask
    )  # fmt: skip
    of_weights = grad @ v.swapaxes(-1, -2)
    of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True)) * slope

    def of_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    return of_scores @ k, of_group(of_scores.swapaxes(-1, -2) @ query), of_group(weights.swapaxes(-1, -2) @ grad)
