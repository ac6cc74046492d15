"""Activation functions and their gradients.

Floating scalars (slopes, thresholds) are operands: a new value is not a new program.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import complex_functions, dtypes
from torch_tpu.lowering.elements import is_complex
from torch_tpu.lowering.registry import Promotion, register


def conj(x: Any) -> Any:
    return jnp.conj(x) if is_complex(x) else x


def sigmoid_of(x: Any) -> Any:
    return 1 / (1 + complex_functions.exponential(-x)) if is_complex(x) else lax.logistic(x)


def _cast_like(x: Any, *numbers: Any) -> tuple[Any, ...]:
    return tuple(dtypes.cast(n, dtypes.to_torch(x.dtype)) for n in numbers)


# Sigmoid and tanh


@register("aten::sigmoid", promote=Promotion.INT_TO_FLOAT)
def sigmoid(self: Any) -> Any:
    return sigmoid_of(self)


@register("aten::sigmoid_backward", promote=Promotion.DEFAULT)
def sigmoid_backward(grad_output: Any, output: Any) -> Any:
    return grad_output * conj((1 - output) * output)


_tanh = complex_functions.of_any("tanh", jnp.tanh)


@register("aten::tanh", promote=Promotion.INT_TO_FLOAT)
def tanh(self: Any) -> Any:
    return _tanh(self)


@register("aten::tanh_backward", promote=Promotion.DEFAULT)
def tanh_backward(grad_output: Any, output: Any) -> Any:
    return grad_output * conj(1 - output * output)


@register("aten::log_sigmoid_forward", promote=Promotion.DEFAULT)
def log_sigmoid_forward(self: Any) -> Any:
    buffer = jnp.exp(-jnp.abs(self))
    return jnp.minimum(self, 0) - jnp.log1p(buffer), buffer


@register("aten::log_sigmoid_backward", promote=Promotion.DEFAULT)
def log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any) -> Any:
    # `buffer` is exp(-|self|), rounded to self's type; computing it again is cheaper than reading it.
    return grad_output * lax.logistic(-self)


@register("aten::logit", promote=Promotion.INT_TO_FLOAT)
def logit(self: Any, eps: Any = None) -> Any:
    if eps is not None:
        (eps,) = _cast_like(self, eps)
        self = jnp.where(self < eps, eps, jnp.where(self > 1 - eps, 1 - eps, self))  # eps may exceed 1 - eps
    return jnp.log(self / (1 - self))


@register("aten::logit_backward", promote=Promotion.DEFAULT)
def logit_backward(grad_output: Any, self: Any, eps: Any = None) -> Any:
    (low,) = (jnp.zeros((), self.dtype),) if eps is None else _cast_like(self, eps)
    outside = (self < low) | (self > 1 - low)
    return jnp.where(outside, jnp.nan if eps is None else 0, grad_output / (self * (1 - self)))


# Rectifiers


@register("aten::relu", promote=Promotion.NO_OPMATH)
def relu(self: Any) -> Any:
    return jnp.maximum(self, 0)


@register("aten::threshold", promote=Promotion.NO_OPMATH, own_types=("threshold", "value"))
def threshold(self: Any, threshold: Any, value: Any) -> Any:
    threshold, value = _cast_like(self, threshold, value)
    return jnp.where(self <= threshold, value, self)


@register("aten::threshold_backward", promote=Promotion.NO_OPMATH, own_types=("threshold",))
def threshold_backward(grad_output: Any, self: Any, threshold: Any) -> Any:
    return jnp.where(self <= _cast_like(self, threshold)[0], 0, grad_output)


@register("aten::hardtanh", promote=Promotion.NO_OPMATH, own_types=("min_val", "max_val"))
def hardtanh(self: Any, min_val: Any = -1, max_val: Any = 1) -> Any:
    low, high = _cast_like(self, min_val, max_val)
    return jnp.minimum(jnp.maximum(self, low), high)


@register("aten::hardtanh_backward", promote=Promotion.NO_OPMATH)
def hardtanh_backward(grad_output: Any, self: Any, min_val: Any, max_val: Any) -> Any:
    return jnp.where((self <= min_val) | (self >= max_val), 0, grad_output)


@register("aten::leaky_relu", promote=Promotion.DEFAULT)
def leaky_relu(self: Any, negative_slope: Any = 0.01) -> Any:
    return jnp.where(self > 0, self, self * negative_slope)


@register("aten::leaky_relu_backward", promote=Promotion.DEFAULT)
def leaky_relu_backward(grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool) -> Any:
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@register("aten::_prelu_kernel", promote=Promotion.DEFAULT)
def prelu(self: Any, weight: Any) -> Any:
    return jnp.where(self > 0, self, weight * self)


@register("aten::_prelu_kernel_backward", promote=Promotion.DEFAULT)
def prelu_backward(grad_output: Any, self: Any, weight: Any) -> Any:
    positive = self > 0
    return jnp.where(positive, grad_output, weight * grad_output), jnp.where(positive, 0, self * grad_output)


# The parameters' defaults are 1/8 and 1/3; the caller gives them as numbers then.
@register("aten::rrelu_with_noise_functional", promote=Promotion.DEFAULT, rng=True)
def rrelu_with_noise(
    self: Any, noise: Any, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, *, key: Any
) -> Any:
    if not training:
        return leaky_relu(self, (lower + upper) / 2), noise
    slope = lower + (upper - lower) * jax.random.uniform(key, self.shape, self.dtype)
    noise = jnp.where(self <= 0, slope, 1)
    return self * noise, noise


@register("aten::rrelu_with_noise_backward", promote=Promotion.DEFAULT)
def rrelu_with_noise_backward(
    grad_output: Any, self: Any, noise: Any, lower: Any, upper: Any, training: bool, self_is_result: bool
) -> Any:
    if training:
        return noise * grad_output
    return leaky_relu_backward(grad_output, self, (lower + upper) / 2, self_is_result)


# Exponential units


@register("aten::elu", promote=Promotion.DEFAULT)
def elu(self: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return jnp.where(self <= 0, jnp.expm1(self * input_scale) * (alpha * scale), self * scale)


@register("aten::elu_backward", promote=Promotion.DEFAULT)
def elu_backward(
    grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Any
) -> Any:
    x = self_or_result
    growth = x + alpha * scale if is_result else alpha * scale * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad_output * input_scale * growth, grad_output * scale)


@register("aten::celu", promote=Promotion.DEFAULT, own_types=["alpha"], specialize={"alpha": (0,)})
def celu(self: Any, alpha: Any = 1.0) -> Any:
    if isinstance(alpha, (int, float)) and alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return elu(self, alpha, jnp.ones((), self.dtype), 1 / alpha)


@register("aten::softplus", promote=Promotion.DEFAULT)
def softplus(self: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    scaled = self * beta
    return jnp.where(scaled > threshold, self, jnp.log1p(jnp.exp(scaled)) / beta)


@register("aten::softplus_backward", promote=Promotion.DEFAULT)
def softplus_backward(grad_output: Any, self: Any, beta: Any, threshold: Any) -> Any:
    scaled = self * beta
    return jnp.where(scaled > threshold, grad_output, grad_output * lax.logistic(scaled))


# Smooth gates. silu_backward and mish_backward have a composite form too; ATen's own devices override it.


@register("aten::silu", promote=Promotion.DEFAULT)
def silu(self: Any) -> Any:
    return self / (1 + complex_functions.exponential(-self))


@register("aten::silu_backward", promote=Promotion.DEFAULT)
def silu_backward(grad_output: Any, self: Any) -> Any:
    gate = sigmoid_of(self)
    return grad_output * conj(gate * (1 + self * (1 - gate)))


def _tanh_softplus(x: Any) -> Any:
    return jnp.tanh(jnp.logaddexp(x, jnp.zeros((), x.dtype)))


@register("aten::mish", promote=Promotion.DEFAULT)
def mish(self: Any) -> Any:
    return self * _tanh_softplus(self)


@register("aten::mish_backward", promote=Promotion.DEFAULT)
def mish_backward(grad_output: Any, self: Any) -> Any:
    gate = _tanh_softplus(self)
    return grad_output * (gate + self * lax.logistic(self) * (1 - gate * gate))


def _gelu_tanh_argument(x: Any) -> tuple[Any, Any]:
    """The argument of tanh in GELU's tanh form, and its derivative."""
    rate, cubic = math.sqrt(2 / math.pi), 0.044715
    return rate * (x + cubic * x * x * x), rate * (1 + 3 * cubic * x * x)


