"""Arithmetic of elements with broadcasting: sums, products, division and its remainders, powers, bounds.

Comparison, logic, bits and selection are in ``comparison.py``; functions of one operand in ``unary.py``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import checks, complex_functions, dtypes
from torch_tpu.lowering.elements import is_complex, is_floating, is_integer, sign_bit
from torch_tpu.lowering.registry import Meta, Promotion, register

# Sums and products


@register("aten::add.Tensor", "aten::add.Scalar", promote=Promotion.DEFAULT)
def add(self: Any, other: Any, alpha: Any = 1) -> Any:
    if self.dtype == jnp.bool_:
        return self | (other & jnp.asarray(alpha, jnp.bool_))
    return self + alpha * other


@register("aten::sub.Tensor", "aten::sub.Scalar", promote=Promotion.DEFAULT)
def sub(self: Any, other: Any, alpha: Any = 1) -> Any:
    return self - alpha * other


@register("aten::rsub.Tensor", "aten::rsub.Scalar", promote=Promotion.DEFAULT)
def rsub(self: Any, other: Any, alpha: Any = 1) -> Any:
    return other - alpha * self


@register("aten::mul.Tensor", "aten::mul.Scalar", promote=Promotion.DEFAULT)
def mul(self: Any, other: Any) -> Any:
    return self & other if self.dtype == jnp.bool_ else self * other


@register("aten::addcmul", promote=Promotion.DEFAULT)
def addcmul(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return self + value * tensor1 * tensor2


@register("aten::addcdiv", promote=Promotion.DEFAULT)
def addcdiv(self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return self + quotient(value * tensor1, tensor2)


@register("aten::lerp.Tensor", "aten::lerp.Scalar", promote=Promotion.DEFAULT)
def lerp(self: Any, end: Any, weight: Any) -> Any:
    # Exact at both ends: weight 1 gives `end` whatever the rounding of the difference.
    change = end - self
    return jnp.where(abs(weight) < 0.5, self + weight * change, end - change * (1 - weight))


# Division


def quotient(a: Any, b: Any) -> Any:
    """``a / b``, rounded once.

    XLA takes a division by one number for all elements as a product with its reciprocal, which is rounded twice: most
    quotients by 127.5 would be a unit in the last place off, and what is quantized by them another integer. So the
    divisor depends on the element here, in name: it is the element's NaN where that is NaN. Half types are computed in
    float32, where the second rounding is far below their own.
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    shared = isinstance(b.size, int) and (b.size == 1 or b.shape != a.shape)
    if shared and a.dtype == b.dtype and a.dtype in (jnp.float32, jnp.float64):
        b = jnp.where(a != a, a, b)
    return a / b


def truncated_quotient(a: Any, b: Any) -> Any:
    return lax.div(*jnp.broadcast_arrays(a, b)) if is_integer(a) else jnp.trunc(a / b)


def c_remainder(a: Any, b: Any) -> Any:
    """C's ``fmod`` and ``%``: the sign of ``a``."""
    return lax.rem(*jnp.broadcast_arrays(a, b))


def floor_remainder(a: Any, b: Any) -> Any:
    """Python's ``%``: the sign of ``b``."""
    rest = c_remainder(a, b)
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger):
        return rest
    return jnp.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def floor_quotient(a: Any, b: Any) -> Any:
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger):
        return truncated_quotient(a, b)
    rest = c_remainder(a, b)
    crosses = (rest != 0) & ((b < 0) != (rest < 0))
    if is_integer(a):
        return truncated_quotient(a, b) - crosses.astype(a.dtype)
    # floor(a / b) is one too large where the quotient rounds up to an integer: start from the exact remainder.
    exact = (a - rest) / b - crosses.astype(a.dtype)
    nearest = jnp.floor(exact)
    nearest = jnp.where(exact - nearest > 0.5, nearest + 1, nearest)
    plain = a / b
    nearest = jnp.where(exact == 0, jnp.where(sign_bit(plain), -0.0, 0.0), nearest)
    return jnp.where(b == 0, plain, nearest)


