"""What the grouped products are, in float64 and one group after the other."""

from __future__ import annotations

import numpy as np


def _bounds(ends: np.ndarray, rows: int) -> list[tuple[int, int]]:
    stops = np.maximum.accumulate(np.clip(np.asarray(ends, np.int64), 0, rows))
    return list(zip([0, *stops[:-1]], stops, strict=True))


def grouped_rows(x: np.ndarray, weights: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(rows, k) by (groups, k, n) -> (rows, n); rows past the last end are 0."""
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    out = np.zeros((x.shape[0], weights.shape[2]))
    for g, (start, stop) in enumerate(_bounds(ends, x.shape[0])):
        out[start:stop] = x[start:stop] @ weights[g]
    return out


def grouped_sum(a: np.ndarray, b: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(rows, m) and (rows, n) -> (groups, m, n)."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.stack([a[start:stop].T @ b[start:stop] for start, stop in _bounds(ends, a.shape[0])])
