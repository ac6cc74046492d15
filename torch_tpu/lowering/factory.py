"""Tensors from numbers: arange, linspace, logspace, eye, full. Shapes come from PyTorch's meta kernel."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.registry import Meta, register


def _full(value: Any, meta: tuple[Meta, ...]) -> Any:
    return jnp.broadcast_to(dtypes.cast(jnp.asarray(value), meta[0].dtype), meta[0].shape)


@register("aten::full", meta=True)
def full(size: Any, fill_value: Any, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _full(fill_value, meta)


@register("aten::full_like", meta=True)
def full_like(self: Any, fill_value: Any, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _full(fill_value, meta)


@register("aten::scalar_tensor", meta=True)
def scalar_tensor(s: Any, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return _full(s, meta)


@register("aten::eye", meta=True)
def eye(n: int, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return jnp.eye(*meta[0].shape, dtype=dtypes.to_jax(meta[0].dtype))


@register("aten::eye.m", meta=True)
def eye_m(n: int, m: int, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return eye(n, meta=meta)


@register("aten::arange.start_step", "aten::range.step", meta=True)
def arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    """Evaluated in ATen's accumulation type: int64, or float64 for floating results of every width."""
    kind = jnp.float64 if meta[0].dtype.is_floating_point else jnp.int64
    start, step = (dtypes.cast(jnp.asarray(v), dtypes.to_torch(kind)) for v in (start, step))
    return start + lax.iota(kind, meta[0].shape[0]) * step


@register("aten::arange", meta=True)
def arange_end(end: Any, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return arange(0, end, meta=meta)


@register("aten::arange.start", "aten::range", meta=True)
def arange_start(start: Any, end: Any, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return arange(start, end, meta=meta)


def linspace_of(start: Any, end: Any, steps: int, dtype: torch.dtype) -> Any:
    """Steps from both ends, so that both are exact and the whole is symmetric. For an integer result the ends are
    truncated first, and the step is a real number: the places are float64."""
    kind = dtypes.compute_type(dtype)
    start, end = (dtypes.cast(jnp.asarray(v), kind) for v in (start, end))
    if dtypes.is_integral(kind):
        start, end = start.astype(jnp.float64), end.astype(jnp.float64)
    if steps == 1:
        return start.reshape(1)
    place = jnp.arange(steps, dtype=jnp.int32)
    # XLA would multiply by the rounded inverse of a constant, and 49 steps of 48.99999 / 49 truncate to other integers.
    count = lax.optimization_barrier(jnp.asarray(steps - 1, start.dtype))
    step = (end - start) / count
    return jnp.where(place < steps // 2, start + step * place, end - step * (steps - 1 - place))


LINSPACE = ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")


@register(*(f"aten::linspace{overload}" for overload in LINSPACE), meta=True)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, meta: tuple[Meta, ...]) -> Any:
    return dtypes.cast(linspace_of(start, end, steps, meta[0].dtype), meta[0].dtype)


@register(*(f"aten::logspace{overload}" for overload in LINSPACE), meta=True)
def logspace(
    start: Any, end: Any, steps: int, base: Any = 10.0, *, dtype: Any = None, meta: tuple[Meta, ...]
) -> Any:  # fmt: skip
    exponents = linspace_of(start, end, steps, meta[0].dtype)
    return dtypes.cast(jnp.asarray(base).astype(exponents.dtype) ** exponents, meta[0].dtype)
