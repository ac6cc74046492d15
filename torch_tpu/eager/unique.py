"""unique and unique_consecutive: of all elements, and of the slices along a dimension."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from torch_tpu.eager import modes, refusals
from torch_tpu.eager.special import _array, _front, _program, special
from torch_tpu.runtime import transfer

_Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _runs(values: Any) -> tuple[Any, Any, Any, Any]:
    """Of rows: the first of each run of equal ones, in front; the run of each row; the lengths of the runs, in front;
    how many runs there are. NaN equals nothing, as in PyTorch."""
    n = values.shape[0]
    differs = jnp.any((values[1:] != values[:-1]).reshape(n - 1, math.prod(values.shape[1:])), 1)
    run = jnp.cumsum(jnp.concatenate([jnp.ones(1, jnp.bool_), differs]), dtype=jnp.int64) - 1
    firsts = jnp.zeros_like(values).at[run].set(values, mode="promise_in_bounds")
    lengths = jnp.zeros(n, jnp.int64).at[run].add(1, mode="promise_in_bounds")
    return firsts, run, lengths, run[-1] + 1


def _order(rows: Any) -> Any:
    """The order that sorts rows by their first element, then by the second, and so on."""
    if rows.ndim == 1 or rows.shape[1] == 1:
        return jnp.argsort(rows.reshape(-1), stable=True)
    columns = rows.shape[1]

    def by_column(i: Any, order: Any) -> Any:
        column = lax.dynamic_index_in_dim(rows, columns - 1 - i, 1, keepdims=False)
        return order[jnp.argsort(column[order], stable=True)]

    return lax.fori_loop(0, columns, by_column, jnp.arange(rows.shape[0]))


def _grouped(rows: Any, sort: bool) -> tuple[Any, Any, Any, Any]:
    if not sort:
        return _runs(rows)
    order = _order(rows)
    firsts, run, lengths, count = _runs(rows[order])
    return firsts, jnp.zeros_like(run).at[order].set(run, mode="promise_in_bounds"), lengths, count


def _computed(label: str, rows: torch.Tensor, sort: bool) -> tuple[Any, Any, Any, int]:
    values = _program(label, (sort,), lambda x: _grouped(x, sort), _array(rows), device=rows.get_device())
    modes.raise_failed()
    return *values[:3], int(transfer.to_host(values[3]))


def _of_elements(self: torch.Tensor, sort: bool, return_inverse: bool, return_counts: bool) -> _Result:
    refusals.check_types(torch.ops.aten.unique_consecutive.default, {"self": self})
    device, nothing = self.get_device(), torch.empty(0, dtype=torch.int64, device=self.device)
    if self.numel() == 0:
        return torch.empty(0, dtype=self.dtype, device=self.device), nothing.view(self.shape), nothing
    label = "aten::_unique2" if sort else "aten::unique_consecutive"
    firsts, run, lengths, count = _computed(label, self.reshape(-1), sort)
    inverse = _front(run, self.numel(), torch.int64, device).view(self.shape) if return_inverse else nothing
    counts = _front(lengths, count, torch.int64, device) if return_counts else nothing
    return _front(firsts, count, self.dtype, device), inverse, counts


def _of_slices(self: torch.Tensor, dim: int, sort: bool) -> _Result:
    """Slices along ``dim`` that are equal become one; the inverse and the counts come always, as in PyTorch."""
    refusals.check_types(torch.ops.aten.unique_dim.default, {"self": self, "dim": dim})
    device, size = self.get_device(), self.size(dim)
    empty = sum(n == 0 for n in self.shape)
    if size == 0:
        if empty > 1:
            raise RuntimeError("Number of zero sized dimensions is more than one, so unique cannot be applied")
        nothing = torch.empty(0, dtype=torch.int64, device=self.device)
        return torch.empty(self.shape, dtype=self.dtype, device=self.device), nothing, nothing.clone()
    if empty:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    moved = self.movedim(dim, 0)
    rest = moved.shape[1:]
    label = "aten::unique_dim" if sort else "aten::unique_dim_consecutive"
    firsts, run, lengths, count = _computed(label, moved.reshape(size, math.prod(rest)), sort)
    values = _front(firsts, count, self.dtype, device).view(count, *rest).movedim(0, dim)
    return values, _front(run, size, torch.int64, device), _front(lengths, count, torch.int64, device)


@special("_unique2")
def unique2(
    self: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> _Result:
    return _of_elements(self, True, return_inverse, return_counts)


@special("_unique")
def unique(self: torch.Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    values, inverse, _ = _of_elements(self, True, return_inverse, False)
    return values, inverse


@special("unique_dim")
def unique_dim(
    self: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> _Result:
    return _of_slices(self, dim, True)


@special("unique_consecutive")
def unique_consecutive(
    self: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> _Result:
    return _of_elements(self, False, return_inverse, return_counts) if dim is None else _of_slices(self, dim, False)


@special("unique_dim_consecutive")
def unique_dim_consecutive(
    self: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> _Result:
    return _of_slices(self, dim, False)
