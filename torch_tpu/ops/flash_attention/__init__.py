"""Attention without a matrix of scores on TPUs; README.md says when it is used and what it saves."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from torch_tpu.ops import chips
from torch_tpu.ops.flash_attention import sizes


def pays(query: Any, key: Any, value: Any, bias: Any, dropout_p: Any) -> bool:
    """Whether programs traced now are for a TPU, and XLA's own attention would write its scores to HBM.

    The kernels have no mask that is added, and no dropout; float32 in one bfloat16 pass would not be PyTorch's.
    """
    where = chips.across()
    if where is None or not (isinstance(dropout_p, (int, float)) and dropout_p == 0):
        return False
    if bias is not None and (bias.dtype != jnp.bool_ or bias.ndim > 4):
        return False
    if query.dtype != jnp.bfloat16 or query.ndim != 4 or query.shape[-1] != value.shape[-1]:
        return False
    shape = (*query.shape, *key.shape, *(() if bias is None else bias.shape))
    if not all(isinstance(n, int) for n in shape) or 0 in shape:
        return False
    chip, split = where
    batch, heads, length, size = query.shape
    if split is not None:
        of_batch, of_heads = split.parts(split.batch), split.parts(split.others)
        if batch % of_batch or key.shape[1] % of_heads:
            return False
        batch, heads = batch // of_batch, heads // of_heads
    return sizes.pays(batch * heads, length, key.shape[2], size, chip)


class _Place(NamedTuple):
    """What a call takes from where it is: tiles, the scale as a number or an array, devices that share it."""

    tiles: sizes.Tiles
    scale: Any
    split: chips.Split | None

    def call(self, fn: Any, mask: Any, *operands: Any) -> Any:
        """``fn(scale, mask, *operands)``; over devices each has its part of the batch (dimension 0) and heads (1)."""
        if self.split is None:
            return fn(self.scale, mask, *operands)
        batch, heads = tuple(self.split.batch) or None, self.split.others or None
        spec, of_mask = PartitionSpec(batch, heads), PartitionSpec()
        if mask is not None:
            of_mask = PartitionSpec(batch if mask.shape[0] > 1 else None, heads if mask.shape[1] > 1 else None)
        mapped = self.split.mapped(fn, (PartitionSpec(), of_mask, *[spec] * len(operands)), spec)
        return mapped(jnp.asarray(self.scale, jnp.float32), mask, *operands)


def forward(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: Any) -> tuple[Any, Any]:
    """(attention, log-sum-exp), as ``_scaled_dot_product_fused_attention_overrideable`` has them."""
    from torch_tpu.ops.flash_attention import kernel  # Pallas takes half a second to import

    place = _place(query, key, scale)

    def run(scale: Any, mask: Any, query: Any, key: Any, value: Any) -> Any:
        return kernel.with_logsumexp(query, key, value, mask, tiles=place.tiles, is_causal=is_causal, scale=scale)

    return place.call(run, _of_four(mask), query, key, value)


def backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: Any
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The gradients of query, key and value. The forward pass runs again: it is less than half of the backward's."""
    from torch_tpu.ops.flash_attention import kernel

    place = _place(query, key, scale)

    def run(scale: Any, mask: Any, grad: Any, query: Any, key: Any, value: Any) -> Any:
        return kernel.gradients(grad, query, key, value, mask, tiles=place.tiles, is_causal=is_causal, scale=scale)

    return place.call(run, _of_four(mask), grad, query, key, value)


def _of_four(mask: Any) -> Any:
    return None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


def _place(query: Any, key: Any, scale: Any) -> _Place:
    chip, split = chips.across() or ("v6e", None)
    size = query.shape[-1]
    tiles = sizes.tiles(query.shape[2], key.shape[2], size, query.dtype.itemsize, chip)
    return _Place(tiles, 1 / math.sqrt(size) if scale is None else scale, split)