@register("aten::div.Tensor", "aten::div.Scalar", promote=Promotion.INT_TO_FLOAT)
def div(self: Any, other: Any) -> Any:
    return quotient(self, other)


def _divisor(x: Any, of: Any) -> Any:
    """What ``of`` is divided by: an integer must not be zero, a bool (which promotion leaves alone) is a number."""
    x = jnp.asarray(x, of.dtype if isinstance(x, bool) else None)
    if is_integer(x):
        checks.require(x == 0, x, "ZeroDivisionError", RuntimeError)
    return x


@register("aten::div.Tensor_mode", "aten::div.Scalar_mode", promote=Promotion.DEFAULT, meta=True)
def div_mode(self: Any, other: Any, rounding_mode: str | None, meta: tuple[Meta, ...]) -> Any:
    if rounding_mode is None:
        wide = dtypes.compute_type(meta[0].dtype)
        return quotient(dtypes.cast(self, wide), dtypes.cast(other, wide))
    if rounding_mode == "trunc":
        return truncated_quotient(self, _divisor(other, self))
    if rounding_mode == "floor":
        return floor_quotient(self, _divisor(other, self))
    raise NotImplementedError(f"div: rounding_mode must be None, 'trunc' or 'floor', got {rounding_mode!r}")


@register("aten::floor_divide", "aten::floor_divide.Scalar", promote=Promotion.DEFAULT)
def floor_divide(self: Any, other: Any) -> Any:
    return floor_quotient(self, _divisor(other, self))


@register(
    "aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor", promote=Promotion.DEFAULT
)
def remainder(self: Any, other: Any) -> Any:
    return floor_remainder(self, _divisor(other, self))


@register("aten::fmod.Tensor", "aten::fmod.Scalar", promote=Promotion.DEFAULT)
def fmod(self: Any, other: Any) -> Any:
    return c_remainder(self, _divisor(other, self))


