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


def test_gradient_of_a_complex_determinant():
    a, t = _pair()
    a.requires_grad_()
    t.requires_grad_()
    torch.linalg.det(a).abs().backward()
    torch.linalg.det(t).abs().backward()
    torch.testing.assert_close(t.grad.cpu(), a.grad)
