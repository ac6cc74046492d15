"""The entries of PyTorch's operator database, and what has to be known of some of them to compare results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip


def title(entry: OpInfo) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name


ENTRIES: dict[str, OpInfo] = {title(e): e for e in op_db}

# The values of these are random or uninitialized: shapes and types are compared here, values by statistics in
# tests/lowering/test_random.py.
_RANDOM = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric",
    "log_normal", "multinomial", "new_empty", "new_empty_strided", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "normal", "pca_lowrank", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "svd_lowrank", "uniform", "resize_", "resize_as_", "binomial",
}  # fmt: skip


def values_differ(entry: OpInfo, sample: SampleInput) -> bool:
    """Whether the values of this call's results are random or uninitialized."""
    if entry.name == "nn.functional.scaled_dot_product_attention":
        return sample.kwargs.get("dropout_p", 0.0) > 0
    if entry.name == "nn.functional.multi_head_attention_forward":
        return sample.args[9] > 0
    return entry.name in _RANDOM or ("dropout" in entry.name and not entry.name.endswith("_backward"))


def _svd(result: Any) -> Any:
    u, s, v = result
    k = s.shape[-1]
    return s, (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ v[..., :k, :].contiguous() if v.shape[-2] >= k else s


def _old_svd(result: Any) -> Any:
    u, s, v = result
    k = s.shape[-1]
    return s, (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ v[..., :k].mH


def _eigh(result: Any) -> Any:
    values, vectors = result
    return values, (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH


def _eig(result: Any) -> Any:
    values, vectors = result
    values, vectors = values.cpu(), vectors.cpu()
    order = torch.argsort(values.real * 3 + values.imag, dim=-1)
    values = values.gather(-1, order)
    vectors = vectors.gather(-1, order.unsqueeze(-2).expand(vectors.shape))
    return values.to(result[0].device), (vectors.unsqueeze(-2) * vectors.unsqueeze(-3).conj()).sum(-1).to(
        result[0].device
    )


def _norm(result: Any) -> Any:
    """The saved statistics of half types are float32, and those of evaluation are not empty, as on CUDA."""
    return result[0]


def _with_values(result: Any, sample: SampleInput) -> Any:
    """Indices of equal values are anybody's choice: the values that they name stand for them."""
    operand = sample.input if sample.input.ndim else sample.input.reshape(1)
    numbers = [a for a in sample.args if type(a) is int]
    at = 1 if isinstance(result, tuple) and type(result).__name__ in ("topk", "kthvalue") else 0
    dim = sample.kwargs.get("dim", numbers[at] if len(numbers) > at else -1)
    if isinstance(result, torch.Tensor):
        return _named(operand, result, dim)
    values, indices = result
    return values, _named(operand, indices, dim)


def _named(operand: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    if indices.ndim == operand.ndim:
        return operand.gather(dim, indices)
    kept = indices.reshape(1) if operand.ndim == 1 else indices.unsqueeze(dim)
    return operand.gather(dim, kept)


# Results that are determined only up to a sign, a phase or a choice, in a form that is determined.
_INVARIANT: dict[str, Callable[[Any], Any]] = {
    "linalg.svd": _svd,
    "svd": _old_svd,
    "linalg.eigh": _eigh,
    "linalg.eig": _eig,
    "native_batch_norm": _norm,
    "_native_batch_norm_legit": _norm,
    "_batch_norm_with_update": _norm,
    "native_layer_norm": _norm,
}
_TIES = {"argsort", "kthvalue", "median", "mode", "nanmedian", "sort", "topk"}


def invariant(entry: OpInfo) -> Callable[[Any, SampleInput], Any]:
    """(results, the sample they are of) -> what to compare."""
    if entry.name in _TIES:
        return lambda result, sample: result if _is_stable(result, sample) else _with_values(result, sample)
    view = _INVARIANT.get(entry.name, lambda result: result)
    return lambda result, sample: view(result)


def _is_stable(result: Any, sample: SampleInput) -> bool:
    one = isinstance(result, torch.Tensor) and result.dtype == sample.input.dtype  # median of all
    return one or bool(sample.kwargs.get("stable")) or sample.input.numel() == 0


def _by_mpmath(fn: Callable[[Any], Any]) -> Callable[[SampleInput], torch.Tensor]:
    def exact(sample: SampleInput) -> torch.Tensor:
        values = [float(fn(mpmath.mpf(v))) for v in sample.input.double().flatten().tolist()]
        return torch.tensor(values, dtype=torch.float64).reshape(sample.input.shape)

    return exact


# ATen's own float64 values of these are wrong by up to 3e-6: they cannot be the judge.
EXACT: dict[str, Callable[[SampleInput], torch.Tensor]] = {
    "special.bessel_j0": _by_mpmath(lambda x: mpmath.besselj(0, x)),
    "special.bessel_j1": _by_mpmath(lambda x: mpmath.besselj(1, x)),
    "special.bessel_y0": _by_mpmath(lambda x: mpmath.bessely(0, x) if x > 0 else float("nan" if x else "-inf")),
    "special.bessel_y1": _by_mpmath(lambda x: mpmath.bessely(1, x) if x > 0 else float("nan" if x else "-inf")),
}

# PyTorch wants these arguments on the CPU whatever the device: (entry, position).
HOST_ARGUMENTS = {"tensor_split": 0}

# These make a tensor where they are told to, and some samples say nothing.
TOLD_WHERE = {"arange", "linspace", "logspace"}
