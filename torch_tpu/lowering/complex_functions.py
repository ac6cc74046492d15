"""Exponential, logarithm, root and (hyperbolic) trigonometry of complex numbers, with C99's special values.

XLA's own are right for finite numbers off the branch cuts. At infinities, NaN and signed zeros its formulas lose a
part, and on a cut the side; here those values follow Annex G of C99, as PyTorch's do. A circular function is the
hyperbolic one of the number turned by a quarter: sin z = -i sinh(iz).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.elements import is_complex, sign_bit

Function = Callable[[Any], Any]


def _turned(z: Any) -> Any:
    """iz"""
    return lax.complex(-z.imag, z.real)


def _turned_back(z: Any) -> Any:
    """-iz"""
    return lax.complex(z.imag, -z.real)


def _signed(value: Any, like: Any) -> Any:
    """The modulus of ``value`` with the sign of ``like``; NaN has no modulus and stays."""
    return jnp.where(sign_bit(like), -1, 1) * jnp.abs(value)


def sqrt(z: Any) -> Any:
    value, x, y = jnp.sqrt(z), z.real, z.imag
    lost = jnp.isinf(x) & jnp.isnan(y)
    real = jnp.where(jnp.isinf(y) | (lost & (x > 0)), jnp.inf, value.real)
    imag = jnp.where(jnp.isinf(y), y, jnp.where(lost & (x < 0), jnp.inf, _signed(value.imag, y)))
    return lax.complex(real, imag)


def log(z: Any) -> Any:
    infinite = jnp.isinf(z.real) | jnp.isinf(z.imag)
    return lax.complex(jnp.where(infinite, jnp.inf, jnp.log(z).real), jnp.arctan2(z.imag, z.real))


def log2(z: Any) -> Any:
    return _scaled(log(z), 1 / math.log(2))


def log10(z: Any) -> Any:
    return _scaled(log(z), 1 / math.log(10))


def exp(z: Any) -> Any:
    value, x, y = jnp.exp(z), z.real, z.imag
    # With a modulus of zero the angle says nothing; with an infinite one an angle of no value leaves the real part.
    lost = ~jnp.isfinite(y)
    real = jnp.where(y == 0, jnp.exp(x), jnp.where(lost & (x == jnp.inf), jnp.inf, value.real))
    imag = jnp.where(y == 0, y, value.imag)
    nothing = lost & (x == -jnp.inf)
    return lax.complex(jnp.where(nothing, 0, real), jnp.where(nothing, 0, imag))


def exp2(z: Any) -> Any:
    return exp(_scaled(z, math.log(2)))


def _scaled(z: Any, by: float) -> Any:
    """Part by part: the product of two complex numbers makes NaN of infinity times the other's zero."""
    return lax.complex(z.real * by, z.imag * by)


def _sinh(value: Any, z: Any) -> Any:
    """(sinh x cos y, cosh x sin y)"""
    x, y = z.real, z.imag
    lost = ~jnp.isfinite(y)
    real = jnp.where(x == 0, x * jnp.cos(y), jnp.where(y == 0, jnp.sinh(x), value.real))
    real = jnp.where(lost & ((x == 0) | jnp.isinf(x)), x, real)
    return lax.complex(real, jnp.where(y == 0, y, value.imag))


def _cosh(value: Any, z: Any) -> Any:
    """(cosh x cos y, sinh x sin y)"""
    x, y = z.real, z.imag
    lost = ~jnp.isfinite(y)
    real = jnp.where(lost & jnp.isinf(x), jnp.inf, jnp.where(y == 0, jnp.cosh(x), value.real))
    imag = jnp.where(x == 0, x * jnp.sin(y), jnp.where(y == 0, y * jnp.sign(x), value.imag))
    zero = (lost & (x == 0)) | (jnp.isnan(x) & (y == 0))
    return lax.complex(real, jnp.where(zero, 0, imag))


def _tanh(value: Any, z: Any) -> Any:
    x, y = z.real, z.imag
    return lax.complex(jnp.where(x == 0, x, value.real), jnp.where(y == 0, y, value.imag))


def _asinh(value: Any, z: Any) -> Any:
    x, y = z.real, z.imag
    imag = jnp.where(jnp.isnan(x) & (y == 0), y, _signed(value.imag, y))
    return lax.complex(_signed(value.real, x), imag)


def _atanh(value: Any, z: Any) -> Any:
    x, y = z.real, z.imag
    real = jnp.where(jnp.isnan(x), jnp.where(jnp.isinf(y), 0, jnp.nan), _signed(value.real, x))
    real = jnp.where((x == 0) & jnp.isnan(y), x, real)
    quarter = _signed(jnp.asarray(math.pi / 2, y.dtype), y)
    imag = jnp.where(jnp.isnan(y) | (jnp.isnan(x) & ~jnp.isinf(y)), jnp.nan, _signed(value.imag, y))
    return lax.complex(real, jnp.where(jnp.isinf(y), quarter, imag))


def acos(z: Any) -> Any:
    value, x, y = jnp.arccos(z), z.real, z.imag
    real = jnp.where((x == 0) & jnp.isnan(y), math.pi / 2, value.real)
    return lax.complex(real, _signed(value.imag, -y))


def acosh(z: Any) -> Any:
    value, x, y = jnp.arccosh(z), z.real, z.imag
    imag = jnp.where((x == 0) & jnp.isnan(y), math.pi / 2, _signed(value.imag, y))
    return lax.complex(value.real, imag)


def _hyperbolic(known: Function, fix: Callable[[Any, Any], Any]) -> Function:
    return lambda z: fix(known(z), z)


def _circular(known: Function, fix: Callable[[Any, Any], Any]) -> Function:
    return lambda z: _turned_back(fix(_turned(known(z)), _turned(z)))


FUNCTIONS: dict[str, Function] = {
    "sqrt": sqrt, "log": log, "log2": log2, "log10": log10, "exp": exp, "exp2": exp2, "acos": acos, "acosh": acosh,
    "sinh": _hyperbolic(jnp.sinh, _sinh), "sin": _circular(jnp.sin, _sinh),
    "cosh": _hyperbolic(jnp.cosh, _cosh), "cos": lambda z: _cosh(jnp.cos(z), _turned(z)),
    "tanh": _hyperbolic(jnp.tanh, _tanh), "tan": _circular(jnp.tan, _tanh),
    "asinh": _hyperbolic(jnp.arcsinh, _asinh), "asin": _circular(jnp.arcsin, _asinh),
    "atanh": _hyperbolic(jnp.arctanh, _atanh), "atan": _circular(jnp.arctan, _atanh),
}  # fmt: skip


def of_any(name: str, real: Function) -> Function:
    """``real`` of real numbers, and the function of that name of complex ones."""
    known = FUNCTIONS[name]
    return lambda x: known(x) if is_complex(x) else real(x)


square_root, exponential = of_any("sqrt", jnp.sqrt), of_any("exp", jnp.exp)
