"""Decompositions of matrices: Cholesky, QR, SVD, symmetric eigenvalues, LU, and what is computed from them.

Systems of equations are in linalg_solve.py. Results that LAPACK leaves to chance (signs of vectors, what a failed
factorization holds) differ from PyTorch's on CPU. ``info`` is LAPACK's: 0, or the number of the first pivot that
fails. XLA:TPU has no float64 or complex128 LU, and its compiler aborts the process on complex128 (Cholesky, QR, SVD,
symmetric eigenvalues, triangular solves): whoever runs these on a TPU must turn complex128 away first.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg
import torch
from jax import lax
from jax.lax import linalg as xla

from torch_tpu.lowering import checks
from torch_tpu.lowering.matmul import product
from torch_tpu.lowering.registry import register


def adjoint(a: Any) -> Any:
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def _no(like: Any, dtype: Any = None) -> Any:
    """The empty result that PyTorch gives for what was not asked for."""
    return jnp.zeros((0,), like.dtype if dtype is None else dtype)


def _real(dtype: Any) -> Any:
    return jnp.finfo(dtype).dtype


def eye_like(a: Any) -> Any:
    return jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)


def _require(info: Any, check: bool, what: str) -> None:
    if check:
        error = torch.linalg.LinAlgError  # pyright: ignore[reportPrivateImportUsage]
        checks.require(info != 0, info, f"{what} (first at {{value}})", error)


def _first_bad_minor(a: Any) -> Any:
    """For each Hermitian matrix the number of the first leading minor that is not positive, or 0."""
    n = a.shape[-1]
    columns = jnp.arange(n)

    def eliminate(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        a, first = state
        pivot = jnp.real(jnp.take(jnp.take(a, k, axis=-1), k, axis=-1))
        good = pivot > 0
        first = jnp.where((first == 0) & ~good, k + 1, first)
        column = jnp.where(columns > k, jnp.take(a, k, axis=-1), 0) / jnp.where(good, pivot, 1)[..., None]
        rest = jnp.where(columns > k, jnp.conj(jnp.take(a, k, axis=-1)), 0)
        return a - column[..., :, None] * rest[..., None, :], first

    first = jnp.zeros(a.shape[:-2], jnp.int32)
    return lax.fori_loop(jnp.int32(0), jnp.int32(n), eliminate, (a, first))[1]


def _cholesky(a: Any, upper: bool) -> tuple[Any, Any]:
    """The factor and info; only the triangle that ``upper`` names is read."""
    lower = jnp.tril(adjoint(a) if upper else a)
    if a.size == 0:
        return a, jnp.zeros(a.shape[:-2], jnp.int32)
    factor = jnp.tril(xla.cholesky(lower, symmetrize_input=False))
    failed = ~jnp.all(jnp.isfinite(factor), axis=(-1, -2))
    whole = lower + adjoint(jnp.tril(lower, -1))
    zero = jnp.zeros(failed.shape, jnp.int32)
    info = lax.cond(jnp.any(failed), lambda: jnp.where(failed, _first_bad_minor(whole), 0), lambda: zero)
    return (adjoint(factor) if upper else factor), info


@register("aten::linalg_cholesky_ex")
def linalg_cholesky_ex(self: Any, upper: bool = False, check_errors: bool = False) -> Any:
    factor, info = _cholesky(self, upper)
    _require(info, check_errors, "linalg.cholesky: the matrix is not positive-definite")
    return factor, info


@register("aten::cholesky")
def cholesky(self: Any, upper: bool = False) -> Any:
    factor, info = _cholesky(self, upper)
    _require(info, True, "cholesky: the matrix is not positive-definite")
    return factor


@register("aten::linalg_qr")
def linalg_qr(A: Any, mode: str = "reduced") -> Any:
    rows, columns = A.shape[-2:]
    if A.size == 0:
        inner = rows if mode == "complete" else min(rows, columns)
        q = jnp.broadcast_to(jnp.eye(rows, inner, dtype=A.dtype), (*A.shape[:-2], rows, inner))
        return (_no(A) if mode == "r" else q), jnp.zeros((*A.shape[:-2], inner, columns), A.dtype)
    if mode == "r":
        return _no(A), jnp.linalg.qr(A, mode="r")
    q, r = jnp.linalg.qr(A, mode=mode)
    return q, r


@register("aten::geqrf", by_columns=[0])
def geqrf(self: Any) -> Any:
    """R above the diagonal and the Householder reflectors below it, and their factors."""
    inner = min(self.shape[-2:])
    if self.size == 0:
        return self, jnp.zeros((*self.shape[:-2], inner), self.dtype)
    reflectors, factors = jnp.linalg.qr(self, mode="raw")  # numpy's form, which is transposed
    return jnp.swapaxes(reflectors, -1, -2), factors


def _svd(a: Any, full_matrices: bool) -> Any:
    """U, the singular values, and V's adjoint."""

    def plain(a: Any) -> tuple[Any, ...]:
        return tuple(xla.svd(a, full_matrices=full_matrices))

    def in_float64(a: Any) -> tuple[Any, ...]:
        return tuple(x.astype(a.dtype) for x in xla.svd(a.astype(jnp.float64), full_matrices=full_matrices))

    # In a 64-bit trace the TPU's compiler (libtpu 0.0.42) aborts on JAX's float32 SVD, not on the float64 one.
    return lax.platform_dependent(a, tpu=in_float64, default=plain) if a.dtype == jnp.float32 else plain(a)


