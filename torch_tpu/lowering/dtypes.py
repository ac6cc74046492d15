"""PyTorch's dtypes in JAX's terms, and PyTorch's type promotion.

The promotion rules are those of ATen's ``ResultTypeState`` (aten/src/ATen/native/TypeProperties.h): tensors
with dimensions outrank 0-d tensors, which outrank Python numbers, unless the lower rank has a higher category
(bool < integer < floating < complex).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

_PAIRS: list[tuple[torch.dtype, Any]] = [
    (torch.bool, np.bool_),
    (torch.uint8, np.uint8),
    (torch.uint16, np.uint16),
    (torch.uint32, np.uint32),
    (torch.uint64, np.uint64),
    (torch.int8, np.int8),
    (torch.int16, np.int16),
    (torch.int32, np.int32),
    (torch.int64, np.int64),
    (torch.float16, np.float16),
    (torch.bfloat16, ml_dtypes.bfloat16),
    (torch.float32, np.float32),
    (torch.float64, np.float64),
    (torch.complex64, np.complex64),
    (torch.complex128, np.complex128),
    (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
    (torch.float8_e5m2fnuz, ml_dtypes.float8_e5m2fnuz),
    (torch.float8_e8m0fnu, ml_dtypes.float8_e8m0fnu),
]
TORCH_TO_JAX: dict[torch.dtype, np.dtype] = {t: np.dtype(j) for t, j in _PAIRS}
JAX_TO_TORCH: dict[np.dtype, torch.dtype] = {j: t for t, j in TORCH_TO_JAX.items()}

HALF_TYPES = frozenset({torch.float16, torch.bfloat16})
_COMPLEX_OF = {
    torch.float16: torch.complex64,  # complex32 has no XLA type
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_REAL_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def to_jax(dtype: torch.dtype) -> np.dtype:
    """The numpy/JAX dtype of a torch dtype; TypeError where XLA has none (quantized types, complex32)."""
    try:
        return TORCH_TO_JAX[dtype]
    except KeyError:
        raise TypeError(f"tpu: dtype {dtype} has no XLA type; supported: {', '.join(map(str, TORCH_TO_JAX))}") from None


def to_torch(dtype: Any) -> torch.dtype:
    return JAX_TO_TORCH[np.dtype(dtype)]


def real_of(dtype: torch.dtype) -> torch.dtype:
    """float32 for complex64, float64 for complex128, any other dtype unchanged."""
    return _REAL_OF.get(dtype, dtype)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    return _COMPLEX_OF.get(dtype, dtype)


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which a pointwise formula is evaluated (ATen's opmath type): float32 for half types."""
    return torch.float32 if dtype in HALF_TYPES else dtype


def is_integral(dtype: torch.dtype, *, include_bool: bool = True) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex) and (include_bool or dtype != torch.bool)


class Scalar:
    """A Python number of the call that is an operand of the program: a traced 0-d array with a Python kind.

    ``kind`` is bool, int, float or complex: it ranks below every tensor in promotion.
    """

    __slots__ = ("array", "kind")

    def __init__(self, array: Any, kind: type):
        self.array = array
        self.kind = kind


def scalar_dtype(kind: type) -> torch.dtype:
    """The dtype that PyTorch gives a Python number of this kind."""
    if kind is bool:
        return torch.bool
    if kind is int:
        return torch.int64
    if kind is float:
        return torch.get_default_dtype()
    return _COMPLEX_OF[torch.get_default_dtype()]


@functools.cache
def _promote(a: torch.dtype | None, b: torch.dtype | None) -> torch.dtype | None:
    if a is None or b is None:
        return b if a is None else a
    return torch.promote_types(a, b)


def _combine_categories(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None:
        return lower
    if lower is None or higher.is_complex:
        return higher
    if higher.is_floating_point:
        return complex_of(higher) if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return _promote(higher, lower)
    return higher


def result_type(*args: Any) -> torch.dtype:
    """PyTorch's result type of arrays, ``Scalar`` operands and Python numbers."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for a in args:
        if isinstance(a, Scalar):
            numbers = _promote(numbers, scalar_dtype(a.kind))
        elif isinstance(a, (bool, int, float, complex)):
            numbers = _promote(numbers, scalar_dtype(type(a)))
        elif isinstance(a, (jax.Array, np.ndarray)):
            if a.ndim:
                dims = _promote(dims, to_torch(a.dtype))
            else:
                zeros = _promote(zeros, to_torch(a.dtype))
    found = _combine_categories(dims, _combine_categories(zeros, numbers))
    if found is None:
        raise TypeError("result_type: no array or number among the arguments")
    return found


def _truncated(x: Any, target: np.dtype) -> Any:
    """Floating to integer as x86 converts, which is what PyTorch shows on CPU. XLA saturates.

    What int32 cannot hold (int64 for the wider types), NaN too, is its least number; smaller types wrap around.
    """
    bits, via = (32, np.int32) if target.itemsize < 4 or target == np.int32 else (64, np.int64)
    x = x.astype(jnp.float32) if np.dtype(x.dtype).itemsize == 1 else x  # has the bound
    return jnp.where(x < 2.0 ** (bits - 1), x.astype(via), np.iinfo(via).min).astype(target)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """``x`` (array, ``Scalar`` or Python number) as an array of ``dtype``, by PyTorch's conversion rules.

    Non-zero (and NaN) is True for bool; complex to real drops the imaginary part; floating to integer
    truncates.
    """
    target = to_jax(dtype)
    if isinstance(x, Scalar):
        x = x.array
    if not isinstance(x, (jax.Array, np.ndarray)):
        return jnp.asarray(x, target)
    source = np.dtype(x.dtype)
    if source == target:
        return x
    if source.kind == "c" and target.kind != "c":
        return x != 0 if target == np.bool_ else cast(jax.lax.real(x), dtype)
    if target == np.bool_:
        return x != 0
    if jnp.issubdtype(source, jnp.floating) and target.kind in "iu" and target != np.uint64:
        return _truncated(x, target)
    if source == np.bool_ and target.kind not in "iu":
        # XLA takes a product with a converted bool for a choice between the other factor and 0: inf * False, NaN in
        # PyTorch, would be 0. It does not so with a chosen 0 or 1.
        return jnp.where(x, jnp.ones((), target), jnp.zeros((), target))
    if target == ml_dtypes.float8_e4m3fn:
        # PyTorch saturates, infinity too; XLA gives NaN.
        x = jnp.clip(x if jnp.issubdtype(source, jnp.floating) else x.astype(jnp.float32), -448, 448)
    return x.astype(target)
