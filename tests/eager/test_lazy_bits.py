"""Lazily conjugated and negated tensors: PyTorch hands them to copies and matrix products as they are."""

import pytest
import torch


def _pair():
    a = torch.randn(3, 3, dtype=torch.complex64)
    return a, a.to("tpu")


LAZY = {
    "conj": lambda t: t.conj(),
    "adjoint": lambda t: t.mH,
    "negated": lambda t: t.conj().imag,
    "conj of a slice": lambda t: t[1:].conj(),
}
USES = {
    "cpu": lambda t: t.cpu(),
    "clone": lambda t: t.clone(),
    "contiguous": lambda t: t.contiguous(),
    "to dtype": lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64),
    "add": lambda t: t + 1,
    "mm": lambda t: t @ t.mT,
    "copy_": lambda t: torch.zeros_like(t.clone()).copy_(t),
    "item": lambda t: torch.tensor(t[0, 0].item()),
    "tolist": lambda t: torch.tensor(t.tolist()),
    "resolve": lambda t: t.resolve_conj().resolve_neg(),
}


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("use", USES)
def test_reading(lazy, use):
    a, t = _pair()
    torch.testing.assert_close(USES[use](LAZY[lazy](t)).cpu(), USES[use](LAZY[lazy](a)))


@pytest.mark.parametrize("lazy", LAZY)
def test_writing(lazy):
    a, t = _pair()
    value = torch.randn(LAZY[lazy](a).shape, dtype=LAZY[lazy](a).dtype)
    LAZY[lazy](a).copy_(value)
    LAZY[lazy](t).copy_(value.to("tpu"))
    LAZY[lazy](a).mul_(2)
    LAZY[lazy](t).mul_(2)
    torch.testing.assert_close(t.cpu(), a)


WRITES = {
    "addmm_": lambda t, b: t.addmm_(b, b),
    "baddbmm_": lambda t, b: t[None].baddbmm_(b[None], b[None]),
    "mm out=": lambda t, b: torch.mm(b, b, out=t),
    "mul_": lambda t, b: t.mul_(b),
}


@pytest.mark.parametrize("lazy", ["conj", "adjoint", "negated"])
@pytest.mark.parametrize("write", WRITES)
def test_writing_by_operators_that_take_lazy_bits(lazy, write):
    a, t = _pair()
    b = torch.randn(3, 3, dtype=LAZY[lazy](a).dtype)
    WRITES[write](LAZY[lazy](a), b)
    WRITES[write](LAZY[lazy](t), b.to("tpu"))
    torch.testing.assert_close(t.cpu(), a)


@pytest.mark.parametrize("left", ["conj", "adjoint"])
@pytest.mark.parametrize("right", ["conj", "adjoint"])
def test_solve_triangular(left, right):
    a, t = _pair()
    b, u = _pair()
    theirs = torch.linalg.solve_triangular(LAZY[left](a), LAZY[right](b), upper=True)
    torch.testing.assert_close(
        torch.linalg.solve_triangular(LAZY[left](t), LAZY[right](u), upper=True).cpu(), theirs, rtol=1e-4, atol=1e-4
    )


def test_gradient_of_a_complex_determinant():
    a, t = _pair()
    a.requires_grad_()
    t.requires_grad_()
    torch.linalg.det(a).abs().backward()
    torch.linalg.det(t).abs().backward()
    torch.testing.assert_close(t.grad.cpu(), a.grad)


@pytest.mark.parametrize("lazy", ["conj", "adjoint", "negated", "plain"])
def test_conj_physical_(lazy):
    a, t = _pair()
    see = {**LAZY, "plain": lambda t: t}[lazy]
    see(a).conj_physical_()
    see(t).conj_physical_()
    torch.testing.assert_close(t.cpu(), a)


def test_svd_of_a_complex_matrix_with_out():
    t = torch.ones(3, 2, dtype=torch.complex64, device="tpu")
    given = [torch.empty(0, dtype=d, device="tpu") for d in (torch.complex64, torch.float32, torch.complex64)]
    u, s, v = torch.svd(t, out=tuple(given))
    torch.testing.assert_close(((u * s.to(u.dtype)) @ v.mH).cpu(), t.cpu())
