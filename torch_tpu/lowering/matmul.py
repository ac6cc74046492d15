"""Matrix products: mm, bmm, addmm and their kin, integer and complex products, scaled float8 products.

``contract`` is the one place where a dot product is made; attention, convolution's kin and the grouped matmul
use it too. What it accumulates in:

=====================  ============================================================================
operands               accumulator
=====================  ============================================================================
float32, complex64     float32, with as many bfloat16 passes on a TPU as ``precision`` says
float64, complex128    the same type
bfloat16               float32 (on XLA:CPU bf16 x bf16 -> f32 is as fast as a bf16 result or faster:
                       2.3 against 4.8 ms for 1024^3, so it is never traded away)
float16                float32 in two bfloat16 passes on a TPU, which hold the 11 bits of a float16
int8, uint8, int16     int32: the low bits are those of the exact sum, so that rounding to the
                       tensor's type wraps as PyTorch does
int32                  int32, wrapping
int64                  exact modulo 2^64, from int8 products: XLA:TPU has no 64-bit dot, and the one
                       of XLA:CPU is ten times slower
=====================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_tpu.lowering import dtypes
from torch_tpu.lowering.registry import Promotion, register

_PRECISION = {"highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH, "medium": lax.Precision.DEFAULT}
# beta = 0 means that self is not read at all (its NaN does not spread): its own program.
_BETA = {"beta": (0,)}
_LIMB_CHUNK = 1 << 16  # 2^16 products of two int8 digits fit an int32
_SMALL_INT64 = 1 << 18  # below this many products one fused multiply-and-sum is the smaller program


def precision(dtype: Any) -> lax.Precision:
    """XLA's precision for operands of ``dtype``: torch.get_float32_matmul_precision() decides for float32."""
    dtype = np.dtype(dtype)
    if dtype in (np.dtype(np.float32), np.dtype(np.complex64)):
        return _PRECISION[torch.get_float32_matmul_precision()]
    if dtype == np.dtype(np.float16):
        return lax.Precision.HIGH
    if dtype.itemsize >= 8:
        return lax.Precision.HIGHEST
    return lax.Precision.DEFAULT


