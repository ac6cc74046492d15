"""The functions of ``torch.special``: Bessel, Airy, incomplete gamma, zeta, normal distribution.

Where XLA has no function of its own, a smooth factor of it is a Chebyshev series (``chebyshev_tables.py``), and the
rest (logarithm, pole, oscillation, decay) is exact. Orthogonal polynomials are in ``polynomial.py``.
"""

from __future__ import annotations

import fractions
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy import special as jsp

from torch_tpu.lowering import chebyshev_tables as tables
from torch_tpu.lowering.registry import Promotion, register
from torch_tpu.lowering.unary import digamma


def chebyshev_series(coefficients: Sequence[float], t: Any) -> Any:
    """The series at ``t`` in [-1, 1], by Clenshaw's recurrence; terms below the type's rounding are left out."""
    least = max(map(abs, coefficients)) * float(jnp.finfo(t.dtype).eps) / 16
    terms = list(coefficients)
    while abs(terms[-1]) < least:
        terms.pop()
    later, last = jnp.zeros_like(t), jnp.zeros_like(t)
    for c in reversed(terms[1:]):
        later, last = 2 * t * later - last + c, later
    return t * later - last + terms[0]


def _unit(x: Any, low: float, high: float) -> Any:
    """[low, high] to [-1, 1]; what is outside, and not used, to its end."""
    return (2 * jnp.clip(x, low, high) - (low + high)) / (high - low)


def _series_on(coefficients: Sequence[float], x: Any, low: float, high: float) -> Any:
    return chebyshev_series(coefficients, _unit(x, low, high))


# Bessel functions of the first and second kind. |x| = 8 divides the power series' factor from Hankel's.


def _oscillation(p: Sequence[float], q: Sequence[float], order: int, x: Any) -> tuple[Any, Any]:
    """J and Y at x >= 8: sqrt(2 / (pi x)) (P cos - Q sin, P sin + Q cos) of x - (2 order + 1) pi / 4."""
    x = jnp.maximum(x, 8)
    inverse = 8 / x
    square = inverse * inverse
    big, small = _series_on(p, square, 0, 1), inverse * _series_on(q, square, 0, 1)
    # The phase by the addition theorem: subtracting it from a large x would round.
    sine, cosine = jnp.sin(x), jnp.cos(x)
    r = math.sqrt(0.5)
    c, s = (r * (cosine + sine), r * (sine - cosine)) if order == 0 else (r * (sine - cosine), -r * (sine + cosine))
    size = jnp.sqrt(2 / math.pi / x)
    return size * (big * c - small * s), size * (big * s + small * c)  # NaN at infinity, as in ATen


@register("aten::special_bessel_j0", promote=Promotion.INT_TO_FLOAT)
def bessel_j0(self: Any) -> Any:
    x = jnp.abs(self)
    near = _series_on(tables.J0, x * x, 0, 64)
    return jnp.where(x <= 8, near, _oscillation(tables.P0, tables.Q0, 0, x)[0])


@register("aten::special_bessel_j1", promote=Promotion.INT_TO_FLOAT)
def bessel_j1(self: Any) -> Any:
    x = jnp.abs(self)
    near = x * _series_on(tables.J1, x * x, 0, 64)
    far = _oscillation(tables.P1, tables.Q1, 1, x)[0]
    return jnp.where(self < 0, -1, 1) * jnp.where(x <= 8, near, far)


def _second_kind(x: Any, near: Any, far: Any) -> Any:
    """ATen's edges: -inf at 0, NaN below."""
    value = jnp.where(x <= 8, near, far)
    return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, value))


@register("aten::special_bessel_y0", promote=Promotion.INT_TO_FLOAT)
def bessel_y0(self: Any) -> Any:
    near = _series_on(tables.Y0, self * self, 0, 64) + (2 / math.pi) * jnp.log(self) * bessel_j0(self)
    return _second_kind(self, near, _oscillation(tables.P0, tables.Q0, 0, self)[1])


@register("aten::special_bessel_y1", promote=Promotion.INT_TO_FLOAT)
def bessel_y1(self: Any) -> Any:
    singular = (2 / math.pi) * (jnp.log(self) * bessel_j1(self) - 1 / self)
    near = self * _series_on(tables.Y1, self * self, 0, 64) + singular
    return _second_kind(self, near, _oscillation(tables.P1, tables.Q1, 1, self)[1])


@register("aten::special_spherical_bessel_j0", promote=Promotion.INT_TO_FLOAT)
def spherical_bessel_j0(x: Any) -> Any:
    safe = jnp.where(x == 0, 1, x)
    return jnp.where(jnp.isinf(x), 0, jnp.where(x == 0, 1, jnp.sin(safe) / safe))


# Modified Bessel functions. x = 2 divides the two forms of K.


