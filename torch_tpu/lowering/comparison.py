"""Comparison, logic, bits, selection by a condition, and predicates of one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from torch_tpu.lowering import checks, dtypes
from torch_tpu.lowering.elements import is_complex, is_floating, is_integer, sign_bit
from torch_tpu.lowering.registry import Promotion, register

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
for _name, _fn in COMPARISONS.items():
    register(f"aten::{_name}.Tensor", f"aten::{_name}.Scalar", promote=Promotion.NO_OPMATH)(_fn)


BITWISE: dict[str, Callable[[Any, Any], Any]] = {
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
}
for _name, _fn in BITWISE.items():
    _op = f"aten::bitwise_{_name}"
    register(f"{_op}.Tensor", f"{_op}.Scalar", f"{_op}.Scalar_Tensor", promote=Promotion.DEFAULT)(_fn)


@register("aten::bitwise_not")
def bitwise_not(self: Any) -> Any:
    return ~self


_SHIFTED = {"self": {torch.bool: torch.int64}}  # by a number; CPU has no shift of bool tensors by bool tensors


def _out_of_bits(amount: Any, bits: int) -> Any:
    return (amount < 0) | (amount >= bits)


@register(
    "aten::bitwise_left_shift.Tensor",
    "aten::bitwise_left_shift.Tensor_Scalar",
    "aten::bitwise_left_shift.Scalar_Tensor",
    "aten::__lshift__.Tensor",
    "aten::__lshift__.Scalar",
    promote=Promotion.DEFAULT,
    meta_types=_SHIFTED,
)
def left_shift(self: Any, other: Any) -> Any:
    if not is_integer(self):
        raise NotImplementedError(f"bitwise_left_shift: got {dtypes.to_torch(self.dtype)}, supported: integer types")
    bad = _out_of_bits(other, self.dtype.itemsize * 8)
    return jnp.where(bad, 0, self << jnp.where(bad, 0, other))


@register(
    "aten::bitwise_right_shift.Tensor",
    "aten::bitwise_right_shift.Tensor_Scalar",
    "aten::bitwise_right_shift.Scalar_Tensor",
    "aten::__rshift__.Tensor",
    "aten::__rshift__.Scalar",
    promote=Promotion.DEFAULT,
    meta_types=_SHIFTED,
)
def right_shift(self: Any, other: Any) -> Any:
    if not is_integer(self):
        raise NotImplementedError(f"bitwise_right_shift: got {dtypes.to_torch(self.dtype)}, supported: integer types")
    bad = _out_of_bits(other, self.dtype.itemsize * 8)
    every_bit = jnp.where(self < 0, -1, 0).astype(self.dtype)
    return jnp.where(bad, every_bit, self >> jnp.where(bad, 0, other))


# Logic: every type, non-zero is True


def truth(x: Any) -> Any:
    return dtypes.cast(x, torch.bool)


@register("aten::logical_and")
def logical_and(self: Any, other: Any) -> Any:
    return truth(self) & truth(other)


@register("aten::logical_or")
def logical_or(self: Any, other: Any) -> Any:
    return truth(self) | truth(other)


@register("aten::logical_xor")
def logical_xor(self: Any, other: Any) -> Any:
    return truth(self) ^ truth(other)


@register("aten::logical_not")
def logical_not(self: Any) -> Any:
    return ~truth(self)


@register(
    "aten::where.self", promote=Promotion.NO_OPMATH, own_types=("condition",),
    meta_types={"condition": {torch.uint8: torch.bool}},
)  # fmt: skip
def where(condition: Any, self: Any, other: Any) -> Any:
    return jnp.where(truth(condition), self, other)


# Predicates and signs of one element


@register("aten::isnan")
def isnan(self: Any) -> Any:
    return jnp.isnan(self) if is_floating(self) or is_complex(self) else jnp.zeros(self.shape, jnp.bool_)


@register("aten::isinf")
def isinf(self: Any) -> Any:
    return jnp.isinf(self) if is_floating(self) or is_complex(self) else jnp.zeros(self.shape, jnp.bool_)


@register("aten::isposinf")
def isposinf(self: Any) -> Any:
    return self == jnp.inf if is_floating(self) else jnp.zeros(self.shape, jnp.bool_)


@register("aten::isneginf")
def isneginf(self: Any) -> Any:
    return self == -jnp.inf if is_floating(self) else jnp.zeros(self.shape, jnp.bool_)


@register("aten::signbit")
def signbit(self: Any) -> Any:
    if is_floating(self):
        return sign_bit(self)
    return self < 0 if is_integer(self) else jnp.zeros(self.shape, jnp.bool_)


@register("aten::sign")
def sign(self: Any) -> Any:
    if self.dtype == jnp.bool_:
        return self
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)  # sign(NaN) is 0 in ATen


@register("aten::sgn", promote=Promotion.DEFAULT)
def sgn(self: Any) -> Any:
    if not is_complex(self):
        return sign(self)
    size = jnp.abs(self)
    return jnp.where(size == 0, 0, self / jnp.where(size == 0, 1, size))


def _replace_nonfinite(x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    bound = jnp.finfo(x.dtype)
    nan = 0 if nan is None else nan
    posinf = bound.max if posinf is None else posinf
    neginf = bound.min if neginf is None else neginf
    nan, posinf, neginf = (jnp.asarray(v).astype(x.dtype) for v in (nan, posinf, neginf))
    return jnp.where(jnp.isnan(x), nan, jnp.where(x == jnp.inf, posinf, jnp.where(x == -jnp.inf, neginf, x)))


@register("aten::nan_to_num")
def nan_to_num(self: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    if is_complex(self):
        parts = (_replace_nonfinite(part, nan, posinf, neginf) for part in (self.real, self.imag))
        return lax.complex(*parts)
    return _replace_nonfinite(self, nan, posinf, neginf) if is_floating(self) else self


@register("aten::_functional_assert_async.msg")
def functional_assert_async(self: Any, assert_msg: str, dep_token: Any) -> Any:
    """A false value is an error when the device is next waited for."""
    if self.size != 1:
        raise RuntimeError("Boolean value of Tensor with no values or more than one value is ambiguous")
    message = (assert_msg or "Assertion is failed").replace("{", "{{").replace("}", "}}")
    checks.require(self == 0, self, message, RuntimeError)
    return dep_token
