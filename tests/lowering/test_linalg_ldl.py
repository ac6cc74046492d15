"""LDL factors against LAPACK's: the same pivots, and solutions with them."""

import pytest
import torch
from harness import check

TYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def _matrix(n, dtype, hermitian, hollow):
    a = torch.randn(2, n, n, dtype=dtype, generator=torch.Generator().manual_seed(n))
    a = a + (a.mH if hermitian else a.mT)
    if hollow:
        a.diagonal(dim1=-2, dim2=-1).zero_()  # every pivot is a block of two
    return a


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_factors_and_solutions(dtype, hermitian, n):
    a = _matrix(n, dtype, hermitian, n == 12)
    check("aten::linalg_ldl_factor_ex", a, hermitian=hermitian, rtol=1e-4, atol=1e-4)
    factor, pivots, _ = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    b = torch.randn(2, n, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    check("aten::linalg_ldl_solve", factor, pivots, b, hermitian=hermitian, rtol=1e-3, atol=1e-3)


def test_only_the_lower_triangle_is_read():
    a = torch.tensor([[1.0, 7, 8], [2, 4, 9], [3, 5, 6]])
    check("aten::linalg_ldl_factor_ex", a)


def test_singular():
    check("aten::linalg_ldl_factor_ex", torch.zeros(3, 3))
    check("aten::linalg_ldl_factor_ex", torch.zeros(2, 0, 0))
