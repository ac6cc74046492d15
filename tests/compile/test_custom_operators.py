"""Custom operators in a graph: their kernels become part of the program."""

import pytest
import torch
from torch import Tensor

from compile.support import check, compiled


@torch.library.custom_op("compile_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: float = 2.0) -> Tensor:
    return torch.sin(x) * by


@scaled.register_fake
def _(x, by=2.0):
    return torch.empty_like(x)


def _save(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.by = inputs[1]


scaled.register_autograd(lambda ctx, g: (g * ctx.saved_tensors[0].cos() * ctx.by, None), setup_context=_save)


@torch.library.custom_op("compile_tests::parts", mutates_args=())
def parts(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x.sum(0), [scaled(row, 3.0) for row in x]


@parts.register_fake
def _(x):
    return x.new_empty(x.shape[1:]), [torch.empty_like(row) for row in x]


@torch.library.custom_op("compile_tests::accumulate", mutates_args={"into"})
def accumulate(into: Tensor, x: Tensor) -> None:
    into.add_(x)
    into[0] = 0


@torch.library.custom_op("compile_tests::on_tpu", mutates_args=(), device_types="tpu")
def on_tpu(x: Tensor) -> Tensor:
    return x.cumsum(0)


@on_tpu.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("compile_tests::elsewhere", mutates_args=(), device_types="cuda")
def elsewhere(x: Tensor) -> Tensor:
    return x.clone()


@elsewhere.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("compile_tests::by_numpy", mutates_args=())
def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.cpu().numpy().copy()).to(x.device)


@by_numpy.register_fake
def _(x):
    return torch.empty_like(x)


def test_forward_and_backward():
    check(lambda x: scaled(x, 3.0).square(), torch.randn(3, 4, requires_grad=True), backward=True)


def test_several_results_and_operators_inside():
    check(lambda x: parts(x), torch.randn(3, 4))


def test_mutation_of_an_input_and_of_a_view():
    def fn(x, y):
        accumulate(x, y)
        accumulate(x[1:], y[1:])
        return x * 2

    check(fn, torch.randn(3, 4), torch.randn(3, 4))


def test_a_kernel_for_tpu_alone():
    x = torch.randn(5, device="tpu")
    torch.testing.assert_close(compiled(lambda x: on_tpu(x) + 1)(x), x.cumsum(0) + 1)


def test_no_kernel():
    with pytest.raises(Exception, match=r'(?s)compile_tests::elsewhere has no kernel for tpu.*"tpu".*test_custom_op'):
        compiled(lambda x: elsewhere(x))(torch.ones(3, device="tpu"))


def test_a_kernel_that_leaves_pytorch():
    with pytest.raises(
        Exception, match=r"(?s)kernel of compile_tests.by_numpy.* is not made of operators .*test_custom_operators"
    ):
        compiled(lambda x: by_numpy(x))(torch.ones(3, device="tpu"))