def _binary_gcd_step(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    a, b = pair
    return jnp.where(b == 0, a, b), jnp.where(b == 0, b, lax.rem(a, jnp.where(b == 0, 1, b)))


@register("aten::gcd", promote=Promotion.DEFAULT)
def gcd(self: Any, other: Any) -> Any:
    if not jnp.issubdtype(self.dtype, jnp.integer):
        raise NotImplementedError(f"gcd: expected integers, got {self.dtype}")
    a, b = jnp.broadcast_arrays(jnp.abs(self), jnp.abs(other))
    return lax.while_loop(lambda pair: jnp.any(pair[1] != 0), _binary_gcd_step, (a, b))[0]


@register("aten::lcm", promote=Promotion.DEFAULT)
def lcm(self: Any, other: Any) -> Any:
    common = gcd(self, other)
    return jnp.where(common == 0, 0, jnp.abs(truncated_quotient(self, jnp.where(common == 0, 1, common)) * other))


# Powers


def integer_power(base: Any, exponent: Any) -> Any:
    """Wrapping power by repeated squaring; a negative exponent gives 0, except for the bases 1 and -1."""

    def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        result, square, left = state
        return jnp.where((left & 1) == 1, result * square, result), square * square, left >> 1

    base, exponent = jnp.broadcast_arrays(base, exponent)
    left = jnp.maximum(exponent, 0)
    start = (jnp.ones_like(base), base, left)
    power = lax.while_loop(lambda state: jnp.any(state[2] != 0), step, start)[0]
    if jnp.issubdtype(base.dtype, jnp.unsignedinteger):
        return power
    odd_sign = jnp.where((exponent & 1) == 1, base, jnp.ones_like(base))
    return jnp.where(exponent >= 0, power, jnp.where(jnp.abs(base) == 1, odd_sign, 0))


def power(base: Any, exponent: Any) -> Any:
    if base.dtype == jnp.bool_:
        return base | ~exponent
    if is_integer(base):
        return integer_power(base, exponent)
    if not is_complex(base):
        return jnp.power(base, exponent)
    base, exponent = jnp.broadcast_arrays(base, exponent)
    safe = jnp.where(base == 0, 1, base)
    zero_power = jnp.where(exponent == 0, 1, jnp.where(exponent.real > 0, 0, jnp.nan)).astype(base.dtype)
    return jnp.where(base == 0, zero_power, _complex_power(safe, exponent))


def _complex_power(base: Any, exponent: Any) -> Any:
    """exp(exponent * log(base)) in float64: a rounding of the exponential's argument is the result's, times that
    argument. In real parts, since XLA:TPU has no complex128."""  # fmt: skip
    x, y, p, q = (v.astype(jnp.float64) for v in (base.real, base.imag, exponent.real, exponent.imag))
    modulus, angle = jnp.log(jnp.hypot(x, y)), jnp.arctan2(y, x)
    size, turn = jnp.exp(p * modulus - q * angle), p * angle + q * modulus
    real, imag = (part.astype(base.real.dtype) for part in (size * jnp.cos(turn), size * jnp.sin(turn)))
    return lax.complex(real, imag)


@register("aten::pow.Tensor_Tensor", "aten::pow.Scalar", promote=Promotion.DEFAULT)
def pow_tensor(self: Any, exponent: Any) -> Any:
    return power(self, exponent)


# ATen's own special cases; the values differ from a general power (sqrt(-inf) is NaN, not inf).
_KNOWN_POWERS = {
    0: jnp.ones_like,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: complex_functions.square_root,
    -0.5: lambda x: 1 / complex_functions.square_root(x),
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}


@register("aten::pow.Tensor_Scalar", meta=True, specialize={"exponent": tuple(_KNOWN_POWERS)})
def pow_scalar(self: Any, exponent: Any, meta: tuple[Meta, ...]) -> Any:
    wide = dtypes.compute_type(meta[0].dtype)
    self = dtypes.cast(self, wide)
    if isinstance(exponent, (int, float)):
        if exponent < 0 and is_integer(self):
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return _KNOWN_POWERS[exponent](self) if self.dtype != jnp.bool_ else power(self, jnp.asarray(bool(exponent)))
    return power(self, dtypes.cast(exponent, wide))


@register("aten::ldexp.Tensor", meta=True)
def ldexp(self: Any, other: Any, meta: tuple[Meta, ...]) -> Any:
    wide = dtypes.compute_type(meta[0].dtype)
    two = jnp.asarray(2, dtypes.to_jax(wide))
    return dtypes.cast(self, wide) * jnp.power(two, dtypes.cast(other, wide))


@register("aten::atan2", promote=Promotion.INT_TO_FLOAT)
def atan2(self: Any, other: Any) -> Any:
    return jnp.arctan2(self, other)


@register("aten::hypot", promote=Promotion.DEFAULT)
def hypot(self: Any, other: Any) -> Any:
    a, b = jnp.abs(self), jnp.abs(other)
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = small / jnp.where(large == 0, 1, large)
    result = large * jnp.sqrt(1 + ratio * ratio)
    return jnp.where((a == jnp.inf) | (b == jnp.inf), jnp.inf, result)


@register("aten::logaddexp", promote=Promotion.DEFAULT)
def logaddexp(self: Any, other: Any) -> Any:
    if is_complex(self):
        return log_of_sum(*jnp.broadcast_arrays(self, other))
    same_infinity = jnp.isinf(self) & (self == other)
    return jnp.where(same_infinity, self, jnp.maximum(self, other) + jnp.log1p(jnp.exp(-jnp.abs(self - other))))


def log_of_sum(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)) of complex numbers. The imaginary part is ATen's: within pi / 2 of that of the operand whose
    real part is greater (``x`` where they are equal), not within pi of 0."""
    y_leads = x.real < y.real
    low, high = jnp.where(y_leads, x, y), jnp.where(y_leads, y, x)
    same_infinity = jnp.isinf(low.real) & (low.real == high.real)
    regular = jnp.log1p(jnp.exp(low - high)) + high
    infinite = jnp.where(low.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
    nan = jnp.asarray(jnp.nan, x.real.dtype)
    nan = lax.complex(nan, nan)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), nan, jnp.where(same_infinity, infinite, regular))


@register("aten::logaddexp2", promote=Promotion.DEFAULT)
def logaddexp2(self: Any, other: Any) -> Any:
    same_infinity = jnp.isinf(self) & (self == other)
    tail = jnp.log1p(jnp.exp2(-jnp.abs(self - other))) * jnp.asarray(1.4426950408889634, self.dtype)
    return jnp.where(same_infinity, self, jnp.maximum(self, other) + tail)


@register("aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other", promote=Promotion.INT_TO_FLOAT)
def xlogy(self: Any, other: Any) -> Any:
    return jnp.where(jnp.isnan(other), jnp.nan, jnp.where(self == 0, 0, self * jnp.log(other)))


@register(
    "aten::special_xlog1py",
    "aten::special_xlog1py.self_scalar",
    "aten::special_xlog1py.other_scalar",
    promote=Promotion.INT_TO_FLOAT,
)
def xlog1py(self: Any, other: Any) -> Any:
    return jnp.where(jnp.isnan(other), jnp.nan, jnp.where(self == 0, 0, self * jnp.log1p(other)))


# Bounds


@register("aten::maximum", promote=Promotion.NO_OPMATH)
def maximum(self: Any, other: Any) -> Any:
    return jnp.maximum(self, other)


@register("aten::minimum", promote=Promotion.NO_OPMATH)
def minimum(self: Any, other: Any) -> Any:
    return jnp.minimum(self, other)


def _ignoring_nan(choose: Any, a: Any, b: Any) -> Any:
    if not is_floating(a):
        return choose(a, b)
    return jnp.where(jnp.isnan(a), b, jnp.where(jnp.isnan(b), a, choose(a, b)))


@register("aten::fmax", promote=Promotion.NO_OPMATH)
def fmax(self: Any, other: Any) -> Any:
    return _ignoring_nan(jnp.maximum, self, other)


@register("aten::fmin", promote=Promotion.NO_OPMATH)
def fmin(self: Any, other: Any) -> Any:
    return _ignoring_nan(jnp.minimum, self, other)


@register("aten::clamp", "aten::clamp.Tensor", promote=Promotion.NO_OPMATH)
def clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    # A NaN bound gives NaN, and min > max gives max, as in ATen.
    if min is not None:
        self = jnp.maximum(self, min)
    return self if max is None else jnp.minimum(self, max)


@register("aten::clamp_min", "aten::clamp_min.Tensor", promote=Promotion.NO_OPMATH)
def clamp_min(self: Any, min: Any) -> Any:
    return clamp(self, min)


@register("aten::clamp_max", "aten::clamp_max.Tensor", promote=Promotion.NO_OPMATH)
def clamp_max(self: Any, max: Any) -> Any:
    return clamp(self, None, max)


# Signs and neighbours


@register("aten::copysign.Tensor", "aten::copysign.Scalar", promote=Promotion.INT_TO_FLOAT)
def copysign(self: Any, other: Any) -> Any:
    return jnp.where(sign_bit(other), -jnp.abs(self), jnp.abs(self))


@register("aten::nextafter", promote=Promotion.NO_OPMATH)
def nextafter(self: Any, other: Any) -> Any:
    return lax.nextafter(*jnp.broadcast_arrays(self, other))


@register("aten::heaviside", promote=Promotion.NO_OPMATH)
def heaviside(self: Any, values: Any) -> Any:
    return jnp.where(self == 0, values, (self > 0).astype(self.dtype))


# Complex numbers from their parts


@register("aten::complex", promote=Promotion.DEFAULT)
def complex(real: Any, imag: Any) -> Any:
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@register("aten::polar", promote=Promotion.DEFAULT)
def polar(abs: Any, angle: Any) -> Any:
    return lax.complex(*jnp.broadcast_arrays(abs * jnp.cos(angle), abs * jnp.sin(angle)))


# Whole-tensor values, functional forms of fill_ and zero_


@register("aten::fill.Scalar", "aten::fill.Tensor")
def fill(self: Any, value: Any) -> Any:
    return jnp.broadcast_to(dtypes.cast(value, dtypes.to_torch(self.dtype)), self.shape)


@register("aten::zero")
def zero(self: jax.Array) -> Any:
    return jnp.zeros(self.shape, self.dtype)
