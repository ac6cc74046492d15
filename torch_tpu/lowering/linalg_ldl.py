"""LDL factors of symmetric and Hermitian matrices by Bunch and Kaufman's pivoting, in LAPACK's form (sytrf, sytrs)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu.lowering.linalg import _require, adjoint
from torch_tpu.lowering.linalg_solve import _broadcast, _triangular
from torch_tpu.lowering.registry import register

_ALPHA = (1 + math.sqrt(17)) / 8  # bounds the growth of elements


def _size(x: Any) -> Any:
    """LAPACK's measure of an element."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


class _State(NamedTuple):
    k: Any
    rest: Any  # the matrix still to be factored, whole; what is left of k is of no use any more
    factor: Any  # D and, below it, L
    pivots: Any
    info: Any


class _Choice(NamedTuple):
    row: Any  # the row that comes to the front
    two: Any  # whether the pivot is a block of two
    singular: Any


def _choose(s: _State, hermitian: bool) -> _Choice:
    """The next pivot: the diagonal element, another one, or a block of two."""
    n = s.rest.shape[-1]
    at = jnp.arange(n)
    diagonal = jnp.diagonal(s.rest)
    diagonal = jnp.abs(diagonal.real) if hermitian else _size(diagonal)
    column = jnp.where(at > s.k, _size(s.rest[:, s.k]), -1)
    largest = jnp.argmax(column)
    height, here = jnp.maximum(column[largest], 0), diagonal[s.k]
    row = jnp.where((at >= s.k) & (at != largest), _size(s.rest[largest]), 0)
    width = jnp.max(row)
    singular = (jnp.maximum(here, height) == 0) | jnp.isnan(here)
    keep = here >= _ALPHA * height
    keep |= here >= _ALPHA * height * (height / jnp.where(width == 0, 1, width))
    keep |= singular
    two = ~keep & ~(diagonal[largest] >= _ALPHA * width)
    return _Choice(jnp.where(keep, s.k, largest), two, singular)


def _blocks_of_two(a: Any, k: Any, hermitian: bool) -> Any:
    """The two columns from k on, divided by the 2 x 2 block on the diagonal."""
    first, second = a[:, k], a[:, k + 1]
    across = a[k + 1, k]
    scale = jnp.abs(across).astype(a.dtype) if hermitian else across
    d11, d22, unit = a[k + 1, k + 1] / scale, a[k, k] / scale, across / scale
    scale = 1 / (d11 * d22 - 1) / scale
    other = jnp.conj(unit)
    return jnp.stack([scale * (d11 * first - unit * second), scale * (d22 * second - other * first)], 1)


def _eliminate(s: _State, hermitian: bool) -> _State:
    n = s.rest.shape[-1]
    at, choice = jnp.arange(n), _choose(s, hermitian)
    front = s.k + choice.two
    order = jnp.where(at == front, choice.row, jnp.where(at == choice.row, front, at))
    a = s.rest[order][:, order]

    def one() -> Any:
        pivot = jnp.where(choice.singular, 1, a[s.k, s.k])
        columns = jnp.stack([jnp.where(choice.singular, a[:, s.k], a[:, s.k] / pivot), jnp.zeros(n, a.dtype)], 1)
        return jnp.where((at > s.k)[:, None], columns, 0)

    def both() -> Any:
        return jnp.where((at > s.k + 1)[:, None], _blocks_of_two(a, s.k, hermitian), 0)

    lower = lax.cond(choice.two, both, one)
    pair = jnp.stack([a[:, s.k], a[:, jnp.minimum(s.k + 1, n - 1)]], 1)
    pair = jnp.where(jnp.stack([at > s.k, (at > s.k + 1) & choice.two], 1), pair, 0)
    rest = jnp.where(choice.singular, a, a - lower @ (adjoint(pair) if hermitian else pair.T))
    rows, columns = at[:, None], at[None, :]
    new = jnp.where((columns == s.k) | ((columns == s.k + 1) & choice.two), 0, s.factor)
    new += jnp.where(columns == s.k, lower[:, :1], 0) + jnp.where(columns == s.k + 1, lower[:, 1:], 0)
    block = (rows >= s.k) & (rows <= front) & (columns >= s.k) & (columns <= rows)
    new = jnp.where(block, a, new)
    pivot = jnp.where(choice.two, -(choice.row + 1), choice.row + 1).astype(jnp.int32)
    pivots = jnp.where((at >= s.k) & (at <= front), pivot, s.pivots)
    info = jnp.where((s.info == 0) & choice.singular, (s.k + 1).astype(jnp.int32), s.info)
    return _State(s.k + 1 + choice.two, rest, new, pivots, info)


