"""Losses and their gradients. CTC is in ``ctc.py``, pairwise distances in ``distance.py``.

``reduction`` is ATen's: 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_tpu.lowering import checks, dtypes
from torch_tpu.lowering.registry import Meta, Promotion, register

NONE, MEAN, SUM = 0, 1, 2


def reduce_loss(loss: Any, reduction: int) -> Any:
    if reduction == NONE:
        return loss
    total = jnp.sum(loss)
    return total / loss.size if reduction == MEAN else total


def mean_factor(x: Any, reduction: int) -> float:
    """What the gradient of each element is multiplied by: 1 / numel for a mean."""
    return 1 / x.size if reduction == MEAN and x.size else 1.0


def _wide(x: Any) -> Any:
    """Half types evaluated in float32; the caller rounds."""
    return None if x is None else dtypes.cast(x, dtypes.compute_type(dtypes.to_torch(x.dtype)))


# Regression


@register("aten::mse_loss", promote=Promotion.DEFAULT)
def mse_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    difference = self - target
    return reduce_loss(difference * difference, reduction)


@register("aten::mse_loss_backward", promote=Promotion.DEFAULT)
def mse_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int) -> Any:
    difference = self - target
    return 2 * mean_factor(difference, reduction) * difference * grad_output


@register("aten::smooth_l1_loss", promote=Promotion.DEFAULT)
def smooth_l1_loss(self: Any, target: Any, reduction: int = MEAN, beta: Any = 1.0) -> Any:
    size = jnp.abs(self - target)
    beta = jnp.asarray(beta).astype(size.dtype)
    # beta may be 0 (then it is the L1 loss): no element is in the quadratic part.
    return reduce_loss(jnp.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta), reduction)


@register("aten::smooth_l1_loss_backward", promote=Promotion.DEFAULT)
def smooth_l1_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int, beta: Any) -> Any:
    difference = self - target
    beta = jnp.asarray(beta).astype(difference.dtype)
    slope = jnp.where(difference <= -beta, -1, jnp.where(difference >= beta, 1, difference / beta))
    return mean_factor(difference, reduction) * slope * grad_output


@register("aten::huber_loss", promote=Promotion.DEFAULT, type_of="self")
def huber_loss(self: Any, target: Any, reduction: int = MEAN, delta: Any = 1.0) -> Any:
    size = jnp.abs(self - target)
    delta = jnp.asarray(delta).astype(size.dtype)
    return reduce_loss(jnp.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta)), reduction)


@register("aten::huber_loss_backward", promote=Promotion.DEFAULT, type_of="self")
def huber_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int, delta: Any) -> Any:
    difference = self - target
    delta = jnp.asarray(delta).astype(difference.dtype)
    return mean_factor(difference, reduction) * jnp.minimum(jnp.maximum(difference, -delta), delta) * grad_output


# Binary classification


@register("aten::soft_margin_loss", promote=Promotion.DEFAULT)
def soft_margin_loss(self: Any, target: Any, reduction: int = MEAN) -> Any:
    return reduce_loss(jnp.log1p(jnp.exp(-target * self)), reduction)


@register("aten::soft_margin_loss_backward", promote=Promotion.DEFAULT)
def soft_margin_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int) -> Any:
    return -mean_factor(self, reduction) * target * lax.logistic(-target * self) * grad_output


def _is_probability(x: Any, what: str) -> None:
    checks.require(~((x >= 0) & (x <= 1)), x, f"{what}: all elements of input should be between 0 and 1", RuntimeError)


# ATen multiplies by the weight in place; the meta kernel is a decomposition that does not.
@register("aten::binary_cross_entropy", promote=Promotion.DEFAULT, type_of="self")
def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = MEAN) -> Any:
    _is_probability(self, "binary_cross_entropy")
    # ATen bounds the logarithms at -100, so that a certain wrong answer has a finite loss.
    log_p, log_not_p = jnp.maximum(jnp.log(self), -100), jnp.maximum(jnp.log1p(-self), -100)
    loss = (target - 1) * log_not_p - target * log_p
    return reduce_loss(loss if weight is None else loss * weight, reduction)


@register("aten::binary_cross_entropy_backward", promote=Promotion.DEFAULT, type_of="self")
def binary_cross_entropy_backward(
    grad_output: Any, self: Any, target: Any, weight: Any = None, reduction: int = MEAN
) -> Any:
    grad = grad_output * (self - target) / jnp.maximum((1 - self) * self, 1e-12)
    return (grad if weight is None else grad * weight) * mean_factor(self, reduction)


@register("aten::binary_cross_entropy_with_logits", promote=Promotion.DEFAULT)
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> Any:
    log_sigmoid = jnp.minimum(self, 0) - jnp.log1p(jnp.exp(-jnp.abs(self)))
    positive = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * self - positive * log_sigmoid
    return reduce_loss(loss if weight is None else loss * weight, reduction)


# Negative log likelihood. Classes are dimension 1, or 0 where there is no batch.


_BYTES = {"target": {torch.uint8: torch.int64}}  # uint8 targets: of nll_loss alone, CPU refuses those of nll_loss2d


def _class_axis(x: Any) -> int:
    return 1 if x.ndim > 1 else 0


def _is_class(target: Any, classes: Any, axis: int) -> Any:
    """Bool of the scores' shape: True where the class is the target's. Cheaper on every device than a scatter."""
    shape = [1] * len(classes)
    shape[axis] = classes[axis]
    return jnp.expand_dims(target, axis) == jnp.arange(classes[axis], dtype=target.dtype).reshape(shape)


def _class_weight(target: Any, kept: Any, weight: Any, dtype: Any) -> Any:
    """The weight of each target's class, 0 where the target is ignored."""
    if weight is None:
        return kept.astype(dtype)
    return jnp.where(kept, _wide(weight).astype(dtype)[jnp.where(kept, target, 0)], 0)


