"""What ``binding/derivatives.py`` relies on in PyTorch's autograd, a test a promise."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from torch_tpu.binding import custom_operators, derivatives


@torch.library.custom_op("contract_derivatives::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


double.register_autograd(lambda ctx, grad: 3 * grad)


def test_the_kernel_of_register_autograd_goes_below_autograd():
    op, registered, recorded = torch.ops.contract_derivatives.double.default, derivatives.registered(double), []

    def kernel(keys, x):
        recorded.append(derivatives.below(op, keys, [x], {}).requires_grad)
        return registered(keys, x)

    custom_operators.override(double, "Autograd", kernel)
    x = torch.ones(2, requires_grad=True)
    y = double(x)
    y.sum().backward()
    assert y.tolist() == [2, 2] and x.grad is not None and x.grad.tolist() == [3, 3]
    assert recorded == [False]


def test_when_derivatives_are_asked_for():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    assert derivatives.asked_for([1, x]) and derivatives.asked_for([[y, x]]) and not derivatives.asked_for([y, "no"])
    with torch.no_grad():
        assert not derivatives.asked_for([x])
    with forward_ad.dual_level():
        assert derivatives.asked_for([y])


def test_modes_are_those_of_the_block():
    assert derivatives.modes() == (True, True)
    with derivatives.in_modes((False, False)):
        assert derivatives.modes() == (False, False)
    assert derivatives.modes() == (True, True)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


def test_a_function_is_applied_without_the_check_of_levels():
    x = torch.ones(2, requires_grad=True)
    derivatives.at_one_level(Double)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3]
