"""Embedding tables: lookup, bags (sum, mean, max) and their gradients."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering.checks import index_in_range, require
from torch_tpu.lowering.gather_scatter import (
    lowest,
    scatter_elements,
    scatter_rows,
    take_rows,
    widen_half,
)
from torch_tpu.lowering.registry import Meta, register

SUM, MEAN, MAX = 0, 1, 2


def _rows(weight: Any, indices: Any, what: str) -> Any:
    return take_rows(weight, index_in_range(indices, weight.shape[0], what, negative=False), 0)


@register("aten::embedding")
def embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    return _rows(weight, indices, "embedding")


def _divide_by_frequency(rows: Any, indices: Any, num_weights: int) -> Any:
    count = scatter_rows(jnp.zeros(num_weights, jnp.int32), 0, indices, jnp.ones(indices.shape, jnp.int32), "sum")
    return rows / take_rows(count, indices, 0).astype(rows.dtype)[:, None]


@register("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    width = grad_output.shape[-1]
    grad, i = widen_half(grad_output).reshape(-1, width), indices.reshape(-1)
    i = index_in_range(i, num_weights, "embedding_dense_backward", negative=False)
    if scale_grad_by_freq:
        grad = _divide_by_frequency(grad, i, num_weights)
    if padding_idx >= 0:
        grad = jnp.where((i == padding_idx)[:, None], 0, grad)
    return scatter_rows(jnp.zeros((num_weights, width), grad.dtype), 0, i, grad, "sum")


def _bags(indices: Any, offsets: Any) -> Any:
    """The bag of each index: how many bags begin at or before its position, minus one."""
    n = indices.shape[0]
    starts = scatter_rows(jnp.zeros(n + 1, jnp.int32), 0, offsets, jnp.ones(offsets.shape, jnp.int32), "sum")
    return jnp.cumsum(starts[:n], dtype=jnp.int32) - 1


def _check_offsets(offsets: Any, length: int) -> None:
    first = "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
    require(offsets[:1] != 0, offsets[:1], first + "However, got {value}", RuntimeError)
    last = f"offsets[-1] can not be greater than input's length {length} but got offsets[-1] of {{value}}"
    require(offsets[-1:] > length, offsets[-1:], last, RuntimeError)
    less = offsets[1:] < offsets[:-1]
    require(less, offsets[1:], "embedding_bag: offsets must not decrease, got {value} after a larger one", RuntimeError)


@register("aten::_embedding_bag", "aten::_embedding_bag_forward_only", meta=True)
def embedding_bag(
    weight: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = SUM, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int = -1,
    *, meta: tuple[Meta, ...],
) -> tuple[Any, ...]:  # fmt: skip
    bags = meta[0].shape[0]
    _check_offsets(offsets, indices.shape[0])
    bag = _bags(indices, offsets[:bags])
    rows = widen_half(_rows(weight, indices, "embedding_bag"))
    if per_sample_weights is not None:
        rows = rows * widen_half(per_sample_weights)[:, None]
    kept = indices != padding_idx
    sizes = scatter_rows(jnp.zeros(bags, jnp.int32), 0, bag, kept.astype(jnp.int32), "sum")
    if mode == MAX:
        out, largest = _largest(rows, indices, bag, kept, sizes)
    else:
        out = scatter_rows(
            jnp.zeros((bags, rows.shape[1]), rows.dtype), 0, bag, jnp.where(kept[:, None], rows, 0), "sum"
        )
        if mode == MEAN:
            out = out / jnp.maximum(sizes, 1)[:, None].astype(out.dtype)
    # The auxiliary results as in ATen: sizes stay zero for a sum, and a mean shows them in place of the maxima.
    # Their shapes depend on the mode and on the device.
    if mode == SUM:
        sizes = jnp.zeros_like(sizes)
    sizes = jnp.pad(sizes, (0, meta[2].shape[0] - bags))
    if mode != MAX:
        largest = sizes if meta[3].shape == sizes.shape else jnp.zeros(meta[3].shape, jnp.int32)
    return out, bag if meta[1].shape[0] else bag[:0], sizes, largest


def _largest(rows: Any, indices: Any, bag: Any, kept: Any, sizes: Any) -> tuple[Any, Any]:
    """The maximum of each bag and the table row that it came from (the first one; 0 for an empty bag)."""
    n, width = rows.shape
    bags = sizes.shape[0]
    rows = jnp.where(kept[:, None], rows, lowest(rows.dtype))
    top = scatter_rows(jnp.full((bags, width), lowest(rows.dtype), rows.dtype), 0, bag, rows, "amax")
    if n == 0:
        return jnp.zeros_like(top), jnp.zeros(top.shape, jnp.int32)
    best = take_rows(top, bag, 0)
    hit = kept[:, None] & ((rows == best) | (jnp.isnan(rows) & jnp.isnan(best)))
    position = jnp.where(hit, jnp.arange(n, dtype=jnp.int32)[:, None], n)
    first = scatter_rows(jnp.full((bags, width), n, jnp.int32), 0, bag, position, "amin")
    source = jnp.where(first < n, take_rows(indices, jnp.minimum(first, n - 1), 0), 0)
    return jnp.where((sizes > 0)[:, None], top, 0), source


@register("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad: Any, indices: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any, num_weights: int,
    scale_grad_by_freq: bool, mode: int, per_sample_weights: Any, padding_idx: int = -1,
) -> Any:  # fmt: skip
    grad, width = widen_half(grad), grad.shape[1]
    table = jnp.zeros((num_weights, width), grad.dtype)
    if mode == MAX:
        empty = (bag_size[: grad.shape[0]] == 0)[:, None]
        return scatter_elements(table, 0, maximum_indices, jnp.where(empty, 0, grad), "sum")
    i = index_in_range(indices, num_weights, "embedding_bag backward", negative=False)
    rows = take_rows(grad, offset2bag, 0)
    if mode == MEAN:
        rows = rows / jnp.maximum(take_rows(bag_size, offset2bag, 0), 1)[:, None].astype(rows.dtype)
    if per_sample_weights is not None:
        rows = rows * widen_half(per_sample_weights)[:, None]
    if scale_grad_by_freq:
        rows = _divide_by_frequency(rows, i, num_weights)
    return scatter_rows(table, 0, i, jnp.where((indices != padding_idx)[:, None], rows, 0), "sum")


@register("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: Any, indices: Any, offsets: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any, num_weights: int,
    scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Any, padding_idx: int = -1,
) -> Any:  # fmt: skip
    if sparse:
        raise NotImplementedError("aten::_embedding_bag_backward: sparse=True; supported: dense gradients")
    if offset2bag.shape[0] != indices.shape[0]:
        offset2bag = _bags(indices, offsets[: grad.shape[0]])
    return embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


@register("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: Any, weight: Any, indices: Any, offsets: Any, offset2bag: Any, mode: int, padding_idx: int = -1
) -> Any:
    if mode != SUM:
        raise NotImplementedError(f"aten::_embedding_bag_per_sample_weights_backward: mode={mode}; supported: 0 (sum)")
    if offset2bag.shape[0] != indices.shape[0]:
        offset2bag = _bags(indices, offsets[: grad.shape[0]])
    products = widen_half(take_rows(grad, offset2bag, 0)) * widen_half(_rows(weight, indices, "embedding_bag"))
    return jnp.where(indices != padding_idx, jnp.sum(products, axis=1), 0)
