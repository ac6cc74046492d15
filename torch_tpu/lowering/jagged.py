"""Nested tensors of layout jagged: their rows in a padded tensor, and back.

The values of all components lie one after the other; ``offsets`` (one more than there are components) say where each
begins and ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering.checks import require
from torch_tpu.lowering.registry import register
from torch_tpu.lowering.search import insertion_points


def _only(offsets: Sequence[Any], operator: str) -> Any:
    if len(offsets) != 1:
        raise RuntimeError(f"{operator}(): only a single jagged dim is supported for now")
    return offsets[0]


def _rows(mask: Any, values: Any) -> Any:
    """A mask of leading dimensions, to go with values that have more."""
    return mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))


@register("aten::_jagged_to_padded_dense_forward")
def jagged_to_padded(values: Any, offsets: list[Any], max_lengths: Sequence[int], padding_value: Any = 0.0) -> Any:
    """values [total, ...] -> [components, longest, ...]; what is longer is cut."""
    bounds = _only(offsets, "_jagged_to_padded_dense_forward")
    at = bounds[:-1, None] + jnp.arange(max_lengths[0], dtype=bounds.dtype)
    there = at < bounds[1:, None]
    if not values.shape[0]:
        found = jnp.zeros((*at.shape, *values.shape[1:]), values.dtype)
    else:
        found = jnp.take(values, jnp.where(there, at, 0), axis=0, mode="clip")
    return jnp.where(_rows(there, found), found, jnp.asarray(padding_value).astype(values.dtype))


@register("aten::_padded_dense_to_jagged_forward")
def padded_to_jagged(dense: Any, offsets: list[Any], total_L: int | None = None) -> Any:
    """dense [components, longest, ...] -> [total_L, ...]. A component longer than ``longest`` is a RuntimeError."""
    bounds = _only(offsets, "_padded_dense_to_jagged_forward")
    if total_L is None:
        raise NotImplementedError(
            "_padded_dense_to_jagged_forward: without total_L the size of the result depends on values"
        )
    lengths = bounds[1:] - bounds[:-1]
    message = "found batch item of length {value} when max length specified by padded input is "
    require(lengths > dense.shape[1], lengths, f"{message}{dense.shape[1]}", RuntimeError)
    row = jnp.arange(total_L, dtype=bounds.dtype)
    component = jnp.minimum(insertion_points(bounds[1:], row, True), max(dense.shape[0] - 1, 0))
    column = row - jnp.take(bounds, component)
    if not (total_L and dense.shape[0] and dense.shape[1]):
        return jnp.zeros((total_L, *dense.shape[2:]), dense.dtype)
    found = dense[component, jnp.clip(column, 0, dense.shape[1] - 1)]
    return jnp.where(_rows((column >= 0) & (row < bounds[-1]), found), found, jnp.zeros((), dense.dtype))