def _check_approximation(op: str, approximate: str) -> None:
    if approximate not in ("none", "tanh"):
        raise NotImplementedError(f"{op}: approximate must be 'none' or 'tanh', got {approximate!r}")


@register("aten::gelu", promote=Promotion.DEFAULT)
def gelu(self: Any, approximate: str = "none") -> Any:
    _check_approximation("gelu", approximate)
    if approximate == "tanh":
        argument = _gelu_tanh_argument(self)[0]
        return self * lax.platform_dependent(
            argument, tpu=lambda u: lax.logistic(2 * u), default=lambda u: 0.5 * (1 + jnp.tanh(u))
        )
    return self * _normal_cdf(self)


def _normal_cdf(x: Any) -> Any:
    """Probability that a standard normal variable is below ``x``.

    XLA:TPU computes a product, an activation and the product that reads it as one fusion, without the memory between,
    if the activation has a quotient in it (logistic, erfc), and not otherwise (tanh, erf). On CPU erfc takes 2.4 times
    as long as erf.
    """
    return 0.5 * lax.platform_dependent(
        x * math.sqrt(0.5), tpu=lambda u: lax.erfc(-u), default=lambda u: 1 + lax.erf(u)
    )


@register("aten::gelu_backward", promote=Promotion.DEFAULT)
def gelu_backward(grad_output: Any, self: Any, approximate: str = "none") -> Any:
    _check_approximation("gelu_backward", approximate)
    if approximate == "tanh":
        # In logistics: (1 + tanh u) / 2 is logistic(2u), and 1 - tanh(u)^2 would lose all digits where tanh is near 1.
        argument, slope = _gelu_tanh_argument(self)
        gate = lax.logistic(2 * argument)
        return grad_output * (gate + 2 * self * gate * lax.logistic(-2 * argument) * slope)
    cumulative = _normal_cdf(self)
    density = jnp.exp(-0.5 * self * self) * (1 / math.sqrt(2 * math.pi))
    return grad_output * (cumulative + self * density)


