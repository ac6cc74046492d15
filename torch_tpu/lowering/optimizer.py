"""Fused optimizer steps, and the loss scaling of automatic mixed precision.

Learning rates, decays and step counts are operands: a new value, as every step brings, is not a new program.
All results are returned in the schema's order, as one flat list: the first parameter's tensors, the second's, ...
A found overflow (``found_inf``) leaves every tensor as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.registry import register


def _wide(x: Any) -> Any:
    """Half types evaluated in float32; the caller rounds."""
    return dtypes.cast(x, dtypes.compute_type(dtypes.to_torch(x.dtype)))


def _number(value: Any) -> Any:
    """A number as a floating 0-d array, as precise as it came (a learning rate may be a tensor of one element)."""
    value = jnp.asarray(value).reshape(())
    return value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(jnp.float64)


def _bias_correction(beta: Any, step: Any) -> Any:
    """1 - beta ** step, without the cancellation of the first steps."""
    beta = _number(beta)
    return -jnp.expm1(step.reshape(()).astype(beta.dtype) * jnp.log(beta))


def _step_all(
    lists: tuple[list[Any], ...],
    step_one: Callable[..., tuple[Any, ...]],
    grad_scale: Any,
    found_inf: Any,
    maximize: bool,
    extra: list[Any] | None = None,
) -> list[Any]:
    """Apply ``step_one(param, grad, *state, extra)`` -> (param, *state) to each parameter of the lists.

    Args:
      lists: parameters, gradients, and lists of states (a list may be empty).
      extra: one more argument for each parameter, which is no result.
    """
    present = [i for i, tensors in enumerate(lists) if tensors]
    results: list[list[Any]] = [[] for _ in lists]
    for n in range(len(lists[0])):
        old = [lists[i][n] for i in present]
        param, grad, *state = (_wide(x) for x in old)
        unscaled = grad if grad_scale is None else grad / grad_scale.reshape(()).astype(grad.dtype)
        given = [] if extra is None else [extra[n]]
        param, *state = step_one(param, -unscaled if maximize else unscaled, *state, *given)
        for i, before, after in zip(present, old, (param, unscaled, *state), strict=True):
            after = after.astype(before.dtype)
            results[i].append(after if found_inf is None else jnp.where(found_inf.reshape(()) == 1, before, after))
    return [x for tensors in results for x in tensors]


def _adam(
    lists: tuple[list[Any], ...],
    state_steps: list[Any],
    *,
    decoupled: bool,
    lr: Any,
    beta1: Any,
    beta2: Any,
    weight_decay: Any,
    eps: Any,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Any,
    found_inf: Any,
) -> list[Any]:
    """Adam (Kingma and Ba 2015), with decoupled weight decay AdamW (Loshchilov and Hutter 2019)."""
    lr, beta1, beta2, weight_decay, eps = (_number(x) for x in (lr, beta1, beta2, weight_decay, eps))

    def step_one(param: Any, grad: Any, mean: Any, square: Any, *rest: Any) -> tuple[Any, ...]:
        *largest, step = rest
        t = param.dtype
        step_size = (lr / _bias_correction(beta1, step)).astype(t)
        root_correction = jnp.sqrt(_bias_correction(beta2, step)).astype(t)
        if decoupled:
            param = param - (lr * weight_decay).astype(t) * param
        else:
            grad = grad + weight_decay.astype(t) * param
        mean = mean + (1 - beta1).astype(t) * (grad - mean)
        square = beta2.astype(t) * square + (1 - beta2).astype(t) * grad * grad
        if amsgrad:
            largest = [jnp.maximum(largest[0], square)]
        denominator = jnp.sqrt(largest[0] if amsgrad else square) / root_correction + eps.astype(t)
        return param - step_size * mean / denominator, mean, square, *largest

    return _step_all(lists, step_one, grad_scale, found_inf, maximize, state_steps)


def _declare_adam(name: str, decoupled: bool) -> None:
    @register(f"aten::{name}", f"aten::{name}.tensor_lr")
    def fused_adam(
        self: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any, state_steps: Any, **options: Any
    ) -> list[Any]:
        lists = (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
        return _adam(lists, state_steps, decoupled=decoupled, **options)


_declare_adam("_fused_adam", decoupled=False)
_declare_adam("_fused_adamw", decoupled=True)


@register("aten::_fused_sgd", "aten::_fused_sgd.tensor_lr", wide=True)
def fused_sgd(
    self: Any,
    grads: Any,
    momentum_buffer_list: Any,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any,
    found_inf: Any,
) -> list[Any]:
    lr, momentum, weight_decay, dampening = (_number(x) for x in (lr, momentum, weight_decay, dampening))

    def step_one(param: Any, grad: Any, *buffers: Any) -> tuple[Any, ...]:
        t = param.dtype
        grad = grad + weight_decay.astype(t) * param
        if buffers:
            kept = momentum.astype(t)
            moved = grad if is_first_step else kept * buffers[0] + (1 - dampening).astype(t) * grad
            buffers, grad = (moved,), grad + kept * moved if nesterov else moved
        return param - lr.astype(t) * grad, *buffers

    return _step_all((self, grads, momentum_buffer_list), step_one, grad_scale, found_inf, maximize)


def _adagrad(
    lists: tuple[list[Any], ...],
    state_steps: list[Any],
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Any,
    found_inf: Any,
) -> list[Any]:
    lr, lr_decay, weight_decay, eps = (_number(x) for x in (lr, lr_decay, weight_decay, eps))

    def step_one(param: Any, grad: Any, total: Any, step: Any) -> tuple[Any, ...]:
        t = param.dtype
        rate = lr / (1 + (step.reshape(()).astype(lr_decay.dtype) - 1) * lr_decay)
        grad = grad + weight_decay.astype(t) * param
        total = total + grad * grad
        return param - rate.astype(t) * grad / (jnp.sqrt(total) + eps.astype(t)), total

    return _step_all(lists, step_one, grad_scale, found_inf, maximize, state_steps)


@register("aten::_fused_adagrad", wide=True)
def fused_adagrad(self: Any, grads: Any, state_sums: Any, state_steps: Any, **options: Any) -> list[Any]:
    # This overload alone names the step counts among its results; ATen's kernel leaves them as they are.
    return [*_adagrad((self, grads, state_sums), state_steps, **options), *state_steps]


@register("aten::_fused_adagrad.tensor_lr", wide=True)
def fused_adagrad_tensor_lr(self: Any, grads: Any, state_sums: Any, state_steps: Any, **options: Any) -> list[Any]:
    return _adagrad((self, grads, state_sums), state_steps, **options)


# Loss scaling


@register("aten::_amp_foreach_non_finite_check_and_unscale")
def amp_unscale(self: list[Any], found_inf: Any, inv_scale: Any) -> list[Any]:
    found = found_inf != 0
    for x in self:
        found = found | ~jnp.all(jnp.isfinite(x))
    unscaled = [(_wide(x) * inv_scale.reshape(()).astype(_wide(x).dtype)).astype(x.dtype) for x in self]
    return [*unscaled, jnp.where(found, jnp.ones_like(found_inf), found_inf)]


@register("aten::_amp_update_scale", operands=("growth_interval",))
def amp_update_scale(
    self: Any,
    growth_tracker: Any,
    found_inf: Any,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: Any,
) -> Any:
    overflow = found_inf.reshape(()) != 0
    successes = growth_tracker + 1
    grow = successes == growth_interval
    grown = self * jnp.asarray(scale_growth_factor).astype(self.dtype)
    grown = jnp.where(grow & jnp.isfinite(grown), grown, self)
    scale = jnp.where(overflow, self * jnp.asarray(scale_backoff_factor).astype(self.dtype), grown)
    return scale, jnp.where(overflow | grow, 0, successes)
