"""Arithmetic, rounding and comparison of elements, with broadcasting."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering.registry import Promotion, register


@register("aten::add.Tensor", "aten::add.Scalar", promote=Promotion.DEFAULT)
def add(self: Any, other: Any, alpha: Any = 1) -> Any:
    if self.dtype == jnp.bool_:
        return self | (other & jnp.asarray(alpha, jnp.bool_))
    return self + (other if isinstance(alpha, int) and alpha == 1 else alpha * other)


@register("aten::mul.Tensor", "aten::mul.Scalar", promote=Promotion.DEFAULT)
def mul(self: Any, other: Any) -> Any:
    return self & other if self.dtype == jnp.bool_ else self * other