@register("aten::special_i0e", promote=Promotion.INT_TO_FLOAT)
def i0e(self: Any) -> Any:
    return lax.bessel_i0e(self)


@register("aten::special_i1e", promote=Promotion.INT_TO_FLOAT)
def i1e(self: Any) -> Any:
    return lax.bessel_i1e(self)


@register("aten::special_modified_bessel_i0", promote=Promotion.INT_TO_FLOAT)
def modified_bessel_i0(self: Any) -> Any:
    return jnp.exp(jnp.abs(self)) * lax.bessel_i0e(self)


@register("aten::special_i1", "aten::special_modified_bessel_i1", promote=Promotion.INT_TO_FLOAT)
def modified_bessel_i1(self: Any) -> Any:
    return jnp.exp(jnp.abs(self)) * lax.bessel_i1e(self)


def _modified_second_kind(order: int, x: Any, *, scaled: bool) -> Any:
    """K, or exp(x) K."""
    if order == 0:
        near = _series_on(tables.K0, x * x, 0, 4) - jnp.log(x / 2) * modified_bessel_i0(x)
    else:
        near = _series_on(tables.K1, x * x, 0, 4) / x + jnp.log(x / 2) * modified_bessel_i1(x)
    large = jnp.maximum(x, 2)
    far = _series_on(tables.K1_TAIL if order else tables.K0_TAIL, 2 / large, 0, 1) / jnp.sqrt(large)
    value = jnp.where(x <= 2, near * jnp.exp(x) if scaled else near, far if scaled else far * jnp.exp(-large))
    return jnp.where(x == 0, jnp.inf, jnp.where(x < 0, jnp.nan, value))


def _declare_modified_second_kind(order: int, scaled: bool) -> None:
    name = f"aten::special_{'scaled_' if scaled else ''}modified_bessel_k{order}"
    register(name, promote=Promotion.INT_TO_FLOAT)(lambda x: _modified_second_kind(order, x, scaled=scaled))


for _order in (0, 1):
    for _scaled in (False, True):
        _declare_modified_second_kind(_order, _scaled)


# Airy. zeta = 2/3 |x|^(3/2) is the argument of the oscillation and of the decay, used where it is at least 4.

_AIRY_MIDDLE = 6 ** (2 / 3)


@register("aten::special_airy_ai", promote=Promotion.INT_TO_FLOAT)
def airy_ai(x: Any) -> Any:
    size = jnp.maximum(jnp.abs(x), _AIRY_MIDDLE)
    root = jnp.sqrt(size)
    zeta = size * root * (2 / 3)
    inverse = 4 / zeta
    fourth_root = jnp.sqrt(root)
    decay = jnp.exp(-zeta) * _series_on(tables.AIRY_DECAY, inverse, 0, 1) / fourth_root
    p = _series_on(tables.AIRY_P, inverse * inverse, 0, 1)
    q = inverse * _series_on(tables.AIRY_Q, inverse * inverse, 0, 1)
    phase = zeta + math.pi / 4
    wave = (p * jnp.sin(phase) - q * jnp.cos(phase)) / (math.sqrt(math.pi) * fourth_root)
    middle = _series_on(tables.AIRY, x, -_AIRY_MIDDLE, _AIRY_MIDDLE)
    value = jnp.where(jnp.abs(x) <= _AIRY_MIDDLE, middle, jnp.where(x > 0, decay, wave))
    return jnp.where(jnp.isfinite(x), value, jnp.nan)


# Error functions and the normal distribution


def scaled_erfc(x: Any) -> Any:
    """exp(x^2) erfc(x), by a series in (k - x) / (k + x) (Shepherd and Laframboise 1981)."""
    size = jnp.abs(x)
    # (size - k) / (size + k), which also holds for an infinite size
    series = chebyshev_series(tables.ERFCX, 1 - 2 * 3.75 / (size + 3.75)) / (1 + 2 * size)
    return jnp.where(x < 0, 2 * jnp.exp(size * size) - series, series)


@register("aten::special_erfcx", promote=Promotion.INT_TO_FLOAT)
def erfcx(self: Any) -> Any:
    return scaled_erfc(self)


@register("aten::special_log_ndtr", promote=Promotion.INT_TO_FLOAT)
def log_ndtr(self: Any) -> Any:
    t = self * math.sqrt(0.5)
    low = jnp.minimum(t, 0)
    lower = jnp.log(scaled_erfc(-low) / 2) - low * low
    return jnp.where(self < -1, lower, jnp.log1p(-lax.erfc(t) / 2))


@register("aten::special_ndtri", promote=Promotion.INT_TO_FLOAT)
def ndtri(self: Any) -> Any:
    return jsp.ndtri(self)


@register("aten::special_entr", promote=Promotion.INT_TO_FLOAT)
def entr(self: Any) -> Any:
    inside = jnp.where(self == 0, 0, -self * jnp.log(self))
    return jnp.where(self < 0, -jnp.inf, inside)