def _factor(a: Any, hermitian: bool) -> tuple[Any, Any, Any]:
    n = a.shape[-1]
    below = jnp.tril(a, -1)
    diagonal = jnp.diagonal(a)
    whole = below + (adjoint(below) if hermitian else below.T)
    whole += jnp.diag(diagonal.real.astype(a.dtype) if hermitian else diagonal)
    start = _State(jnp.int64(0), whole, jnp.zeros_like(a), jnp.zeros(n, jnp.int32), jnp.int32(0))
    end = lax.while_loop(lambda s: s.k < n, lambda s: _eliminate(s, hermitian), start)
    return end.factor, end.pivots, end.info


def _hermitian(a: Any, asked: bool) -> bool:
    return asked and jnp.iscomplexobj(a)


@register("aten::linalg_ldl_factor_ex")
def linalg_ldl_factor_ex(self: Any, *, hermitian: bool = False, check_errors: bool = False) -> Any:
    n = self.shape[-1]
    flat = self.reshape(-1, n, n) if self.size else jnp.zeros((0, n, n), self.dtype)
    if self.size == 0:
        return self, jnp.zeros(self.shape[:-1], jnp.int32), jnp.zeros(self.shape[:-2], jnp.int32)
    factor, pivots, info = jax.vmap(lambda a: _factor(a, _hermitian(self, hermitian)))(flat)
    info = info.reshape(self.shape[:-2])
    _require(info, check_errors, "torch.linalg.ldl_factor_ex: D has a zero on its diagonal")
    return factor.reshape(self.shape), pivots.reshape(self.shape[:-1]), info


def _is_second(pivots: Any) -> tuple[Any, Any]:
    """Which rows are the first and the second of a block of two."""
    paired = pivots < 0
    count = jnp.cumsum(paired)
    place = count - lax.cummax(jnp.where(paired, 0, count))
    return paired & (place % 2 == 1), paired & (place % 2 == 0)


def _unfolded(factor: Any, pivots: Any) -> tuple[Any, Any]:
    """L with the exchanges of rows carried out in all columns, and the order that they bring the rows into."""
    n = factor.shape[-1]
    at = jnp.arange(n)
    first, second = _is_second(pivots)
    rows, columns = at[:, None], at[None, :]
    lower = jnp.where((rows > columns) & ~((rows == columns + 1) & first[None, :]), factor, 0)

    def exchange(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        lower, order = state
        other = jnp.where(first[i], i, jnp.abs(pivots[i]).astype(at.dtype) - 1)
        swap = jnp.where(at == i, other, jnp.where(at == other, i, at))
        done = columns < i - second[i]  # LAPACK leaves the columns before as they are
        return jnp.where(done, lower[swap], lower), order[swap]

    lower, order = lax.fori_loop(0, n, exchange, (lower, at))
    return lower + jnp.eye(n, dtype=lower.dtype), order


def _divide_by_blocks(factor: Any, pivots: Any, b: Any, hermitian: bool) -> Any:
    """D^-1 b."""
    first, second = (x[:, None] for x in _is_second(pivots))
    diagonal = jnp.diagonal(factor)[:, None]
    diagonal = diagonal.real.astype(factor.dtype) if hermitian else diagonal
    across = jnp.pad(jnp.diagonal(factor, -1), (0, 1))[:, None]  # of a block's first row
    across = jnp.where(first, across, jnp.where(second, jnp.roll(across, 1, 0), 1))
    turned = jnp.conj(across) if hermitian else across
    mine, its = jnp.where(second, across, turned), jnp.where(second, turned, across)
    other = lambda x: jnp.where(first, jnp.roll(x, -1, 0), jnp.roll(x, 1, 0))  # noqa: E731
    d_mine, d_other = diagonal / mine, other(diagonal) / its
    x_mine, x_other = b / mine, other(b) / its
    paired = (d_other * x_mine - x_other) / jnp.where(first | second, d_mine * d_other - 1, 1)
    return jnp.where(first | second, paired, b / diagonal)


def _solve(factor: Any, pivots: Any, b: Any, hermitian: bool) -> Any:
    lower, order = _unfolded(factor, pivots)
    x = _triangular(lower, b[order], upper=False, unit=True)
    x = _divide_by_blocks(factor, pivots, x, hermitian)
    x = _triangular(lower, x, upper=False, unit=True, how="h" if hermitian else "t")
    return x[jnp.argsort(order)]


@register("aten::linalg_ldl_solve")
def linalg_ldl_solve(LD: Any, pivots: Any, B: Any, *, hermitian: bool = False) -> Any:
    factor, b = _broadcast(LD, B)
    if b.size == 0:
        return b
    n = factor.shape[-1]
    steps = jnp.broadcast_to(pivots, factor.shape[:-1])
    x = jax.vmap(lambda f, p, b: _solve(f, p, b, _hermitian(LD, hermitian)))(
        factor.reshape(-1, n, n), steps.reshape(-1, n), b.reshape(-1, *b.shape[-2:])
    )
    return x.reshape(b.shape)
