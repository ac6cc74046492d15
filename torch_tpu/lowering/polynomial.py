"""Orthogonal polynomials of ``torch.special``: the polynomial of degree ``n`` at ``x``, by recurrence.

Degrees are values, so the recurrence is a loop up to the largest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.registry import Promotion, register


class _Family(NamedTuple):
    """``first(x)`` is the polynomial of degree 1; ``following(k, x, p, q)`` that of degree k + 1 from p_k, p_(k-1)."""

    first: Callable[[Any], Any]
    following: Callable[[Any, Any, Any, Any], Any]


def _chebyshev(k: Any, x: Any, p: Any, q: Any) -> Any:
    return 2 * x * p - q


FAMILIES: dict[str, _Family] = {
    "chebyshev_polynomial_t": _Family(lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": _Family(lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": _Family(lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": _Family(lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": _Family(lambda x: 2 * x, lambda k, x, p, q: 2 * (x * p - k * q)),
    "hermite_polynomial_he": _Family(lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_polynomial_l": _Family(lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": _Family(lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}


def _evaluate(family: _Family, x: Any, n: Any) -> Any:
    """0 for a negative degree, as in ATen; a fractional degree is truncated."""
    x, n = jnp.broadcast_arrays(x, jnp.trunc(n))
    if x.size == 0:
        return x
    one = jnp.ones_like(x)

    def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        k, p, q = state
        going = k < n
        return k + 1, jnp.where(going, family.following(k, x, p, q), p), jnp.where(going, p, q)

    start = (jnp.ones((), x.dtype), jnp.where(n >= 1, family.first(x), one), one)
    highest = jnp.max(jnp.where(jnp.isfinite(n), n, 0))
    value = lax.while_loop(lambda state: state[0] < highest, step, start)[1]
    return jnp.where(n < 0, 0, value)


def _declare(name: str, family: _Family, *, shifted: bool = False) -> None:
    op = f"aten::special_{'shifted_' if shifted else ''}{name}"

    @register(op, f"{op}.x_scalar", f"{op}.n_scalar", promote=Promotion.INT_TO_FLOAT)
    def polynomial(x: Any, n: Any) -> Any:
        return _evaluate(family, 2 * x - 1 if shifted else x, n)


for _name, _family in FAMILIES.items():
    _declare(_name, _family)
    if _name.startswith("chebyshev"):
        _declare(_name, _family, shifted=True)
