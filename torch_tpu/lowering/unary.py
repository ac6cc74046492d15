"""Functions of one operand: exponentials, trigonometry, rounding, gamma and error functions, complex parts.

Sigmoid and tanh are in ``activation.py``; the functions of ``torch.special`` in ``special.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering import complex_functions
from torch_tpu.lowering.elements import is_complex, is_floating, modulus, sign_bit
from torch_tpu.lowering.registry import Promotion, register


def _sinc(x: Any) -> Any:
    scaled = math.pi * x
    return jnp.where(x == 0, 1, jnp.sin(scaled) / jnp.where(x == 0, 1, scaled))


def digamma(x: Any) -> Any:
    # ATen: a pole of -inf at +0 and inf at -0, and NaN at the negative integers and at -inf.
    at_zero = jnp.where(sign_bit(x), jnp.inf, -jnp.inf)
    no_value = (x < 0) & (x == jnp.floor(x))
    regular = lax.digamma(jnp.where(no_value | (x == 0), 1, x))
    return jnp.where(x == 0, at_zero, jnp.where(no_value, jnp.nan, regular))


def _bessel_i0(x: Any) -> Any:
    return jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x)


def _erfinv(x: Any) -> Any:
    """XLA's, which loses digits in 1 - x^2 near the ends, with a step of Newton's method from the nearer end."""
    size = jnp.abs(x)
    inside = size < 1
    size = jnp.where(inside, size, 0)
    value = lax.erf_inv(size)
    excess = jnp.where(size < 0.5, lax.erf(value) - size, (1 - size) - lax.erfc(value))
    value -= excess * (math.sqrt(math.pi) / 2) * jnp.exp(value * value)
    return jnp.where(inside, jnp.where(sign_bit(x), -value, value), lax.erf_inv(x))


_OF_ANY: dict[str, Callable[[Any], Any]] = {
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "sqrt": jnp.sqrt,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
}

# Evaluated in a floating (or complex) type: integers become the default floating type.
FLOATING: dict[str, Callable[[Any], Any]] = {
    **{name: complex_functions.of_any(name, real) for name, real in _OF_ANY.items()},
    "expm1": jnp.expm1,
    "log1p": jnp.log1p,
    "rsqrt": lambda x: 1 / complex_functions.square_root(x),
    "reciprocal": lambda x: 1 / x,
    "sinc": _sinc,
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": _erfinv,
    "lgamma": lax.lgamma,
    "digamma": digamma,
    "i0": _bessel_i0,
}
for _name, _fn in FLOATING.items():
    register(f"aten::{_name}", promote=Promotion.INT_TO_FLOAT)(_fn)


def _of_floats_only(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Rounding leaves integers as they are."""
    return lambda x: fn(x) if is_floating(x) else x


ROUNDING: dict[str, Callable[[Any], Any]] = {
    "floor": jnp.floor,
    "ceil": jnp.ceil,
    "trunc": jnp.trunc,
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
}
for _name, _fn in ROUNDING.items():
    register(f"aten::{_name}", promote=Promotion.DEFAULT)(_of_floats_only(_fn))


@register("aten::round.decimals", promote=Promotion.DEFAULT)
def round_decimals(self: Any, decimals: int) -> Any:
    if not is_floating(self):
        return self
    if decimals == 0:
        return ROUNDING["round"](self)
    unit = jnp.asarray(10.0 ** abs(decimals), self.dtype)
    return ROUNDING["round"](self * unit) / unit if decimals > 0 else ROUNDING["round"](self / unit) * unit


@register("aten::frac", promote=Promotion.DEFAULT)
def frac(self: Any) -> Any:
    return self - jnp.trunc(self)


@register("aten::abs")
def absolute(self: Any) -> Any:
    return modulus(self) if is_complex(self) else jnp.abs(self)


@register("aten::neg")
def neg(self: Any) -> Any:
    return -self


@register("aten::frexp.Tensor")
def frexp(self: Any) -> Any:
    wide = self.astype(jnp.promote_types(self.dtype, jnp.float32))
    if wide.dtype == jnp.float64:
        return lax.platform_dependent(wide, tpu=_frexp_by_scaling, default=_frexp_of_bits)
    return _frexp_of_bits(wide)


def _frexp_of_bits(x: Any) -> tuple[Any, Any]:
    """From the number's bits: arithmetic may flush subnormal numbers to zero."""
    kind, fraction = (jnp.int32, 23) if x.dtype == jnp.float32 else (jnp.int64, 52)
    bias = jnp.finfo(x.dtype).maxexp - 1
    bits = lax.bitcast_convert_type(x, kind)
    digits, biased = bits & ((1 << fraction) - 1), (bits >> fraction) & (2 * bias + 1)
    length = bits.dtype.itemsize * 8 - lax.clz(digits)  # of a subnormal number's digits
    digits = jnp.where(biased == 0, digits << jnp.maximum(fraction + 1 - length, 0), digits)
    exponent = jnp.where(biased == 0, length - fraction + 1 - bias, biased - bias + 1)
    half = (digits & ((1 << fraction) - 1)) | jnp.asarray((bias - 1) << fraction, kind)
    mantissa = lax.bitcast_convert_type(half | (bits & jnp.iinfo(kind).min), x.dtype)
    regular = (bits & jnp.iinfo(kind).max != 0) & (biased != 2 * bias + 1)
    return jnp.where(regular, mantissa, x), jnp.where(regular, exponent, 0).astype(jnp.int32)


def _frexp_by_scaling(x: Any) -> tuple[Any, Any]:
    """A TPU has no bits of a float64: exact products with powers of two bring the number into [0.5, 1)."""
    regular = jnp.isfinite(x) & (x != 0)
    size, exponent = jnp.where(regular, jnp.abs(x), 0.5), jnp.zeros(x.shape, jnp.int32)
    for step in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1):
        large, small = size >= 2.0 ** (step - 1), size < 2.0**-step
        scale = jnp.where(large, 2.0**-step, jnp.where(small, 2.0**step, 1.0))
        size *= scale
        exponent += jnp.where(large, step, jnp.where(small, -step, 0)).astype(jnp.int32)
    return jnp.where(regular, jnp.where(sign_bit(x), -size, size), x), exponent


@register("aten::mvlgamma", promote=Promotion.INT_TO_FLOAT)
def mvlgamma(self: Any, p: int) -> Any:
    if p < 1:
        raise RuntimeError(f"p has to be greater than or equal to 1, got {p}")
    return sum(lax.lgamma(self - i / 2) for i in range(p)) + p * (p - 1) / 4 * math.log(math.pi)


# Complex parts


@register("aten::angle", promote=Promotion.INT_TO_FLOAT)
def angle(self: Any) -> Any:
    if is_complex(self):
        return jnp.arctan2(self.imag, self.real)
    return jnp.where(jnp.isnan(self), jnp.nan, jnp.where(self < 0, math.pi, 0))


@register("aten::_conj_physical")
def conj_physical(self: Any) -> Any:
    return jnp.conj(self) if is_complex(self) else self
