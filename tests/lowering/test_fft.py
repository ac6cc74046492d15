"""Fourier transforms against PyTorch on CPU."""

import jax
import pytest
import torch
from harness import check, to_array, to_tensor

from torch_tpu.lowering import registry


def make(shape, dtype):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


DIMS = [[3], [0, 1], [2, 0], [0, 1, 2, 3]]
SHAPES = [(4, 3, 5, 6), (1, 2, 7, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_transforms(shape, dims, normalization, wide):
    real, complex_ = (torch.float64, torch.complex128) if wide else (torch.float32, torch.complex64)
    for forward in (True, False):
        check("aten::_fft_c2c", make(shape, complex_), dims, normalization, forward)
    for onesided in (True, False):
        check("aten::_fft_r2c", make(shape, real), dims, normalization, onesided)
    half = make(shape, complex_)
    for n in (2 * (shape[dims[-1]] - 1), 2 * shape[dims[-1]] - 1):
        if n > 0:
            check("aten::_fft_c2r", half, dims, normalization, n)


def test_more_dimensions_than_xla_takes():
    check("aten::_fft_c2c", make((2, 3, 2, 3, 2), torch.complex64), [4, 0, 2, 1, 3], 1, True)


def test_empty_batch():
    """MKL refuses these; the shapes are those of PyTorch's meta kernels."""
    for name, x, *rest in [
        ("_fft_c2c", make((0, 4), torch.complex64), [1], 0, True),
        ("_fft_r2c", make((0, 4), torch.float32), [1], 2, True),
        ("_fft_c2r", make((0, 3), torch.complex64), [1], 2, 4),
    ]:
        want = getattr(torch.ops.aten, name)(x.to("meta"), *rest)
        with jax.enable_x64(True):
            got = to_tensor(registry.get(f"aten::{name}").fn(to_array(x), *rest))
        assert got.shape == want.shape and got.dtype == want.dtype


def test_prime_and_long_lengths():
    for n in (97, 1000):
        check("aten::_fft_r2c", make((2, n), torch.float32), [1], 0, True)
