"""Distances between the rows of two matrices (cdist) and of one (pdist), and their gradients.

Rows are subtracted and reduced in one fused program, so that the array of all differences never exists. The
Euclidean distance of many rows uses a matrix product, where PyTorch does.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.registry import Promotion, register

# Norms with formulas of their own; any other p is an operand.
_KNOWN_NORMS = (0.0, 1.0, 2.0, float("inf"))
# cdist's compute_mode: None or 0 uses the matrix product above this many rows, 1 always, 2 never.
_MANY_ROWS = 25


def _norm(difference: Any, p: Any) -> Any:
    """The p-norm over the last dimension."""
    size = jnp.abs(difference)
    if isinstance(p, (int, float)):
        if p == 0:
            return jnp.sum(size != 0, axis=-1).astype(size.dtype)
        if p == 1:
            return jnp.sum(size, axis=-1)
        if p == 2:
            return jnp.sqrt(jnp.sum(size * size, axis=-1))
        if p == float("inf"):
            return jnp.max(size, axis=-1, initial=0)
    p = jnp.asarray(p).astype(size.dtype)
    return jnp.power(jnp.sum(jnp.power(size, p), axis=-1), 1 / p)


def _norm_slope(difference: Any, p: Any, distance: Any) -> Any:
    """The derivative of the p-norm by each difference; 0 where the rows are equal."""
    sign, size = jnp.sign(difference), jnp.abs(difference)
    if isinstance(p, (int, float)):
        if p == 0:
            return jnp.zeros_like(difference)
        if p == 1:
            return sign
        if p == float("inf"):
            return jnp.where(size == distance, sign, 0)
        if p == 2:
            return jnp.where(distance == 0, 0, difference / jnp.where(distance == 0, 1, distance))
    p = jnp.asarray(p).astype(size.dtype)
    flat = (distance == 0) | (size == 0)
    ratio = jnp.where(flat, 1, size) / jnp.where(distance == 0, 1, distance)
    return jnp.where(flat, 0, sign * jnp.power(ratio, p - 1))


def _euclidean_by_product(x1: Any, x2: Any) -> Any:
    """|a - b|^2 = |a|^2 - 2 a.b + |b|^2, as one matrix product."""
    square1, square2 = (jnp.sum(x * x, axis=-1, keepdims=True) for x in (x1, x2))
    left = jnp.concatenate([-2 * x1, square1, jnp.ones_like(square1)], axis=-1)
    right = jnp.concatenate([x2, jnp.ones_like(square2), square2], axis=-1)
    product = jnp.matmul(left, jnp.swapaxes(right, -1, -2), precision=lax.Precision.HIGHEST)
    return jnp.sqrt(jnp.maximum(product, 0))


@register("aten::_euclidean_dist", promote=Promotion.DEFAULT)
def euclidean_dist(x1: Any, x2: Any) -> Any:
    return _euclidean_by_product(x1, x2)


@register("aten::_cdist_forward", promote=Promotion.DEFAULT, specialize={"p": _KNOWN_NORMS})
def cdist(x1: Any, x2: Any, p: Any, compute_mode: int | None) -> Any:
    many = x1.shape[-2] > _MANY_ROWS or x2.shape[-2] > _MANY_ROWS
    if isinstance(p, (int, float)) and p == 2 and (compute_mode == 1 or (not compute_mode and many)):
        return _euclidean_by_product(x1, x2)
    return _norm(x1[..., :, None, :] - x2[..., None, :, :], p)


@register("aten::_cdist_backward", promote=Promotion.DEFAULT, specialize={"p": _KNOWN_NORMS})
def cdist_backward(grad: Any, x1: Any, x2: Any, p: Any, cdist: Any) -> Any:
    if x1.size == 0 or x2.size == 0:
        return jnp.zeros_like(x1)  # not yet broadcast to the batch
    difference = x1[..., :, None, :] - x2[..., None, :, :]
    return jnp.sum(grad[..., None] * _norm_slope(difference, p, cdist[..., None]), axis=-2)


def _pairs(rows: int) -> tuple[Any, Any]:
    """The pairs i < j in order, as two index arrays; made of iotas, not of constants."""
    i, j = jnp.triu_indices(rows, 1)
    return i, j


@register("aten::_pdist_forward", promote=Promotion.DEFAULT, specialize={"p": _KNOWN_NORMS})
def pdist(self: Any, p: Any = 2.0) -> Any:
    rows = self.shape[0]
    if rows < 2:
        return jnp.zeros((0,), self.dtype)
    i, j = _pairs(rows)
    return _norm(self[i] - self[j], p)


@register("aten::_pdist_backward", promote=Promotion.DEFAULT, specialize={"p": _KNOWN_NORMS})
def pdist_backward(grad: Any, self: Any, p: Any, pdist: Any) -> Any:
    rows = self.shape[0]
    if rows < 2:
        return jnp.zeros_like(self)
    # As cdist of the rows with themselves: pair (i, j) is at row i, column j - i - 1 of the upper triangle.
    i, j = jnp.arange(rows)[:, None], jnp.arange(rows)[None, :]
    low, high = jnp.minimum(i, j), jnp.maximum(i, j)
    at = jnp.where(i == j, 0, low * (2 * rows - low - 1) // 2 + high - low - 1)
    square_grad = jnp.where(i == j, 0, grad[at])
    return cdist_backward(square_grad, self, self, p, jnp.where(i == j, 0, pdist[at]))