@register("aten::_linalg_svd")
def linalg_svd(A: Any, full_matrices: bool = False, compute_uv: bool = True, driver: str | None = None) -> Any:
    rows, columns = A.shape[-2:]
    inner = min(rows, columns)
    if A.size == 0:
        values = jnp.zeros((*A.shape[:-2], inner), _real(A.dtype))
        u = jnp.eye(rows, rows if full_matrices else inner, dtype=A.dtype)
        v = jnp.eye(columns if full_matrices else inner, columns, dtype=A.dtype)
        u, v = (jnp.broadcast_to(x, (*A.shape[:-2], *x.shape)) for x in (u, v))
        return (u, values, v) if compute_uv else (_no(A), values, _no(A))
    finite = jnp.all(jnp.isfinite(A), axis=(-2, -1))
    message = "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values."
    checks.require(~finite, finite, message, torch.linalg.LinAlgError)  # pyright: ignore[reportPrivateImportUsage]
    if not compute_uv:
        return _no(A), xla.svd(A, compute_uv=False), _no(A)
    return _svd(A, full_matrices)


@register("aten::_linalg_eigh")
def linalg_eigh(A: Any, UPLO: str = "L", compute_v: bool = True) -> Any:
    if A.size == 0:
        return jnp.zeros(A.shape[:-1], _real(A.dtype)), (A if compute_v else _no(A))
    vectors, values = xla.eigh(A, lower=UPLO.upper() == "L", symmetrize_input=False)
    return values, (vectors if compute_v else _no(A))


def lu_factor(a: Any) -> tuple[Any, Any, Any]:
    """LU, the row each step swaps with (from 1, int32), and info (the first zero on the diagonal)."""
    inner = min(a.shape[-2:])
    if a.size == 0:
        return a, jnp.zeros((*a.shape[:-2], inner), jnp.int32), jnp.zeros(a.shape[:-2], jnp.int32)
    lu, pivots, _ = xla.lu(a)
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    info = jnp.where(jnp.any(zero, axis=-1), jnp.argmax(zero, axis=-1) + 1, 0).astype(jnp.int32)
    return lu, pivots.astype(jnp.int32) + 1, info


def permutation(pivots: Any, rows: int) -> Any:
    """The rows of the original matrix in the order of the factors, from LAPACK's swaps (from 1)."""
    if 0 in pivots.shape or rows == 0:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return xla.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


def _permutation_matrix(pivots: Any, rows: int, dtype: Any) -> Any:
    """P with A = P L U."""
    order = permutation(pivots, rows)
    return (order[..., None, :] == jnp.arange(rows, dtype=order.dtype)[:, None]).astype(dtype)


def _triangles(lu: Any) -> tuple[Any, Any]:
    rows, columns = lu.shape[-2:]
    inner = min(rows, columns)
    lower = jnp.tril(lu[..., :inner], -1) + jnp.eye(rows, inner, dtype=lu.dtype)
    return lower, jnp.triu(lu[..., :inner, :])


def _only_pivoted(pivot: bool, what: str) -> None:
    if not pivot:
        raise NotImplementedError(f"{what}: pivot=False; supported: pivot=True")