# Incomplete gamma and zeta


def _gamma_ratio(a: Any, x: Any, lower: bool) -> Any:
    """ATen's edges, the last line first: NaN below 0, then the limits at a = 0, x = 0, infinite a, infinite x."""
    a, x = jnp.broadcast_arrays(a, x)
    nothing, everything = (0.0, 1.0) if lower else (1.0, 0.0)
    regular = (a > 0) & (x > 0) & jnp.isfinite(a) & jnp.isfinite(x)
    value = jnp.where(regular, _regularized(jnp.where(regular, a, 1), jnp.where(regular, x, 1), lower), jnp.nan)
    value = jnp.where(jnp.isinf(x), everything, value)
    value = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, nothing), value)
    value = jnp.where(x == 0, nothing, value)
    value = jnp.where(a == 0, jnp.where(x > 0, everything, jnp.nan), value)
    return jnp.where((x < 0) | (a < 0), jnp.nan, value)


# Temme's expansion in 1/a (DLMF 8.12): coefficients of C_0 and C_1 in powers of eta, and from which a on it is used.
_TEMME = ((-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600), (-1 / 540, -1 / 288, 1 / 378))
_LARGE_A = 1e4


def _of_large_a(a: Any, x: Any, lower: bool) -> Any:
    """Where the series and the continued fraction of XLA need more terms than it takes."""
    a = jnp.maximum(a, _LARGE_A)
    mu = (x - a) / a
    half_square = jnp.maximum(mu - jnp.log1p(mu), 0)
    eta = jnp.sign(mu) * jnp.sqrt(2 * half_square)
    near = jnp.clip(eta, -0.1, 0.1)  # farther away the exponential is 0
    c0, c1 = (jnp.polyval(jnp.asarray(c[::-1], a.dtype), near) for c in _TEMME)
    rest = jnp.exp(-a * half_square) / jnp.sqrt(2 * math.pi * a) * (c0 + c1 / a)
    normal = lax.erfc((-eta if lower else eta) * jnp.sqrt(a / 2)) / 2
    return normal - rest if lower else normal + rest


def _regularized(a: Any, x: Any, lower: bool) -> Any:
    """In float64: the logarithm of x^a exp(-x) / gamma(a) is a small difference of large numbers."""
    wide_a, wide_x = a.astype(jnp.float64), x.astype(jnp.float64)
    large = wide_a > _LARGE_A
    usual = (lax.igamma if lower else lax.igammac)(jnp.where(large, 1, wide_a), jnp.where(large, 1, wide_x))
    return jnp.where(large, _of_large_a(wide_a, wide_x, lower), usual).astype(a.dtype)


@register("aten::igamma", promote=Promotion.DEFAULT)
def igamma(self: Any, other: Any) -> Any:
    return _gamma_ratio(self, other, lower=True)


@register("aten::igammac", promote=Promotion.DEFAULT)
def igammac(self: Any, other: Any) -> Any:
    return _gamma_ratio(self, other, lower=False)


@register(
    "aten::special_zeta", "aten::special_zeta.self_scalar", "aten::special_zeta.other_scalar",
    promote=Promotion.INT_TO_FLOAT,
)  # fmt: skip
def zeta(self: Any, other: Any) -> Any:
    return hurwitz_zeta(*jnp.broadcast_arrays(self, other))


def hurwitz_zeta(x: Any, q: Any) -> Any:
    """The sum of (q + k)^-x over k >= 0. ATen's edges: infinity at the poles x = 1 and q = 0, -1, ...; NaN for x < 1,
    and for q < 0 unless x is an integer.

    For negative q, with -m < q < 1 - m, the m negative terms are (-1)^x times the sum from ``ceil(q) - q`` up to, not
    including, ``1 - q``, and the sum from ``q + m`` on is left.
    """
    regular = (x > 1) & (q > 0)
    value = _sum_of_powers(jnp.where(regular, x, 2), jnp.where(regular, q, 1))
    reflected = (x > 1) & (q < 0) & (q != jnp.floor(q)) & (x == jnp.floor(x))
    # In float64, as ATen has it: for odd x the sums cancel near q = -m + 1/2.
    s = jnp.where(reflected, x, 2).astype(jnp.float64)
    negative = jnp.where(reflected, q, -0.5).astype(jnp.float64)
    starts = jnp.stack([negative - jnp.floor(negative), jnp.ceil(negative) - negative, 1 - negative])
    up, down, beyond = _sum_of_powers(jnp.broadcast_to(s, starts.shape), starts)
    sign = jnp.where(jnp.remainder(s, 2) == 0, 1, -1)
    value = jnp.where(regular, value, jnp.where(reflected, (up + sign * (down - beyond)).astype(x.dtype), jnp.nan))
    pole = (x == 1) | (x > 1) & (q <= 0) & (q == jnp.floor(q))
    return jnp.where(pole, jnp.inf, value)


