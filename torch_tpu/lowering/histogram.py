"""Histograms of one and more dimensions, with edges that are given or equally spaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.checks import require
from torch_tpu.lowering.factory import linspace_of
from torch_tpu.lowering.gather_scatter import scatter_rows
from torch_tpu.lowering.registry import register
from torch_tpu.lowering.search import insertion_points


def _outer_edges(points: Any, given: Sequence[Any] | None) -> tuple[Any, Any]:
    """The lowest and the highest edge of each column: those given, else those of the data."""
    columns = points.shape[1]
    if given is not None:
        if len(given) != 2 * columns:
            raise RuntimeError(
                f"torch.histogramdd: for a {columns}-dimensional histogram range should have {2 * columns} elements, "
                f"but got {len(given)}"
            )
        both = jnp.stack([jnp.asarray(g).astype(jnp.float64) for g in given]).reshape(columns, 2)
        low, high = both[:, 0], both[:, 1]
    elif points.shape[0]:
        low, high = (f(points, 0).astype(jnp.float64) for f in (jnp.min, jnp.max))
    else:
        low, high = jnp.zeros(columns, jnp.float64), jnp.ones(columns, jnp.float64)
    finite = jnp.isfinite(low) & jnp.isfinite(high)
    require(~finite, jnp.arange(columns), "torch.histogramdd: dimension {value}'s range is not finite", RuntimeError)
    require(
        low > high, jnp.arange(columns), "torch.histogramdd: min should not exceed max for dimension {value}",
        RuntimeError,
    )  # fmt: skip
    return jnp.where(low == high, low - 0.5, low), jnp.where(low == high, high + 0.5, high)


def _spaced(low: Any, high: Any, bins: int, dtype: Any) -> Any:
    """bins + 1 edges from low to high."""
    if bins <= 0:
        raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0")
    return linspace_of(low, high, bins + 1, dtypes.to_torch(dtype))


def _edges(points: Any, bins: Sequence[int], given: Sequence[Any] | None) -> list[Any]:
    if len(bins) != points.shape[1]:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the input. Got "
            f"{len(bins)} for {points.shape[1]}."
        )
    low, high = _outer_edges(points, given)
    return [_spaced(low[d], high[d], n, points.dtype) for d, n in enumerate(bins)]


def _check_operands(points: Any, edges: Sequence[Any], weight: Any) -> None:
    for d, e in enumerate(edges):
        if e.ndim != 1:
            raise RuntimeError(
                f"torch.histogramdd: bins tensor should have one dimension, but got {e.ndim} dimensions in the bins "
                f"tensor for dimension {d}"
            )
        if e.dtype != points.dtype:
            raise RuntimeError(
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with "
                f"dtype {points.dtype} and bins for dimension {d} with dtype {e.dtype}"
            )
        if e.shape[0] < 2:
            raise RuntimeError(f"torch.histogram(): bins must be > 0, but got {e.shape[0] - 1} for dimension {d}")
    if weight is not None and weight.dtype != points.dtype:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same "
            f"dtype, but got input({points.dtype}), and weight({weight.dtype})"
        )


def _flat(self: Any, weight: Any) -> tuple[Any, Any]:
    """The points as [points, dimensions], and their weights."""
    if self.dtype not in (jnp.float32, jnp.float64):
        raise NotImplementedError(f"histogramdd is not implemented for {self.dtype}; supported: float32, float64")
    if weight is not None and weight.shape != self.shape[:-1]:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor "
            f"excluding its innermost dimension, but got input with shape {list(self.shape)} and weight with shape "
            f"{list(weight.shape)}"
        )
    return self.reshape(-1, self.shape[-1]), None if weight is None else weight.reshape(-1)


def _counted(points: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """How many points (or what weight) each cell has; a point on the last edge belongs to the last cell."""
    _check_operands(points, edges, weight)
    sizes = [e.shape[0] - 1 for e in edges]
    cell, inside = jnp.zeros(points.shape[0], jnp.int64), jnp.ones(points.shape[0], jnp.bool_)
    total = 1
    for d, e in enumerate(edges):
        x = points[:, d]
        place = jnp.clip(insertion_points(e, x, True).astype(jnp.int64) - 1, 0, sizes[d] - 1)
        inside &= (x >= e[0]) & (x <= e[-1])
        cell, total = cell * sizes[d] + place, total * sizes[d]
    amount = jnp.ones(points.shape[0], points.dtype) if weight is None else weight
    made = scatter_rows(jnp.zeros(total + 1, points.dtype), 0, jnp.where(inside, cell, total), amount, "sum")[
        :total
    ].reshape(sizes)
    if not density:
        return made
    made = made / jnp.sum(made)
    for d, e in enumerate(edges):
        made = made / jnp.diff(e).reshape([-1 if i == d else 1 for i in range(len(sizes))])
    return made


@register("aten::histogram.bin_ct", operands=["range"], wide=True)
def histogram_bin_ct(
    self: Any, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:  # fmt: skip
    points, weight = _flat(self.reshape(-1, 1), None if weight is None else weight.reshape(-1))
    (edges,) = _edges(points, [bins], range)
    return _counted(points, [edges], weight, density), edges


@register("aten::histogram.bins_tensor")
def histogram_bins_tensor(self: Any, bins: Any, *, weight: Any = None, density: bool = False) -> Any:
    points, weight = _flat(self.reshape(-1, 1), None if weight is None else weight.reshape(-1))
    return _counted(points, [bins], weight, density), bins


@register("aten::_histogramdd_bin_edges", operands=["range"], wide=True)
def histogramdd_bin_edges(
    self: Any, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    return _edges(_flat(self, None)[0], bins, range)


@register("aten::_histogramdd_from_bin_cts", operands=["range"], wide=True)
def histogramdd_from_bin_cts(
    self: Any, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    points, weight = _flat(self, weight)
    return _counted(points, _edges(points, bins, range), weight, density)


@register("aten::_histogramdd_from_bin_tensors")
def histogramdd_from_bin_tensors(
    self: Any, bins: Sequence[Any], *, weight: Any = None, density: bool = False
) -> Any:  # fmt: skip
    points, weight = _flat(self, weight)
    return _counted(points, list(bins), weight, density)