def accumulator(dtype: Any) -> np.dtype:
    """The type in which sums of products of ``dtype`` are held."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
        return np.dtype(np.float32)
    if dtype.kind in "iu" and dtype.itemsize < 4:
        return np.dtype(np.int32)
    return dtype


def contract(
    lhs: Any,
    rhs: Any,
    lhs_dims: Sequence[int],
    rhs_dims: Sequence[int],
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
) -> Any:
    """Sum of products over ``lhs_dims``/``rhs_dims``; the result is batch, rest of lhs, rest of rhs.

    The result has the accumulator's type: the caller rounds it.
    """
    dims = ((tuple(lhs_dims), tuple(rhs_dims)), (tuple(lhs_batch), tuple(rhs_batch)))
    if lhs.dtype == jnp.bool_:
        if lhs.size and rhs.size:
            raise NotImplementedError("matmul: bool operands; supported: integer, floating and complex types")
        return lax.dot_general(lhs, rhs, dims).astype(lhs.dtype)  # no products: all False, as PyTorch has it
    if lhs.dtype == jnp.int64:
        return _contract_int64(lhs, rhs, dims)
    if lhs.dtype.itemsize == 1 and jnp.issubdtype(lhs.dtype, jnp.floating):
        # float8 values are exact in bfloat16.
        lhs, rhs = lhs.astype(jnp.bfloat16), rhs.astype(jnp.bfloat16)
    if lhs.dtype.itemsize == 2 and jnp.issubdtype(lhs.dtype, jnp.floating):
        lhs, rhs = _whole(lhs, rhs)
    return lax.dot_general(
        lhs, rhs, dims, precision=precision(lhs.dtype), preferred_element_type=accumulator(lhs.dtype)
    )  # fmt: skip


def _contract_int64(lhs: Any, rhs: Any, dims: Any) -> Any:
    """Exact modulo 2^64. Digits of base 256 in -128..127; digit products are summed in int32, shifted and added."""
    (lc, rc), (lb, rb) = dims
    lhs, rhs = _to_batched_matrix(lhs, lc, lb, contracting_last=True), _to_batched_matrix(rhs, rc, rb)
    (lhs, batch, rows), (rhs, _, columns) = lhs, rhs
    b, m, k = lhs.shape
    n = rhs.shape[2]
    if b * m * k * n <= _SMALL_INT64:
        product = jnp.sum(lhs[:, :, None, :] * jnp.swapaxes(rhs, 1, 2)[:, None], axis=-1, dtype=jnp.int64)
        return product.reshape(batch + rows + columns)
    left, right = _digits(lhs), _digits(rhs)
    total = jnp.zeros((b, m, n), jnp.int64)
    for start in range(0, k, _LIMB_CHUNK):
        chunk = slice(start, start + _LIMB_CHUNK)
        for i in range(8):
            for j in range(8 - i):
                part = lax.dot_general(
                    left[i][:, :, chunk], right[j][:, chunk], (((2,), (1,)), ((0,), (0,))),
                    preferred_element_type=jnp.int32,
                )  # fmt: skip
                total = total + (part.astype(jnp.int64) << (8 * (i + j)))
    return total.reshape(batch + rows + columns)


def _digits(x: Any) -> list[Any]:
    digits = []
    for _ in range(8):
        digit = x.astype(jnp.int8)
        digits.append(digit)
        x = (x - digit.astype(jnp.int64)) >> 8
    return digits


def _whole(lhs: Any, rhs: Any) -> Any:
    """Operands of half types, which XLA:CPU must not change once it has chosen how to multiply them.

    It moves a transposition through a selection into the product (``where(mask, a.T, 0) @ b``), after it has found that
    its library takes the product as it was; the product then fails as UNIMPLEMENTED when it runs.
    """
    return lax.platform_dependent(
        lhs, rhs, cpu=lambda *operands: lax.optimization_barrier(operands), default=lambda *operands: operands
    )  # fmt: skip


def _to_batched_matrix(
    x: Any, contracted: Sequence[int], batched: Sequence[int], *, contracting_last: bool = False
) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """``x`` as (batch, contracted, free) or (batch, free, contracted), with the batch and free shapes."""
    free = [d for d in range(x.ndim) if d not in contracted and d not in batched]
    order = [*batched, *free, *contracted] if contracting_last else [*batched, *contracted, *free]
    batch, rest = tuple(x.shape[d] for d in batched), tuple(x.shape[d] for d in free)
    k = int(np.prod([x.shape[d] for d in contracted], dtype=np.int64))
    b, f = int(np.prod(batch, dtype=np.int64)), int(np.prod(rest, dtype=np.int64))
    shape = (b, f, k) if contracting_last else (b, k, f)
    return jnp.transpose(x, order).reshape(shape), batch, rest


def product(a: Any, b: Any) -> Any:
    """Matrix product of two matrices, or of two stacks of matrices, in the accumulator's type.

    The right operand may be one matrix for all of the left's: compiled graphs have that (``compile/products.py``).
    """
    batch = tuple(range(b.ndim - 2))
    return contract(a, b, (a.ndim - 1,), (b.ndim - 2,), batch, batch)


def _scaled_sum(self: Any, result: Any, beta: Any, alpha: Any) -> Any:
    """beta * self + alpha * result, in the type of ``result``; self is ignored where beta is 0."""
    dtype = dtypes.to_torch(result.dtype)
    if not (isinstance(alpha, (int, float)) and alpha == 1):
        result = dtypes.cast(alpha, dtype) * result
    if isinstance(beta, (int, float)) and beta == 0:
        return result
    self = dtypes.cast(self, dtype)
    if not (isinstance(beta, (int, float)) and beta == 1):
        self = dtypes.cast(beta, dtype) * self
    return jnp.broadcast_to(self, jnp.broadcast_shapes(self.shape, result.shape)) + result


@register("aten::mm", "aten::mv", "aten::_int_mm", precision=True)
def mm(self: Any, mat2: Any) -> Any:
    if self.dtype != mat2.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {self.dtype} != {mat2.dtype}")
    if mat2.ndim == 1:
        return contract(self, mat2, (1,), (0,))
    return product(self, mat2)


@register("aten::mm.dtype", "aten::bmm.dtype", precision=True)
def mm_dtype(self: Any, mat2: Any, out_dtype: torch.dtype) -> Any:
    return product(self, mat2)


@register("aten::dot", precision=True)
def dot(self: Any, tensor: Any) -> Any:
    return contract(self, tensor, (0,), (0,))


@register("aten::vdot", precision=True)
def vdot(self: Any, other: Any) -> Any:
    return contract(jnp.conj(self), other, (0,), (0,))


@register("aten::addmm", "aten::baddbmm", precision=True, specialize=_BETA)
def addmm(self: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _scaled_sum(self, product(mat1, mat2), beta, alpha)


@register("aten::addmm.dtype", "aten::baddbmm.dtype", precision=True, specialize=_BETA)
def addmm_dtype(self: Any, mat1: Any, mat2: Any, out_dtype: torch.dtype, beta: Any = 1, alpha: Any = 1) -> Any:
    return _scaled_sum(self, product(mat1, mat2), beta, alpha)


@register("aten::addmv", precision=True, specialize=_BETA)
def addmv(self: Any, mat: Any, vec: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _scaled_sum(self, contract(mat, vec, (1,), (0,)), beta, alpha)


@register("aten::addbmm", precision=True, specialize=_BETA)
def addbmm(self: Any, batch1: Any, batch2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    return _scaled_sum(self, contract(batch1, batch2, (0, 2), (0, 1)), beta, alpha)


@register("aten::addr", promote=Promotion.DEFAULT, specialize=_BETA, own_types=("beta", "alpha"))
def addr(self: Any, vec1: Any, vec2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    if self.dtype == jnp.bool_:
        outer = vec1[:, None] & vec2[None, :] & dtypes.cast(alpha, torch.bool)
        return outer | (self & dtypes.cast(beta, torch.bool))
    return _scaled_sum(self, vec1[:, None] * vec2[None, :], beta, alpha)


@register("aten::_addmm_activation", precision=True, specialize=_BETA)
def addmm_activation(
    self: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> Any:  # fmt: skip
    result = _scaled_sum(self, product(mat1, mat2), beta, alpha)
    # The exact GELU, as on CPU (the CUDA epilogue has the tanh form).
    return jax.nn.gelu(result, approximate=False) if use_gelu else jnp.maximum(result, 0)


@register("aten::_trilinear", precision=True)
def trilinear(
    i1: Any,
    i2: Any,
    i3: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """Sum over ``sumdim`` of the product of three tensors that are unsqueezed at their expand dims."""
    total = i1.ndim + len(expand1)
    axes = [[d for d in range(total) if d not in e] for e in (expand1, expand2, expand3)]
    result = [d for d in range(total) if d not in sumdim]
    wide = accumulator(i1.dtype)
    i1, i2, i3 = (x.astype(wide) for x in (i1, i2, i3))
    if wide == jnp.int64:  # XLA:TPU has no product of 64-bit integers but element by element
        i1, i2, i3 = (
            jnp.expand_dims(x, tuple(e)) for x, e in zip((i1, i2, i3), (expand1, expand2, expand3), strict=True)
        )
        return jnp.sum(i1 * i2 * i3, axis=tuple(sumdim))
    return jnp.einsum(i1, axes[0], i2, axes[1], i3, axes[2], result, precision=precision(wide))


def _per_tensor_or_vector(scale: Any, rows: int, columns: int) -> bool:
    return scale.size == 1 or (scale.ndim == 2 and scale.shape in ((rows, 1), (1, columns)))


def _blockwise(x: Any, scale: Any, what: str) -> Any:
    """``x`` in float32 times the scale of each element's block."""
    if scale.ndim != 2 or any(n % s for n, s in zip(x.shape, scale.shape, strict=True)):
        raise NotImplementedError(
            f"_scaled_mm: {what} of shape {tuple(scale.shape)} for an operand of shape {tuple(x.shape)}; "
            f"supported: one scale, one a row of self and a column of mat2, or one a block"
        )
    for d in range(2):
        scale = jnp.repeat(scale, x.shape[d] // scale.shape[d], axis=d)
    return x.astype(jnp.float32) * scale


@register("aten::_scaled_mm", precision=True)
def scaled_mm(
    self: Any,
    mat2: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """float8 product: (self * scale_a) @ (mat2 * scale_b) + bias, in float32.

    Scales are float32: of one element, or of shape (rows, 1) and (1, columns), or one a block (float8_e8m0fnu too).
    """
    rows, columns = self.shape[0], mat2.shape[1]
    scale_a, scale_b = scale_a.astype(jnp.float32), scale_b.astype(jnp.float32)
    if _per_tensor_or_vector(scale_a, rows, 1) and _per_tensor_or_vector(scale_b, 1, columns):
        if self.dtype != mat2.dtype:
            self, mat2 = self.astype(jnp.bfloat16), mat2.astype(jnp.bfloat16)
        scales = scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
        result = product(self, mat2).astype(jnp.float32) * scales
    else:
        result = product(_blockwise(self, scale_a, "scale_a"), _blockwise(mat2, scale_b, "scale_b"))
    if bias is not None:
        result = result + bias.astype(jnp.float32)
    if scale_result is not None and out_dtype is not None and out_dtype.itemsize == 1:
        result = result * scale_result.astype(jnp.float32).reshape(())
    return result


@register("aten::_scaled_mm_v2", precision=True)
def scaled_mm_v2(
    self: Any,
    mat2: Any,
    scale_a: Sequence[Any],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Any],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Any,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Any:
    """The same; the shapes of the scales say what the recipes say again."""
    if len(scale_a) != 1 or len(scale_b) != 1 or any(swizzle_a) or any(swizzle_b):
        raise NotImplementedError(
            f"_scaled_mm_v2: {len(scale_a)} and {len(scale_b)} scales with swizzles {list(swizzle_a)} and "
            f"{list(swizzle_b)}; supported: one scale tensor an operand, not swizzled"
        )
    return scaled_mm(self, mat2, scale_a[0], scale_b[0], bias, None, out_dtype, use_fast_accum)