def _kept_targets(target: Any, ignore_index: int, classes: int) -> Any:
    target = target.astype(jnp.int64)
    kept = target != ignore_index
    bad = kept & ((target < 0) | (target >= classes))
    checks.require(bad, target, f"nll_loss: target {{value}} is out of bounds for {classes} classes")
    return kept & ~bad


@register("aten::nll_loss_forward", "aten::nll_loss2d_forward", meta_types=_BYTES)
def nll_loss_forward(self: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    scores, axis = _wide(self), _class_axis(self)
    kept = _kept_targets(target, ignore_index, self.shape[axis])
    factor = _class_weight(target, kept, weight, scores.dtype)
    if self.size == 0:
        chosen = jnp.zeros(target.shape, scores.dtype)
    else:
        at = jnp.expand_dims(jnp.where(kept, target, 0), axis)
        chosen = jnp.squeeze(jnp.take_along_axis(scores, at, axis=axis, mode="clip"), axis)
    loss = jnp.where(kept, -factor * chosen, 0)  # an ignored score may be infinite
    if reduction == NONE and target.ndim:
        return loss, jnp.zeros((), scores.dtype)
    total, total_weight = jnp.sum(loss), jnp.sum(factor)
    return (total / total_weight if reduction == MEAN else total), total_weight


@register("aten::nll_loss_backward", "aten::nll_loss2d_backward", meta_types=_BYTES)
def nll_loss_backward(
    grad_output: Any, self: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total_weight: Any
) -> Any:
    grad, axis = _wide(grad_output), _class_axis(self)
    kept = _kept_targets(target, ignore_index, self.shape[axis])
    grad = -grad * _class_weight(target, kept, weight, grad.dtype)
    if reduction == MEAN:
        grad = grad / _wide(total_weight)
    chosen = _is_class(target, self.shape, axis) & jnp.expand_dims(kept, axis)
    return jnp.where(chosen, jnp.expand_dims(grad, axis), 0)


# Margins between classes: rows of scores, one or several right classes a row


def _rows(x: Any) -> Any:
    """Scores as [rows, classes]; a vector or a number is one row."""
    return x.reshape(1, -1) if x.ndim < 2 else x


def _multi_margin_rows(scores: Any, target: Any, weight: Any, p: int, margin: Any) -> Any:
    """The loss of each row of ``scores`` [rows, classes], ``target`` [rows]."""
    if p not in (1, 2):
        raise NotImplementedError(f"multi_margin_loss: p must be 1 or 2, got {p}")
    at = checks.index_in_range(target, scores.shape[1], "multi_margin_loss", dim=1, negative=False)
    right = jnp.take_along_axis(scores, at[:, None], axis=1, mode="clip")
    excess = jnp.maximum(margin - right + scores, 0)
    excess = jnp.where(_is_class(at, scores.shape, 1), 0, excess if p == 1 else excess * excess)
    loss = jnp.sum(excess, axis=1) / scores.shape[1]
    return loss if weight is None else loss * weight[at]


def _margin_arguments(self: Any, target: Any, weight: Any, margin: Any) -> tuple[Any, Any, Any, Any]:
    scores = _rows(_wide(self))
    return scores, target.reshape(-1), _wide(weight), jnp.asarray(margin).astype(scores.dtype)


@register("aten::multi_margin_loss", static=("p",))
def multi_margin_loss(
    self: Any, target: Any, p: int = 1, margin: Any = 1, weight: Any = None, reduction: int = MEAN
) -> Any:
    scores, target_rows, weight, margin = _margin_arguments(self, target, weight, margin)
    loss = reduce_loss(_multi_margin_rows(scores, target_rows, weight, p, margin), reduction)
    return loss.reshape(target.shape) if reduction == NONE else loss


@register("aten::multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(
    grad_output: Any, self: Any, target: Any, p: int, margin: Any, weight: Any = None, reduction: int = MEAN
) -> Any:
    scores, target_rows, weight, margin = _margin_arguments(self, target, weight, margin)
    _, pull = jax.vjp(lambda s: _multi_margin_rows(s, target_rows, weight, p, margin), scores)
    grad = _wide(grad_output).reshape(-1) * mean_factor(target_rows, reduction)
    return pull(jnp.broadcast_to(grad, target_rows.shape))[0].reshape(self.shape)


def _multilabel_rows(scores: Any, target: Any, is_target: Any) -> Any:
    """The loss of each row: every right class against every wrong one. Targets end at the first -1."""
    valid = jnp.cumsum(target < 0, axis=1) == 0
    right = jnp.take_along_axis(scores, jnp.where(valid, target, 0), axis=1, mode="clip")
    excess = jnp.maximum(1 - right[:, :, None] + scores[:, None, :], 0)
    excess = jnp.where(valid[:, :, None] & ~is_target[:, None, :], excess, 0)
    return jnp.sum(excess, axis=(1, 2)) / scores.shape[1]


_OUT_OF_RANGE = "multilabel_margin_loss: argument #2 'target' is out of range, got {value}"


@register("aten::multilabel_margin_loss_forward", meta=True)
def multilabel_margin_loss(self: Any, target: Any, reduction: int, meta: tuple[Meta, ...]) -> Any:
    scores, target = _rows(_wide(self)), _rows(target)
    checks.require((target < -1) | (target >= scores.shape[1]), target, _OUT_OF_RANGE, RuntimeError)
    valid = jnp.cumsum(target < 0, axis=1) == 0
    classes = jnp.arange(scores.shape[1], dtype=target.dtype)
    is_target = jnp.any((target[:, :, None] == classes) & valid[:, :, None], axis=1)
    loss = reduce_loss(_multilabel_rows(scores, target, is_target), reduction)
    return loss.reshape(meta[0].shape), is_target.reshape(meta[1].shape)


@register("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int, is_target: Any) -> Any:
    scores, target, is_target = _rows(_wide(self)), _rows(target), _rows(is_target != 0)
    _, pull = jax.vjp(lambda s: _multilabel_rows(s, target, is_target), scores)
    grad = _wide(grad_output).reshape(-1) * mean_factor(scores[:, 0], reduction)
    return pull(jnp.broadcast_to(grad, scores.shape[:1]))[0].reshape(self.shape)
