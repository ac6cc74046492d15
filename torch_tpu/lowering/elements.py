"""What a kernel asks of the elements of an operand: their kind of number, and their sign."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def is_floating(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def is_complex(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def is_integer(x: Any) -> bool:
    """An integer type; bool is not one."""
    return jnp.issubdtype(x.dtype, jnp.integer)


def sign_bit(x: Any) -> Any:
    """True for negative floating numbers, -0.0 and NaN with the sign set."""
    # A TPU has no bits of a float64 (it is a pair of float32 there); rounding keeps the sign.
    return jnp.signbit(x.astype(jnp.float32) if x.dtype == jnp.float64 else x)


def modulus(z: Any) -> Any:
    """The absolute value of complex numbers, rounded alike in every program: gradients compare it with a maximum.

    XLA:CPU makes ``1 + r * r`` one rounding or two, as the program around it comes out; behind a minimum, always two.
    """
    x, y = jnp.abs(z.real), jnp.abs(z.imag)
    large, small = jnp.maximum(x, y), jnp.minimum(x, y)
    ratio = small / jnp.where(large == 0, 1, large)
    size = large * jnp.sqrt(1 + jnp.minimum(ratio * ratio, 1))
    return jnp.where(jnp.isinf(x) | jnp.isinf(y), jnp.inf, size)