@register("aten::linalg_lu_factor_ex")
def linalg_lu_factor_ex(A: Any, pivot: bool = True, check_errors: bool = False) -> Any:
    _only_pivoted(pivot, "linalg.lu_factor")
    lu, pivots, info = lu_factor(A)
    _require(info, check_errors, "torch.linalg.lu_factor_ex: U has a zero on its diagonal")
    return lu, pivots, info


@register("aten::linalg_lu")
def linalg_lu(A: Any, pivot: bool = True) -> Any:
    _only_pivoted(pivot, "linalg.lu")
    lu, pivots, _ = lu_factor(A)
    return _permutation_matrix(pivots, A.shape[-2], A.dtype), *_triangles(lu)


@register("aten::lu_unpack")
def lu_unpack(LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    lower, upper = _triangles(LU_data) if unpack_data else (_no(LU_data), _no(LU_data))
    if not unpack_pivots:
        return _no(LU_data), lower, upper
    return _permutation_matrix(LU_pivots, LU_data.shape[-2], LU_data.dtype), lower, upper


def _sign_and_diagonal(a: Any) -> tuple[Any, Any, Any, Any]:
    """The sign of the row swaps, the diagonal of U, LU and pivots."""
    lu, pivots, _ = lu_factor(a)
    swaps = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=jnp.int32), axis=-1)
    return jnp.where(swaps % 2 == 0, 1, -1).astype(a.dtype), jnp.diagonal(lu, axis1=-2, axis2=-1), lu, pivots


def _factored(a: Any, contiguous: bool) -> Any:
    # PyTorch factors A^T where A is real and contiguous, and its gradient takes the saved LU for that.
    return jnp.swapaxes(a, -1, -2) if contiguous and not jnp.issubdtype(a.dtype, jnp.complexfloating) else a


@register("aten::_linalg_det")
def linalg_det(A: Any, contiguous: bool = True) -> Any:
    """Determinant, LU and pivots. ``contiguous``: whether the tensor is; the gradient formula looks at that."""
    sign, diagonal, lu, pivots = _sign_and_diagonal(_factored(A, contiguous))
    return sign * jnp.prod(diagonal, axis=-1), lu, pivots


@register("aten::_linalg_slogdet")
def linalg_slogdet(A: Any, contiguous: bool = True) -> Any:
    sign, diagonal, lu, pivots = _sign_and_diagonal(_factored(A, contiguous))
    size = jnp.abs(diagonal)
    unit = jnp.where(size == 0, 0, diagonal / jnp.where(size == 0, 1, size).astype(A.dtype))
    return sign * jnp.prod(unit, axis=-1), jnp.sum(jnp.log(size), axis=-1), lu, pivots


@register("aten::linalg_matrix_exp")
def linalg_matrix_exp(self: Any) -> Any:
    if self.size == 0:
        return self
    wide = self.astype(jnp.float32) if self.dtype.itemsize < 4 else self
    return jax.scipy.linalg.expm(wide, max_squarings=64)


@register("aten::linalg_householder_product")
def linalg_householder_product(input: Any, tau: Any) -> Any:
    if not jnp.issubdtype(input.dtype, jnp.inexact):
        kinds = "supported: floating, complex"
        raise NotImplementedError(f"householder_product is not implemented for {input.dtype}; {kinds}")
    if input.size == 0 or tau.shape[-1] == 0:
        rows, columns = input.shape[-2:]
        return jnp.broadcast_to(jnp.eye(rows, columns, dtype=input.dtype), input.shape)
    return xla.householder_product(input, tau)


@register("aten::linalg_cross")
def linalg_cross(self: Any, other: Any, dim: int = -1) -> Any:
    a, b = jnp.broadcast_arrays(self, other)
    rolled = functools.partial(jnp.roll, axis=dim)
    return rolled(a, -1) * rolled(b, -2) - rolled(a, -2) * rolled(b, -1)


@register("aten::ormqr", precision=True)
def ormqr(self: Any, input2: Any, input3: Any, left: bool = True, transpose: bool = False) -> Any:
    """The full orthogonal factor of reflectors ``self``, ``input2`` (or its adjoint) times the matrix ``input3``."""
    if input3.size == 0:
        return input3
    columns = input2.shape[-1]
    full = jnp.pad(self[..., :columns], [*[(0, 0)] * (self.ndim - 1), (0, self.shape[-2] - columns)])
    q = linalg_householder_product(full, input2)
    q = adjoint(q) if transpose else q
    return product(q, input3) if left else product(input3, q)
