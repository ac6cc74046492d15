"""softmax and log_softmax with their gradients. Half types are evaluated in float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.gather_scatter import at_least_1d, widen_half
from torch_tpu.lowering.registry import register


def _exponentials(x: Any, dim: int) -> tuple[Any, Any, Any]:
    """Of x >= 1-d: the distance from the maximum, its exponential, and the sum of that."""
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"Dimension out of range (expected to be in [{-x.ndim}, {x.ndim - 1}], but got {dim})")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise NotImplementedError(f"softmax: not implemented for {x.dtype}, only for floating types")
    apart = x - jnp.max(x, dim, keepdims=True, initial=-jnp.inf)
    exp = jnp.exp(apart)
    return apart, exp, jnp.sum(exp, dim, dtype=exp.dtype, keepdims=True)


@register("aten::_softmax")
def softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    _, exp, total = _exponentials(at_least_1d(widen_half(self)), dim)
    return (exp / total).reshape(self.shape)


@register("aten::_log_softmax")
def log_softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    apart, _, total = _exponentials(at_least_1d(widen_half(self)), dim)
    return (apart - jnp.log(total)).reshape(self.shape)


@register("aten::_safe_softmax")
def safe_softmax(self: Any, dim: int, dtype: Any = None) -> Any:
    """softmax that is zero for a row of -inf, not NaN."""
    x = at_least_1d(widen_half(self if dtype is None else dtypes.cast(self, dtype)))
    masked = jnp.all(x == -jnp.inf, dim, keepdims=True)
    _, exp, total = _exponentials(jnp.where(masked, 0, x), dim)
    return jnp.where(masked, 0, exp / total).reshape(self.shape)


@register("aten::_softmax_backward_data")
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    grad, out = at_least_1d(widen_half(grad_output)), at_least_1d(widen_half(output))
    product = grad * out
    return (product - out * jnp.sum(product, dim, dtype=product.dtype, keepdims=True)).reshape(output.shape)


@register("aten::_log_softmax_backward_data")
def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    grad, out = at_least_1d(widen_half(grad_output)), at_least_1d(widen_half(output))
    total = jnp.sum(grad, dim, dtype=grad.dtype, keepdims=True)
    return (grad - jnp.exp(out) * total).reshape(output.shape)