# Piecewise linear gates


@register("aten::hardsigmoid", promote=Promotion.DEFAULT)
def hardsigmoid(self: Any) -> Any:
    return jnp.minimum(jnp.maximum(self + 3, 0), 6) / 6


@register("aten::hardsigmoid_backward", promote=Promotion.DEFAULT)
def hardsigmoid_backward(grad_output: Any, self: Any) -> Any:
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@register("aten::hardswish", promote=Promotion.DEFAULT)
def hardswish(self: Any) -> Any:
    return self * jnp.minimum(jnp.maximum(self + 3, 0), 6) / 6


@register("aten::hardswish_backward", promote=Promotion.DEFAULT)
def hardswish_backward(grad_output: Any, self: Any) -> Any:
    middle = grad_output * (self / 3 + 0.5)
    return jnp.where(self <= -3, 0, jnp.where(self < 3, middle, grad_output))


@register("aten::hardshrink", promote=Promotion.NO_OPMATH)
def hardshrink(self: Any, lambd: Any = 0.5) -> Any:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


@register("aten::hardshrink_backward", "aten::softshrink_backward", promote=Promotion.NO_OPMATH)
def shrink_backward(grad: Any, self: Any, lambd: Any) -> Any:
    return jnp.where((self >= -lambd) & (self <= lambd), 0, grad)


@register("aten::softshrink", promote=Promotion.DEFAULT)
def softshrink(self: Any, lambd: Any = 0.5) -> Any:
    # `self * 0` keeps NaN, which fails both comparisons.
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


# Gated linear units


def _glu(x: Any, dim: int) -> Any:
    value, gate = jnp.split(x, 2, axis=dim)
    return value * lax.logistic(gate)


def _glu_backward(grad: Any, x: Any, dim: int) -> Any:
    value, gate = jnp.split(x, 2, axis=dim)
    gate = lax.logistic(gate)
    return jnp.concatenate([grad * gate, grad * value * gate * (1 - gate)], axis=dim)


@register("aten::glu", promote=Promotion.DEFAULT)
def glu(self: Any, dim: int = -1) -> Any:
    return _glu(self, dim)


@register("aten::glu_backward", promote=Promotion.DEFAULT)
def glu_backward(grad_output: Any, self: Any, dim: int) -> Any:
    return _glu_backward(grad_output, self, dim)


@register("aten::glu_jvp", promote=Promotion.DEFAULT)
def glu_jvp(glu: Any, x: Any, dx: Any, dim: int) -> Any:
    return jax.jvp(lambda v: _glu(v, dim), (x,), (dx,))[1]


@register("aten::glu_backward_jvp", promote=Promotion.DEFAULT)
def glu_backward_jvp(grad_x: Any, grad_glu: Any, x: Any, dgrad_glu: Any, dx: Any, dim: int) -> Any:
    return jax.jvp(lambda g, v: _glu_backward(g, v, dim), (grad_glu, x), (dgrad_glu, dx))[1]
