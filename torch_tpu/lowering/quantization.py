"""Fake quantization, and products with weights of 8 and 4 bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering.checks import require
from torch_tpu.lowering.matmul import product
from torch_tpu.lowering.registry import register


def _check_range(quant_min: int, quant_max: int) -> None:
    if quant_min > quant_max:
        raise RuntimeError("`quant_min` should be less than or equal to `quant_max`.")


def _check_points(zero_point: Any, quant_min: int, quant_max: int) -> None:
    require(
        (zero_point < quant_min) | (zero_point > quant_max), zero_point,
        "`zero_point` must be between `quant_min` and `quant_max`, got {value}.", RuntimeError,
    )  # fmt: skip


def _check_floating(x: Any) -> None:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise NotImplementedError(f"fake_quantize is not implemented for {x.dtype}; supported: floating types")


def _wide(x: Any) -> Any:
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def _steps(x: Any, scale: Any, zero_point: Any) -> Any:
    """The integer (as a float) that each element is rounded to, before it is clamped; NaN is the lowest."""
    inverse = (1 / scale.astype(jnp.float32)).astype(x.dtype)
    if jnp.issubdtype(zero_point.dtype, jnp.floating):
        steps = jnp.round(x * inverse + zero_point.astype(x.dtype))
    else:
        steps = jnp.round(x * inverse) + zero_point.astype(x.dtype)
    return jnp.where(jnp.isnan(x), -jnp.inf, steps)


def _fake(x: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> tuple[Any, Any]:
    """Rounded to steps and back to values; which elements were in range."""
    steps = _steps(_wide(x), scale, zero_point)
    kept = jnp.clip(steps, quant_min, quant_max).astype(jnp.float32)
    values = (kept - zero_point.astype(jnp.float32)) * scale.astype(jnp.float32)
    return values, (steps >= quant_min) & (steps <= quant_max)


@register("aten::fake_quantize_per_tensor_affine_cachemask", operands=["zero_point"])
def per_tensor_cachemask(self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Any:
    _check_floating(self)
    _check_range(quant_min, quant_max)
    zero_point = jnp.asarray(zero_point)
    _check_points(zero_point, quant_min, quant_max)
    return _fake(self, jnp.asarray(scale), zero_point, quant_min, quant_max)


@register("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_cachemask_tensor_qparams(
    self: Any, scale: Any, zero_point: Any, fake_quant_enabled: Any, quant_min: int, quant_max: int
) -> Any:
    _check_floating(self)
    _check_range(quant_min, quant_max)
    values, inside = _fake(self, scale.reshape(-1)[0], zero_point.reshape(-1)[0], quant_min, quant_max)
    on = fake_quant_enabled.reshape(-1)[0] != 0
    return jnp.where(on, values.astype(self.dtype), self), inside | ~on


def _along(x: Any, channel: Any, axis: int) -> Any:
    """One value a channel, in a shape that broadcasts with ``x``."""
    return channel.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])


def _check_channels(x: Any, scale: Any, zero_point: Any, axis: int) -> None:
    if scale.ndim != 1 or zero_point.ndim != 1:
        raise RuntimeError("scale and zero point should be 1-D tensors")
    if scale.shape != zero_point.shape:
        raise RuntimeError("scale and zero-point need to have the same dimensions")
    if not 0 <= axis < x.ndim:
        raise RuntimeError("`axis` must be between 0 and number of dimensions of input")
    if scale.shape[0] != x.shape[axis]:
        raise RuntimeError("dimensions of scale and zero-point are not consistent with input tensor")


@register("aten::fake_quantize_per_channel_affine_cachemask")
def per_channel_cachemask(self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int) -> Any:
    _check_floating(self)
    if scale.dtype not in (jnp.float32, jnp.bfloat16):
        raise RuntimeError(f"Scale must be Float or BFloat16, found {scale.dtype}")
    if zero_point.dtype not in (jnp.int32, jnp.float32, jnp.float16):
        raise RuntimeError(f"Zero-point must be Int32, Float or Half, found {zero_point.dtype}")
    _check_range(quant_min, quant_max)
    _check_channels(self, scale, zero_point, axis)
    if zero_point.dtype == jnp.int32:
        _check_points(zero_point, quant_min, quant_max)
    return _fake(self, _along(self, scale, axis), _along(self, zero_point, axis), quant_min, quant_max)


# Learnable scales and zero points ------------------------------------------------------------------------------


def _whole(zero_point: Any, quant_min: int, quant_max: int) -> Any:
    """A learnable zero point as the step that it stands for."""
    return jnp.clip(jnp.round(zero_point.astype(jnp.float32)), quant_min, quant_max).astype(jnp.int32)


@register("aten::_fake_quantize_learnable_per_tensor_affine")
def learnable_per_tensor(
    self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, grad_factor: Any = 1.0
) -> Any:
    _check_floating(self)
    _check_range(quant_min, quant_max)
    point = _whole(zero_point.reshape(-1)[0], quant_min, quant_max)
    return _fake(self, scale.reshape(-1)[0], point, quant_min, quant_max)[0].astype(self.dtype)


@register("aten::_fake_quantize_learnable_per_channel_affine")
def learnable_per_channel(
    self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int, grad_factor: Any = 1.0
) -> Any:
    _check_floating(self)
    _check_range(quant_min, quant_max)
    _check_channels(self, scale, zero_point, axis)
    point = _along(self, _whole(zero_point, quant_min, quant_max), axis)
    return _fake(self, _along(self, scale, axis), point, quant_min, quant_max)[0].astype(self.dtype)


def _learnable_gradients(
    grad: Any, x: Any, scale: Any, point: Any, quant_min: int, quant_max: int, factor: Any
) -> tuple[Any, Any, Any]:
    """By element: the gradient of x, and what it adds to those of scale and zero point."""
    wide, grad, scale = _wide(x), grad.astype(_wide(x).dtype), scale.astype(_wide(x).dtype)
    # The sum with the zero point is what is rounded here: it decides halves otherwise than the forward function.
    steps = _steps(wide, scale, point.astype(wide.dtype))
    inside = (steps >= quant_min) & (steps <= quant_max)
    bound = jnp.where(steps < quant_min, quant_min, quant_max) - point
    inner = ((jnp.where(inside, steps, 0) - point) * scale - wide) / scale
    of_scale = jnp.where(inside, inner, bound.astype(inner.dtype)) * grad * factor
    of_point = jnp.where(inside, 0, -scale * grad) * factor
    return jnp.where(inside, grad, 0), of_scale, of_point


@register("aten::_fake_quantize_learnable_per_tensor_affine_backward")
def learnable_per_tensor_backward(
    grad: Any, self: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int, grad_factor: Any = 1.0
) -> Any:
    if self.size == 0:
        return self, scale, zero_point
    # Halves are rounded up here and to the even one in the forward function, in PyTorch.
    moved = zero_point.reshape(-1)[0].astype(jnp.float32) + 0.5
    point = jnp.clip(moved, quant_min, quant_max).astype(jnp.int32)
    of_x, of_scale, of_point = _learnable_gradients(
        grad, self, scale.reshape(-1)[0], point, quant_min, quant_max, grad_factor
    )
    return (
        of_x.astype(self.dtype),
        jnp.sum(of_scale).reshape(1).astype(self.dtype),
        jnp.sum(of_point).reshape(1).astype(self.dtype),
    )


@register("aten::_fake_quantize_learnable_per_channel_affine_backward")
def learnable_per_channel_backward(
    grad: Any, self: Any, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int,
    grad_factor: Any = 1.0,
) -> Any:  # fmt: skip
    _check_channels(self, scale, zero_point, axis)
    if self.size == 0:
        return self, scale, zero_point
    point = _along(self, _whole(zero_point, quant_min, quant_max), axis)
    of_x, of_scale, of_point = _learnable_gradients(
        grad, self, _along(self, scale, axis), point, quant_min, quant_max, grad_factor
    )
    others = tuple(d for d in range(self.ndim) if d != axis % self.ndim)
    return (
        of_x.astype(self.dtype),
        jnp.sum(of_scale, others).astype(self.dtype),
        jnp.sum(of_point, others).astype(self.dtype),
    )


# Weights of 8 and 4 bits ---------------------------------------------------------------------------------------


@register("aten::_weight_int8pack_mm", precision=True)
def weight_int8pack_mm(self: Any, mat2: Any, scales: Any) -> Any:
    """``self`` times int8 rows, each of a scale."""
    if self.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise RuntimeError(f"_weight_int8pack_mm: expect A to be a floating type of at most 32 bits, got {self.dtype}")
    if mat2.dtype != jnp.int8:
        raise RuntimeError(f"_weight_int8pack_mm: expect B to be int8, got {mat2.dtype}")
    result = product(self.astype(jnp.float32), mat2.T.astype(jnp.float32))
    return result * scales.reshape(1, -1).astype(jnp.float32)


def _halves(packed: Any, columns: int) -> Any:
    """Bytes as two numbers each, the lower half first: [rows, columns] in 0..15."""
    both = jnp.stack([packed & 15, packed >> 4], -1)
    return both.reshape(-1, columns)


def _grouped_weight(steps: Any, group: int, scales: Any, zeros: Any) -> Any:
    """(steps - 8) * scale + zero, in groups of columns; scales and zeros are [groups, rows]."""
    rows, columns = steps.shape
    if columns % group or scales.shape != (columns // group, rows):
        raise RuntimeError(f"int4 weight of {rows} rows and {columns} columns: scales of shape {tuple(scales.shape)}")
    grouped = steps.reshape(rows, columns // group, group).astype(jnp.float32) - 8
    scales, zeros = (x.T[:, :, None].astype(jnp.float32) for x in (scales, zeros))
    return (grouped * scales + zeros).reshape(rows, columns)


@register("aten::_convert_weight_to_int4pack_for_cpu", own_shapes=True)
def convert_weight_to_int4pack_for_cpu(self: Any, innerKTiles: int) -> Any:
    """int32 [n, k] in 0..15 -> uint8 [n, k / 2]. The order in the bytes is the backend's own; here: as they come."""
    if self.dtype != jnp.int32 or self.ndim != 2:
        raise RuntimeError(f"_convert_weight_to_int4pack_for_cpu: expects a 2-D int32 tensor, got {self.dtype}")
    if self.shape[1] % 2:
        raise RuntimeError("_convert_weight_to_int4pack_for_cpu: the number of columns must be even")
    pairs = self.reshape(self.shape[0], -1, 2).astype(jnp.uint8)
    return (pairs[..., 0] & 15) | (pairs[..., 1] << 4)


