"""Systems of linear equations, inverses and least squares."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.lax import linalg as xla

from torch_tpu.lowering.linalg import _no, _real, _require, adjoint, eye_like, linalg_svd, lu_factor, permutation
from torch_tpu.lowering.matmul import product
from torch_tpu.lowering.registry import register


def _broadcast(a: Any, b: Any) -> tuple[Any, Any]:
    """Both with the same leading dimensions."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:]))


def _triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unit: bool = False, how: str = "n") -> Any:
    """Solve op(a) x = b (or x op(a) = b); ``how``: n as it is, t transposed, h adjoint."""
    a, b = _broadcast(a, b)
    if not jnp.issubdtype(b.dtype, jnp.inexact):
        raise NotImplementedError(f"triangular_solve is not implemented for {b.dtype}; supported: floating, complex")
    if b.size == 0 or a.size == 0:
        return b
    return xla.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unit, transpose_a=how in "th", conjugate_a=how == "h"
    )


def _lu_solve(lu: Any, pivots: Any, b: Any, *, left: bool = True, adjointed: bool = False) -> Any:
    """Solve with A = P L U: A x = b, A^H x = b, or with ``left=False`` x A = b, x A^H = b."""
    if not left:
        return adjoint(_lu_solve(lu, pivots, adjoint(b), adjointed=not adjointed))
    batch = jnp.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if b.size == 0:
        return b
    order = jnp.broadcast_to(permutation(pivots, lu.shape[-1]), (*batch, lu.shape[-1]))
    if adjointed:
        x = _triangular(lu, b, upper=True, how="h")
        x = _triangular(lu, x, upper=False, unit=True, how="h")
        return jnp.take_along_axis(x, jnp.argsort(order, axis=-1)[..., None], axis=-2)
    x = jnp.take_along_axis(b, order[..., None], axis=-2)
    return _triangular(lu, _triangular(lu, x, upper=False, unit=True), upper=True)


def _is_vector(a: Any, b: Any) -> bool:
    """PyTorch's rule for a right-hand side that is a vector, or a batch of them."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


@register("aten::linalg_inv_ex")
def linalg_inv_ex(A: Any, check_errors: bool = False) -> Any:
    lu, pivots, info = lu_factor(A)
    _require(info, check_errors, "linalg.inv: the diagonal of U has a zero, the matrix is singular")
    return _lu_solve(lu, pivots, eye_like(A)), info


@register("aten::_linalg_solve_ex")
def linalg_solve_ex(A: Any, B: Any, left: bool = True, check_errors: bool = False) -> Any:
    lu, pivots, info = lu_factor(A)
    _require(info, check_errors, "torch.linalg.solve: the solver failed because the input matrix is singular")
    vector = _is_vector(A, B)
    x = _lu_solve(lu, pivots, B[..., None] if vector else B, left=left or vector)
    return (x[..., 0] if vector else x), lu, pivots, info


@register("aten::linalg_lu_solve")
def linalg_lu_solve(LU: Any, pivots: Any, B: Any, left: bool = True, adjoint: bool = False) -> Any:
    return _lu_solve(LU, pivots, B, left=left, adjointed=adjoint)


@register("aten::linalg_solve_triangular")
def linalg_solve_triangular(self: Any, B: Any, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    return _triangular(self, B, upper=upper, left=left, unit=unitriangular)


@register("aten::triangular_solve")
def triangular_solve(
    self: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:  # fmt: skip
    a, b = _broadcast(A, self)
    return _triangular(a, b, upper=upper, unit=unitriangular, how="t" if transpose else "n"), a


@register("aten::cholesky_solve", "aten::_cholesky_solve_helper")
def cholesky_solve(self: Any, input2: Any, upper: bool = False) -> Any:
    """Solve A x = self, from the Cholesky factor of A."""
    x = _triangular(input2, self, upper=upper, how="h" if upper else "n")
    return _triangular(input2, x, upper=upper, how="n" if upper else "h")


@register("aten::cholesky_inverse")
def cholesky_inverse(self: Any, upper: bool = False) -> Any:
    return cholesky_solve(eye_like(self), self, upper)


@register("aten::linalg_lstsq", static=("rcond",), precision=True, by_columns=[0])
def linalg_lstsq(self: Any, b: Any, rcond: float | None = None, driver: str | None = None) -> Any:
    """Least squares of least norm. Every driver goes through the SVD; what is returned besides follows the driver.

    ``gels`` (full rank assumed) gives residuals where there are more equations than unknowns; ``gelsy`` (the
    default) the rank; ``gelsd`` and ``gelss`` rank, singular values and residuals (also below full rank, where
    PyTorch leaves them out: a shape cannot depend on values here). PyTorch has no meta kernel for this.
    """
    rows, columns = self.shape[-2:]
    vector = _is_vector(self, b)
    a, right = _broadcast(self, b[..., None] if vector else b)
    driver = driver or "gelsy"
    u, values, v = linalg_svd(a)
    if rcond is None:
        rcond = jnp.finfo(a.dtype).eps * max(rows, columns)
    cut = values[..., :1] * rcond if min(rows, columns) else values
    kept = values > cut
    if driver == "gels":
        kept = jnp.ones_like(kept)
    scale = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0).astype(a.dtype)
    batch = (*a.shape[:-2],)

    def flat(x: Any) -> Any:
        return x.reshape(-1, *x.shape[-2:])

    x = product(flat(adjoint(v)), flat(scale[..., None]) * product(flat(adjoint(u)), flat(right)))
    residuals, rank, singular = _no(a, _real(a.dtype)), _no(a, jnp.int64), _no(a, _real(a.dtype))
    if rows > columns and driver != "gelsy":
        rest = product(flat(a), x) - flat(right)
        residuals = jnp.sum(jnp.square(jnp.abs(rest)), axis=-2).reshape(*batch, right.shape[-1])
    if driver != "gels":
        rank = jnp.sum(kept, axis=-1, dtype=jnp.int64)
    if driver in ("gelsd", "gelss"):
        singular = values
    x = x.reshape(*batch, columns, right.shape[-1])
    return (x[..., 0] if vector else x), residuals, rank, singular
