"""Solving, inverting and least squares against PyTorch on CPU."""

import jax
import pytest
import torch
from harness import check, run, to_array, to_tensor

from torch_tpu.lowering import registry

TYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def make(shape, dtype, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def well(shape, dtype, seed=0):
    """Well conditioned, with row swaps in its LU."""
    a = make(shape, dtype, seed) * 0.3 + 2 * torch.eye(shape[-1], dtype=dtype)
    return a.flip(-2)


def compare(name, *args, **kwargs):
    check(name, *args, rtol=1e-5, atol=1e-5, **kwargs)


SYSTEMS = [
    ((4, 4), (4, 2)), ((2, 3, 3), (2, 3, 1)), ((4, 4), (4,)),
    ((2, 3, 3), (2, 3)), ((0, 0), (0, 2)), ((2, 3, 3), (3, 2)),
]  # fmt: skip
PROBLEMS = [((5, 3), (5, 2)), ((3, 5), (3, 2)), ((2, 4, 2), (2, 4, 3)), ((2, 4, 2), (2, 4)), ((3, 3), (3, 1))]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("a,b", SYSTEMS)
def test_solve(dtype, a, b):
    compare("aten::_linalg_solve_ex", well(a, dtype), make(b, dtype, 1))
    if len(b) == len(a):
        wide = (*b[:-2], b[-1], b[-2])
        compare("aten::_linalg_solve_ex", well(a, dtype), make(wide, dtype, 1), left=False)


@pytest.mark.parametrize("dtype", TYPES)
def test_inverse(dtype):
    for shape in ((4, 4), (2, 3, 3), (0, 0)):
        compare("aten::linalg_inv_ex", well(shape, dtype))


def test_singular_info():
    a = torch.eye(3).repeat(2, 1, 1)
    a[1, 1, 1] = 0
    assert run("aten::linalg_inv_ex", a)[1].tolist() == [0, 2]
    assert run("aten::_linalg_solve_ex", a, torch.ones(2, 3, 1))[3].tolist() == [0, 2]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve(dtype, left, adjoint):
    for a, b in [((4, 4), (4, 2)), ((2, 3, 3), (2, 3, 2)), ((3, 3), (2, 3, 2))]:
        lu, pivots = torch.linalg.lu_factor(well(a, dtype))
        b = b if left else (*b[:-2], b[-1], b[-2])
        compare("aten::linalg_lu_solve", lu, pivots, make(b, dtype, 1), left=left, adjoint=adjoint)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular(dtype, upper, unit):
    a, b = make((2, 3, 3), dtype) * 0.3 + 2 * torch.eye(3, dtype=dtype), make((2, 3, 2), dtype, 1)
    for transpose in (True, False):
        solution = run("aten::triangular_solve", b, a, upper, transpose, unit)[0]
        want = torch.ops.aten.triangular_solve(b, a, upper, transpose, unit)[0]
        torch.testing.assert_close(solution, want, rtol=1e-5, atol=1e-5)
    compare("aten::linalg_solve_triangular", a, b, upper=upper, unitriangular=unit)
    compare("aten::linalg_solve_triangular", a, b.mT.contiguous(), upper=upper, left=False, unitriangular=unit)
    compare("aten::linalg_solve_triangular", a[0], b, upper=upper, unitriangular=unit)
    compare("aten::linalg_solve_triangular", a[:, :0, :0], b[:, :0], upper=upper)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("upper", [True, False])
def test_from_cholesky_factor(dtype, upper):
    a = make((2, 3, 3), dtype)
    factor = torch.linalg.cholesky(a @ a.mH + torch.eye(3, dtype=dtype), upper=upper)
    compare("aten::cholesky_solve", make((2, 3, 2), dtype, 1), factor, upper)
    compare("aten::cholesky_solve", make((3, 2), dtype, 1), factor, upper)
    compare("aten::cholesky_inverse", factor, upper)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("a,b", PROBLEMS)
def test_least_squares(dtype, driver, a, b):
    compare("aten::linalg_lstsq", make(a, dtype), make(b, dtype, 1), driver=driver)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_least_squares_below_full_rank(driver):
    a, b = make((5, 2), torch.float64) @ make((2, 4), torch.float64, 1), make((5, 1), torch.float64, 2)
    with jax.enable_x64(True):
        x, _, rank, _ = registry.get("aten::linalg_lstsq").fn(to_array(a), to_array(b), driver=driver)
    torch.testing.assert_close(to_tensor(x), torch.linalg.pinv(a) @ b)
    assert int(rank) == 2
