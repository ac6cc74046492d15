"""Matrix decompositions: where results are unique against PyTorch on CPU, else by what they must satisfy."""

import jax
import pytest
import torch
from harness import check, run, to_array

from torch_tpu.lowering import checks, linalg, registry

TYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(4, 4), (2, 5, 3), (3, 2, 2, 4)]


def make(shape, dtype, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def positive(shape, dtype):
    a = make((*shape, shape[-1]), dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


def close(got, want):
    tolerance = 2e-5 if got.dtype in (torch.float32, torch.complex64) else 1e-10
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(dtype, upper):
    for shape in ((4,), (2, 3), (2, 0)):
        a = positive(shape, dtype)
        garbage = make(a.shape, dtype, 1)
        a = torch.triu(a) + torch.tril(garbage, -1) if upper else torch.tril(a) + torch.triu(garbage, 1)
        check("aten::linalg_cholesky_ex", a, upper=upper, rtol=2e-5, atol=2e-5)
        check("aten::cholesky", positive(shape, dtype), upper, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", TYPES)
def test_cholesky_info(dtype):
    a = torch.stack([torch.eye(4, dtype=dtype) for _ in range(4)])
    a[1, 2, 2], a[2, 0, 0], a[3, 3, 0] = -1, 0, 2
    a[3, 0, 3] = 2
    for upper in (False, True):
        info = run("aten::linalg_cholesky_ex", a, upper=upper)[1]
        assert info.tolist() == torch.linalg.cholesky_ex(a, upper=upper).info.tolist() == [0, 3, 1, 4]


def test_cholesky_asks_for_a_check():
    with jax.enable_x64(True), checks.collect() as found:
        linalg.cholesky(to_array(-torch.eye(2)))
        assert found[0].report.tolist() == [1, 1] and found[0].error is torch.linalg.LinAlgError


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
@pytest.mark.parametrize("shape", [*SHAPES, (0, 3), (3, 0), (2, 0, 3)])
def test_qr(dtype, mode, shape):
    a = make(shape, dtype)
    q, r = run("aten::linalg_qr", a, mode)
    close(r.abs(), torch.linalg.qr(a, mode).R.abs())
    close(r, r.triu())
    if mode != "r":
        close(q @ r, a)
        close(q.mH @ q, torch.eye(q.shape[-1], dtype=dtype).expand(*shape[:-2], -1, -1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (0, 3), (2, 3, 0)])
@pytest.mark.parametrize("full", [False, True])
def test_svd(dtype, shape, full):
    a = make(shape, dtype)
    u, s, v = run("aten::_linalg_svd", a, full)
    close(s, torch.linalg.svdvals(a))
    k = s.shape[-1]
    close((u[..., :k] * s.unsqueeze(-2).to(dtype)) @ v[..., :k, :], a)
    for x in (u, v.mH):
        close(x.mH @ x, torch.eye(x.shape[-1], dtype=dtype).expand(*shape[:-2], -1, -1))
    check("aten::_linalg_svd", a, full, False, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(dtype, uplo):
    for shape in ((4,), (2, 3), (0,)):
        a = positive(shape, dtype)
        garbage = make(a.shape, dtype, 1)
        read = torch.triu(a) + torch.tril(garbage, -1) if uplo == "U" else torch.tril(a) + torch.triu(garbage, 1)
        values, vectors = run("aten::_linalg_eigh", read, uplo)
        close(values, torch.linalg.eigvalsh(a))
        close(vectors * values.unsqueeze(-2).to(dtype), a @ vectors)
        check("aten::_linalg_eigh", read, uplo, False, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (0, 3), (2, 0, 0)])
def test_lu(dtype, shape):
    a = make(shape, dtype)
    check("aten::linalg_lu_factor_ex", a)
    check("aten::linalg_lu", a)
    lu, pivots = torch.linalg.lu_factor(a)
    for data in (True, False):
        check("aten::lu_unpack", lu, pivots, data, True)
        check("aten::lu_unpack", lu, pivots, data, False)


def test_lu_info_and_pivot():
    a = torch.eye(3).repeat(3, 1, 1)
    a[1, 1, 1], a[2, 0, 0] = 0, 0
    assert run("aten::linalg_lu_factor_ex", a)[2].tolist() == [0, 2, 1]
    with pytest.raises(NotImplementedError, match="pivot=False"):
        registry.get("aten::linalg_lu").fn(to_array(a), pivot=False)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (0, 0), (2, 1, 1)])
def test_determinants(dtype, shape):
    a = make(shape, dtype)
    check("aten::_linalg_det", a)
    check("aten::_linalg_slogdet", a)


def test_determinant_of_a_singular_matrix():
    a = torch.zeros(2, 2)
    assert run("aten::_linalg_det", a)[0].item() == 0
    sign, log = run("aten::_linalg_slogdet", a)[:2]
    assert sign.item() == 0 and log.item() == -float("inf")


def test_determinant_factors_what_the_gradient_expects():
    """Real and contiguous: LU of the transpose; else LU of the matrix itself."""
    a = make((3, 3), torch.float64)
    fn = registry.get("aten::_linalg_det").fn
    with jax.enable_x64(True):
        for t, contiguous in ((a, True), (a.mT, False)):
            got = torch.from_numpy(jax.device_get(fn(to_array(t), contiguous=contiguous)[1]).copy())
            close(got, torch.ops.aten._linalg_det(t)[1])


@pytest.mark.parametrize("dtype", [*TYPES, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_matrix_exp(dtype, scale):
    a = make((2, 3, 3), torch.float64).mul(scale)
    a = (a - a.mT).to(dtype) if scale == 30.0 else a.to(dtype)
    if dtype is torch.bfloat16:  # where CPU gives NaN
        got = run("aten::linalg_matrix_exp", a)[0]
        torch.testing.assert_close(got.double(), torch.linalg.matrix_exp(a.double()), rtol=1e-2, atol=1e-2)
        return
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype in (torch.float32, torch.complex64) else {}
    check("aten::linalg_matrix_exp", a, **tolerance)


@pytest.mark.parametrize("dtype", TYPES)
def test_householder(dtype):
    for shape in ((5, 3), (2, 4, 4)):
        reflectors, tau = torch.geqrf(make(shape, dtype))
        check("aten::linalg_householder_product", reflectors, tau)
    reflectors, tau = torch.geqrf(make((5, 3), dtype))
    for left in (True, False):
        for transpose in (True, False):
            other = make((5, 2) if left else (2, 5), dtype, 3)
            check("aten::ormqr", reflectors, tau, other, left, transpose)


@pytest.mark.parametrize("dtype", [*TYPES, torch.int64, torch.bfloat16])
def test_cross(dtype):
    def some(shape, seed):
        real = make(shape, torch.float32, seed) * 5
        return make(shape, dtype, seed) if dtype.is_complex else real.to(dtype)

    check("aten::linalg_cross", some((4, 3), 0), some((4, 3), 1))
    check("aten::linalg_cross", some((3, 1, 5), 0), some((3, 4, 1), 1), dim=0)
    check("aten::linalg_cross", some((0, 3), 0), some((0, 3), 1))