@register("aten::_weight_int4pack_mm_for_cpu", own_shapes=True, precision=True)
def weight_int4pack_mm_for_cpu(self: Any, mat2: Any, qGroupSize: int, qScaleAndZeros: Any) -> Any:
    if mat2.dtype != jnp.uint8 or mat2.shape[1] * 2 != self.shape[1]:
        raise RuntimeError(
            f"_weight_int4pack_mm_for_cpu: operands {list(self.shape)} and {mat2.dtype}{list(mat2.shape)} do not fit"
        )
    weight = _grouped_weight(_halves(mat2, self.shape[1]), qGroupSize, qScaleAndZeros[..., 0], qScaleAndZeros[..., 1])
    return product(self.astype(jnp.float32), weight.T).astype(self.dtype)


@register("aten::_convert_weight_to_int4pack")
def convert_weight_to_int4pack(self: Any, innerKTiles: int) -> Any:
    """uint8 [n, k / 2], the earlier number in the upper half -> int32 in CUDA's shape; the order is as they come."""
    n, half = self.shape
    words = self.reshape(n, half // 4, 4).astype(jnp.uint32)
    packed = words[..., 0] | (words[..., 1] << 8) | (words[..., 2] << 16) | (words[..., 3] << 24)
    return packed.astype(jnp.int32).reshape(n // 8, half * 2 // (innerKTiles * 16), 32, innerKTiles // 2)


def _int4_steps(packed: Any, columns: int) -> Any:
    words = packed.astype(jnp.uint32).reshape(-1, columns // 8)
    steps = [(words >> (8 * byte + shift)) & 15 for byte in range(4) for shift in (4, 0)]
    return jnp.stack(steps, -1).reshape(-1, columns)


@register("aten::_weight_int4pack_mm", own_shapes=True, precision=True)
def weight_int4pack_mm(self: Any, mat2: Any, qGroupSize: int, qScaleAndZeros: Any) -> Any:
    steps = _int4_steps(mat2, self.shape[1])
    weight = _grouped_weight(steps, qGroupSize, qScaleAndZeros[..., 0], qScaleAndZeros[..., 1])
    return product(self.astype(jnp.float32), weight.T).astype(self.dtype)