def _bernoulli(count: int) -> list[float]:
    """B_2k / (2k)! for k = 1 to ``count``: every other coefficient of x / (exp(x) - 1)."""
    c = [fractions.Fraction(1)]
    for n in range(1, 2 * count + 1):
        c.append(-sum((c[k] / math.factorial(n + 1 - k) for k in range(n)), fractions.Fraction(0)))
    return [float(v) for v in c[2::2]]


_TERMS, _BERNOULLI = 10, _bernoulli(12)


def _sum_of_powers(s: Any, q: Any) -> Any:
    """The sum of (q + k)^-s over k >= 0, for s > 1 and q > 0: ten terms, and Euler-Maclaurin for the rest.

    A loop, so that a program holds the power twice and not ten times: ``lax.zeta`` in float64 took XLA:TPU gigabytes.
    """
    head = lax.fori_loop(0, _TERMS, lambda k, total: total + (q + k.astype(q.dtype)) ** -s, jnp.zeros_like(q + s))
    start = q + _TERMS
    power = start**-s
    term = s * power / start
    tail = start * power / (s - 1) + power / 2
    for k, coefficient in enumerate(_BERNOULLI, 1):
        tail += coefficient * term
        term *= (s + 2 * k - 1) / start * ((s + 2 * k) / start)
    return head + jnp.where(power == 0, 0, tail)


@register("aten::polygamma", promote=Promotion.INT_TO_FLOAT)
def polygamma(n: int, self: Any) -> Any:
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n, got {n}")
    if n == 0:
        return digamma(self)
    if n == 1:
        return _trigamma(self)
    sign = 1 if n % 2 else -1
    return sign * math.exp(math.lgamma(n + 1)) * hurwitz_zeta(jnp.full_like(self, n + 1), self)


def _trigamma(x: Any) -> Any:
    """By the Hurwitz zeta function, and for x < 1/2 by reflection: psi'(x) + psi'(1 - x) = (pi / sin(pi x))^2."""
    reflected = x < 0.5
    value = _sum_of_powers(jnp.asarray(2, x.dtype), jnp.where(reflected, 1 - x, x))
    sine = jnp.sin(math.pi * x)
    return jnp.where(reflected, (math.pi / sine) ** 2 - value, value)


@register("aten::_standard_gamma_grad", promote=Promotion.DEFAULT)
def standard_gamma_grad(self: Any, output: Any) -> Any:
    return lax.random_gamma_grad(self, output)  # pyright: ignore[reportCallIssue]


@register("aten::_dirichlet_grad", promote=Promotion.DEFAULT)
def dirichlet_grad(x: Any, alpha: Any, total: Any) -> Any:
    """How a sample ``x`` of Beta(alpha, total - alpha) moves with alpha, divided by 1 - x.

    The distribution function is kept: the derivative of the incomplete beta function I_x(a, b) by a, over its density.
    From the smaller end, I is x^a (1 - x)^b / (a B(a, b)) sum_n (a + b)_n / (a + 1)_n x^n (DLMF 8.17.8); the
    logarithmic derivatives of its terms are sums of 1 / (a + b + k) and 1 / (a + 1 + k).
    """
    eps = float(jnp.finfo(x.dtype).eps)
    x, a, total = (t.astype(jnp.float64) for t in jnp.broadcast_arrays(x, alpha, total))  # the slope cancels
    b = total - a
    upper = x * total > a  # there by I_x(a, b) = 1 - I_{1-x}(b, a)
    p, y = jnp.where(upper, b, a), jnp.where(upper, 1 - x, x)
    slope = jnp.log(x) - lax.digamma(a) + lax.digamma(total) - jnp.where(upper, 0, 1 / a)

    def more(state: tuple[Any, ...]) -> Any:
        _, term, moved, sums, by_a = state
        return jnp.any((term > eps * sums) | (term * jnp.abs(moved) > eps * jnp.abs(by_a)))

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        n, term, moved, sums, by_a = state
        term = term * y * (total + n) / (p + 1 + n)
        moved = moved + 1 / (total + n) - jnp.where(upper, 0, 1 / (a + 1 + n))
        return n + 1, term, moved, sums + term, by_a + term * moved

    one = jnp.ones_like(x)
    inside = (x > 0) & (x < 1)
    y = jnp.where(inside, y, 0)
    start = (jnp.zeros((), x.dtype), one, 0 * one, one, 0 * one)
    _, _, _, sums, by_a = lax.while_loop(more, step, start)
    # I over the density is y (1 - y) / p times the series; the whole is divided by 1 - x.
    size = jnp.where(upper, x * y / (b * (1 - x)), -x / a)
    return size * (slope * sums + by_a)
