"""Batch normalization, its gradient, and the pieces of SyncBatchNorm.

``aten::native_batch_norm`` (what F.batch_norm calls on this device) changes its running statistics in place,
though its schema does not say so. A lowering is pure: ``_native_batch_norm_legit_functional`` gives the new
statistics as results 3 and 4, for the caller to write back; ``native_batch_norm`` here gives only the first three.

``batch_norm_stats``, ``_elemt``, ``_gather_stats_with_counts``, ``_backward_reduce`` and ``_backward_elemt`` (what
SyncBatchNorm calls) have no CPU and no meta kernel in PyTorch: the lowering is the only source of their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.norm import common_type, mean_and_variance, number, widen
from torch_tpu.lowering.registry import register


def _axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _per_channel(p: Any, x: Any) -> Any:
    return None if p is None else p.reshape(1, -1, *[1] * (x.ndim - 2))


def _count(x: Any) -> int:
    return x.size // x.shape[1] if x.shape[1] else 0


def _normalize(x: Any, mean: Any, invstd: Any, weight: Any, bias: Any) -> Any:
    mean, invstd, weight, bias = (_per_channel(p, x) for p in (mean, invstd, weight, bias))
    scale = invstd if weight is None else invstd * weight
    y = (x - mean) * scale
    return y if bias is None else y + bias


def _updated(running: Any, fresh: Any, momentum: Any) -> Any:
    if running is None:
        return None
    running, fresh = common_type(running, fresh)
    momentum = number(momentum, running)
    return (1 - momentum) * running + momentum * fresh


def _forward(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: Any,
    meta: Sequence[Any] | None = None,
) -> tuple[Any, Any, Any, Any, Any]:  # fmt: skip
    """Result, saved mean and 1/std, new running mean and variance.

    In evaluation CPU saves nothing, and other devices the running statistics; ``meta`` says which is wanted.
    """
    x, weight, bias = common_type(input, weight, bias)
    if not training:
        mean, variance = running_mean.astype(x.dtype), running_var.astype(x.dtype)
        invstd = lax.rsqrt(variance + number(eps, x))
        y = _normalize(x, mean, invstd, weight, bias)
        if meta is not None and meta[1].shape == (0,):
            mean = invstd = jnp.zeros((0,), x.dtype)
        return y, mean, invstd, running_mean, running_var
    mean, variance = (s.reshape(-1) for s in mean_and_variance(x, _axes(x)))
    invstd = lax.rsqrt(variance + number(eps, x))
    n = _count(x)
    unbiased = variance * (n / (n - 1) if n > 1 else float("nan"))
    y = _normalize(x, mean, invstd, weight, bias)
    return y, mean, invstd, _updated(running_mean, mean, momentum), _updated(running_var, unbiased, momentum)


@register("aten::native_batch_norm", meta=True)
def native_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: Any,
    *, meta: Sequence[Any],
) -> Any:  # fmt: skip
    return _forward(input, weight, bias, running_mean, running_var, training, momentum, eps, meta)[:3]


@register("aten::_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    input: Any, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any
) -> Any:  # fmt: skip
    return _forward(input, weight, bias, None, None, training, momentum, eps)[:3]


@register("aten::_native_batch_norm_legit_functional", meta=True)
def native_batch_norm_functional(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any, eps: Any,
    *, meta: Sequence[Any],
) -> Any:  # fmt: skip
    return _forward(input, weight, bias, running_mean, running_var, training, momentum, eps, meta)


def _reserve() -> Any:
    return jnp.zeros((0,), jnp.uint8)


@register("aten::_batch_norm_with_update_functional")
def batch_norm_with_update(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
) -> Any:
    y, mean, invstd, *running = _forward(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return y, mean, invstd, _reserve(), *running


@register("aten::_batch_norm_no_update", meta=True)
def batch_norm_no_update(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any, *,
    meta: Sequence[Any],
) -> Any:  # fmt: skip
    training = running_mean is None or running_var is None
    return *_forward(input, weight, bias, running_mean, running_var, training, momentum, eps, meta)[:3], _reserve()


@register("aten::batch_norm_update_stats")
def batch_norm_update_stats(input: Any, running_mean: Any, running_var: Any, momentum: Any) -> Any:
    """Mean and *biased variance* of the batch. The running statistics, changed in place, are not results here."""
    x = widen(input)
    return tuple(s.reshape(-1) for s in mean_and_variance(x, _axes(x)))


@register("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: Any,
    output_mask: Sequence[bool],
) -> Any:
    grad, x, weight = common_type(grad_out, input, weight)
    if train:
        mean, invstd = save_mean.astype(x.dtype), save_invstd.astype(x.dtype)
    else:
        mean, invstd = running_mean.astype(x.dtype), lax.rsqrt(running_var.astype(x.dtype) + number(eps, x))
    axes = _axes(x)
    centred = x - _per_channel(mean, x)
    sum_grad, sum_along = jnp.sum(grad, axis=axes), jnp.sum(grad * centred, axis=axes)
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        scale = invstd if weight is None else invstd * weight
        if train:
            n = max(_count(x), 1)
            along = _per_channel(sum_along / n * jnp.square(invstd), x)
            grad = grad - _per_channel(sum_grad / n, x) - centred * along
        grad_input = grad * _per_channel(scale, x)
    if output_mask[1]:
        grad_weight = sum_along * invstd
    if output_mask[2]:
        grad_bias = sum_grad
    return grad_input, grad_weight, grad_bias


@register("aten::batch_norm_backward")
def batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    update: bool,
    eps: Any,
    output_mask: Sequence[bool],
    reserve: Any,
) -> Any:
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@register("aten::batch_norm_stats")
def batch_norm_stats(input: Any, eps: Any) -> Any:
    """Mean and 1/std of each channel, in float32 for half types."""
    x = widen(input)
    mean, variance = (s.reshape(-1) for s in mean_and_variance(x, _axes(x)))
    return mean, lax.rsqrt(variance + number(eps, x))


@register("aten::batch_norm_elemt")
def batch_norm_elemt(input: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: Any) -> Any:
    return _normalize(*common_type(input, mean, invstd, weight, bias)).astype(input.dtype)


@register("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: Any, mean: Any, invstd: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any, counts: Any
) -> Any:
    """Mean and 1/std over all processes, from those of each. The running statistics are not results here:
    ``gathered_running_stats``.

    Args:
      mean, invstd: (processes, channels).
      counts: (processes,), elements a channel.
    """
    return _gather(mean, invstd, eps, counts)[:2]


def gathered_running_stats(
    mean: Any, invstd: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any, counts: Any
) -> tuple[Any, Any]:
    """The running statistics that ``batch_norm_gather_stats_with_counts`` leaves behind."""
    joint, _, variance, total = _gather(mean, invstd, eps, counts)
    unbiased = variance * (total / (total - 1))
    return _updated(running_mean, joint, momentum), _updated(running_var, unbiased, momentum)


def _gather(mean: Any, invstd: Any, eps: Any, counts: Any) -> tuple[Any, Any, Any, Any]:
    mean, invstd, counts = common_type(mean, invstd, counts)
    eps, counts = number(eps, mean), counts.reshape(-1, 1)
    total = jnp.sum(counts)
    joint = jnp.sum(mean * counts, axis=0) / total
    within = 1 / jnp.square(invstd) - eps
    variance = jnp.sum((within + jnp.square(mean - joint)) * counts, axis=0) / total
    return joint, lax.rsqrt(variance + eps), variance, total


@register("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad_out: Any, input: Any, mean: Any, invstd: Any, weight: Any, input_g: bool, weight_g: bool, bias_g: bool
) -> Any:
    """Sums of grad and of grad * (x - mean), and the gradients of weight and bias; None where not asked for."""
    grad, x, mean, invstd = common_type(grad_out, input, mean, invstd)
    sum_dy = jnp.sum(grad, axis=_axes(x))
    sum_dy_xmu = jnp.sum(grad * (x - _per_channel(mean, x)), axis=_axes(x))
    like = sum_dy.dtype if weight is None else weight.dtype
    grad_weight = (sum_dy_xmu * invstd).astype(like) if weight_g else None
    grad_bias = sum_dy.astype(like) if bias_g else None
    return (sum_dy if input_g else None), (sum_dy_xmu if input_g else None), grad_weight, grad_bias


@register("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad_out: Any, input: Any, mean: Any, invstd: Any, weight: Any, sum_dy: Any, sum_dy_xmu: Any, count: Any
) -> Any:
    grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu = common_type(
        grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu
    )
    total = jnp.sum(count).astype(x.dtype)
    scale = invstd if weight is None else invstd * weight
    along = (x - _per_channel(mean, x)) * _per_channel(sum_dy_xmu / total * jnp.square(invstd), x)
    return ((grad - _per_channel(sum_dy / total, x) - along) * _per_channel(scale, x)).astype(input.dtype)
