"""Complex functions at infinities, NaN, signed zeros and on their branch cuts, against the CPU's (C99's Annex G)."""

import itertools

import pytest
import torch

from torch_tpu.lowering.complex_functions import FUNCTIONS

PARTS = (torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1.0, -1.0, 1.5, -0.5)
GRID = [complex(a, b) for a, b in itertools.product(PARTS, PARTS)]


def parts(name, device, dtype):
    made = getattr(torch, name)(torch.tensor(GRID, dtype=dtype, device=device))
    return torch.view_as_real(made).cpu()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name, dtype):
    got, expected = parts(name, "tpu", dtype), parts(name, "cpu", dtype)
    # C99 leaves the sign open of an infinity or zero beside a part that is NaN.
    beside_nan = expected.isnan().any(-1, keepdim=True)
    got, expected = torch.where(beside_nan, got.abs(), got), torch.where(beside_nan, expected.abs(), expected)
    torch.testing.assert_close(got, expected, equal_nan=True)
    if name == "acos" and dtype == torch.complex128:
        return  # the CPU has +0 for the imaginary part of acos(0), where C99 and its own complex64 have -0
    # Of infinite operands, too, the sign of a zero is open.
    finite = torch.tensor(GRID, dtype=dtype).isfinite().unsqueeze(-1)
    of_zero = [(finite & (x == 0) & x.signbit()).flatten().tolist() for x in (got, expected)]
    assert of_zero[0] == of_zero[1]


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_by_power_keep_the_side_of_the_cut(exponent):
    x = torch.tensor([complex(-4.0, 0.0), complex(-4.0, -0.0), complex(-1e-30, -0.0)])
    torch.testing.assert_close((x.to("tpu") ** exponent).cpu(), x**exponent)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_modulus_is_rounded_alike_in_every_program(dtype):
    """The gradient of the largest modulus looks for the element that equals it: none would make it NaN."""
    x = torch.randn(3000, dtype=dtype, device="tpu", requires_grad=True)
    norm = torch.linalg.vector_norm(x.reshape(-1, 3), torch.inf, 1)
    assert torch.equal(norm.detach(), x.detach().abs().reshape(-1, 3).amax(1))
    (gradient,) = torch.autograd.grad(norm.sum(), x)
    assert not gradient.isnan().any()
