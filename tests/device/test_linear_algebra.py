"""Decompositions, solvers and order statistics on the device: what they give fits together, and is CPU's."""

import pytest
import torch

from device.support import check

# Symptom: `cholesky`, `eigh`, `det`, `slogdet`, `lstsq`, `matrix_exp`, `linalg.cross`, `triangular_solve`, `median`,
# `kthvalue`, `mode`, `histogram` work.
MATRICES = {
    "cholesky": lambda a, b: torch.linalg.cholesky(a), "eigh values": lambda a, b: torch.linalg.eigh(a)[0],
    "eigh": lambda a, b: (lambda e: (e[1] * e[0].unsqueeze(-2)) @ e[1].mH)(torch.linalg.eigh(a)),
    "eigvalsh": lambda a, b: torch.linalg.eigvalsh(a), "det": lambda a, b: torch.linalg.det(a),
    "slogdet": lambda a, b: torch.linalg.slogdet(a), "logdet": lambda a, b: torch.logdet(a),
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b).solution, "matrix_exp": lambda a, b: torch.linalg.matrix_exp(a / 8),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, a, upper=False)[0],
    "solve_triangular": lambda a, b: torch.linalg.solve_triangular(a.mT, b, upper=True),
    "solve": torch.linalg.solve, "inv": lambda a, b: torch.linalg.inv(a), "pinv": lambda a, b: torch.linalg.pinv(a),
    "qr": lambda a, b: (lambda q, r: q @ r)(*torch.linalg.qr(a)), "svdvals": lambda a, b: torch.linalg.svdvals(b),
    "svd": lambda a, b: (lambda u, s, v: (u * s.unsqueeze(-2)) @ v)(*torch.linalg.svd(b, full_matrices=False)),
    "lu": lambda a, b: (lambda p, low, up: p @ low @ up)(*torch.linalg.lu(a)),
    "lu_solve": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)),
    "cholesky_inverse": lambda a, b: torch.cholesky_inverse(torch.linalg.cholesky(a)),
    "matrix_power": lambda a, b: torch.linalg.matrix_power(a, -2),
    "matrix_rank": lambda a, b: torch.linalg.matrix_rank(a),
    "cond": lambda a, b: torch.linalg.cond(a), "matrix_norm": lambda a, b: torch.linalg.matrix_norm(a, 2),
    "eigvals": lambda a, b: torch.linalg.eigvals(a).real.sort()[0],
    "cross": lambda a, b: torch.linalg.cross(a[..., :3, :], b[..., :3, :1].expand_as(a[..., :3, :]), dim=-2),
    "multi_dot": lambda a, b: torch.linalg.multi_dot([a[0], b[0], b[0].mT]) if a.ndim == 3 else a @ b @ b.mT,
    "ldl": lambda a, b: torch.linalg.ldl_factor(a).LD, "tensorinv": lambda a, b: torch.linalg.tensorinv(a, 1)
    if a.ndim == 2 else torch.linalg.inv(a), "vander": lambda a, b: torch.linalg.vander(b[..., 0]),
    "householder_product": lambda a, b: torch.linalg.householder_product(a[..., :2], b[..., 0, :2]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.filterwarnings(
    "ignore:torch.triangular_solve is deprecated", "ignore::torch_tpu.eager.fallback.FallbackWarning"
)
def test_matrices(name, dtype):
    g = torch.Generator().manual_seed(0)
    for batch in ((), (2,)):
        root = torch.randn(*batch, 4, 4, generator=g, dtype=torch.complex128 if dtype.is_complex else torch.float64)
        a = (root @ root.mH + 2 * torch.eye(4)).to(dtype)
        b = torch.randn(*batch, 4, 3, generator=g, dtype=torch.float64).to(dtype)
        expected = MATRICES[name](a, b)
        got = MATRICES[name](a.to("tpu"), b.to("tpu"))
        tolerance = 1e-8 if dtype == torch.float64 else 2e-4
        check(got, expected, tolerance, tolerance)


ORDERS = {
    "median": lambda x: x.median(-1), "median of all": lambda x: x.median(), "nanmedian": lambda x: x.nanmedian(0),
    "kthvalue": lambda x: x.kthvalue(2, 0), "mode": lambda x: x.mode(-1)[0],
    "quantile": lambda x: x.double().quantile(0.3),
    "sort": lambda x: x.sort(dim=-1, stable=True), "topk": lambda x: x.topk(2)[0], "msort": torch.msort,
    "histogram": lambda x: torch.histogram(x.float(), 4), "histc": lambda x: torch.histc(x.float(), 4),
    "histogram of edges": lambda x: torch.histogram(x.float(), torch.tensor([-1.0, 0, 2, 9], device=x.device)),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([0, 3, 6], device=x.device)),
    "unique": lambda x: torch.unique(x, return_counts=True), "unique dim": lambda x: torch.unique(x, dim=0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.uint8, torch.float64], ids=str)
@pytest.mark.parametrize("name", ORDERS)
def test_orders(name, dtype):
    x = torch.randperm(20, generator=torch.Generator().manual_seed(0)).view(4, 5).to(dtype)
    check(ORDERS[name](x.to("tpu")), ORDERS[name](x))


def test_results_without_a_meta_kernel_lie_by_columns():
    a, b = torch.randn(2, 3, 5), torch.randn(2, 3, 2)
    for f in (
        lambda a, b: torch.geqrf(a), lambda a, b: torch.geqrf(a[0]), lambda a, b: torch.geqrf(a.mT),
        lambda a, b: torch.linalg.lstsq(a, b).solution, lambda a, b: torch.linalg.lstsq(a[0], b[0]).solution,
        lambda a, b: torch.linalg.lstsq(a[..., :3], b).solution,
    ):  # fmt: skip
        expected, got = f(a, b), f(a.to("tpu"), b.to("tpu"))
        pairs = [(got, expected)] if isinstance(expected, torch.Tensor) else zip(got, expected, strict=True)
        assert all(g.stride() == e.stride() for g, e in pairs)


@pytest.mark.parametrize("function", [torch.linalg.eig, torch.linalg.eigvals])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:.*has no lowering")
def test_eigenvalues_of_what_is_not_finite(function, value):
    with pytest.raises(RuntimeError, match="should not contain infs or NaNs"):
        function(torch.full((2, 2), value).to("tpu"))
