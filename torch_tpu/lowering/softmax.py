"""softmax and log_softmax with their gradients. Half types are evaluated in float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.gather_scatter import at_least_1d, widen_half
from torch_tpu.lowering.registry import register


def _check_dim(x: Any, dim: int) -> None:
    if not -x.ndim <= dim < x.ndim:
        raise IndexError(f"Dimension out of range (expected to be in [{-x.ndim}, {x.ndim - 1}], but got {dim})")


def _exponentials(x: Any, dim: int) -> tuple[Any, Any, Any]:
    """Of x >= 1-d: the distance from the maximum, its exponential, and the sum of that."""
    _check_dim(x, dim)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise NotImplementedError(f"softmax: not implemented for {x.dtype}, only for floating types")
    apart = x - jnp.max(x, dim, keepdims=True, initial=-jnp.inf)
    exp = jnp.exp(apart)
    return apart, exp, jnp.sum(exp, dim, dtype=exp.dtype, keepdims=True)


@register("aten::_softmax")
def softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    _, exp, total = _exponentials(at_least_1d(widen_half(self)), dim)
    return (exp / total).reshape(self.shape)


# PyTorch's meta kernel subtracts, which it refuses for bool even where there are no elements.
@register("aten::_log_softmax", own_shapes=True)
def log_softmax(self: Any, dim: int, half_to_float: bool) -> Any:
    if self.size == 0:
        _check_dim(self, dim)
        return self.astype(jnp.float32) if half_to_float else self
    apart, _, total = _exponentials(at_least_1d(widen_half(self)), dim)
    result = (apart - jnp.log(total)).reshape(self.shape)
    return result if half_to_float else result.astype(self.dtype)


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


@register("aten::_masked_softmax")
def masked_softmax(self: Any, mask: Any, dim: int | None = None, mask_type: int | None = None) -> Any:
    """softmax of what the mask does not hide; NaN where it hides everything.

    The mask of type 0 is over the last two dimensions (L, L) of (B, H, L, L), of type 1 over (B, L), of type 2 whole.
    """
    if mask.dtype != jnp.bool_:
        raise RuntimeError("Mask should be a boolean tensor")
    if mask_type is None:
        raise RuntimeError("Mask Type should be defined")
    if mask_type not in (0, 1, 2):
        raise RuntimeError(
            "Mask Type should be 0 (src_mask) or 1 (src_key_padding_mask), or 2 (default_mask), "
            f"got mask_type {mask_type}"
        )
    if mask_type == 2 and mask.shape != self.shape:
        raise RuntimeError("For mask_type == 2 mask shape should match input shape")
    if mask_type == 1:
        mask = mask.reshape(mask.shape[0], *(1,) * (self.ndim - 2), mask.shape[-1])
    x, mask = at_least_1d(widen_half(self)), at_least_1d(jnp.broadcast_to(mask, self.shape))
    _, exp, total = _exponentials(jnp.where(mask, -jnp.inf, x), -1 if dim is None else dim)
    return (exp / total).reshape(self.shape).astype(self.dtype)


@register("aten::_masked_softmax_backward")
def masked_softmax_backward(grad_output: Any, output: Any, mask: Any, dim: int | None = None) -> Any:
    if mask.shape != grad_output.shape:
        raise RuntimeError("Mask shape should match grad shape")
    hidden = at_least_1d(mask)
    grad, out = (jnp.where(hidden, 0, at_least_1d(widen_half(t))) for t in (grad_output, output))
    product = grad * out
    total = jnp.sum(product, -1 if dim is None else dim, dtype=product.dtype, keepdims=True)
    return (product - out * total).reshape(output.shape).astype(grad_output.dtype)
