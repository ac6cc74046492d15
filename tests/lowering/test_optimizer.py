"""Fused optimizer steps and loss scaling, against PyTorch on CPU.

The functional operators on CPU leave their arguments alone, so that one call gives what is expected.
"""

import pytest
import torch
from harness import check

FLOAT = [torch.float32, torch.float64, torch.bfloat16]
SHAPES = [(3, 4), (), (0,), (5,)]


def tensors(dtype, *, positive=False):
    made = [torch.randn(s).to(dtype) for s in SHAPES]
    return [t.abs() for t in made] if positive else made


def steps(value):
    return [torch.tensor(float(value)) for _ in SHAPES]


def scaling(kind):
    if kind == "none":
        return {}
    return {"grad_scale": torch.tensor(128.0), "found_inf": torch.tensor(1.0 if kind == "overflow" else 0.0)}


def with_rate(name, lr, tensor_lr):
    return (f"aten::{name}.tensor_lr", torch.tensor(lr)) if tensor_lr else (f"aten::{name}", lr)


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("step", [1, 100])
@pytest.mark.parametrize(
    ("amsgrad", "maximize", "decay", "scale", "tensor_lr"),
    [
        (False, False, 0.0, "none", False),
        (False, False, 0.1, "none", True),
        (True, False, 0.1, "scaled", False),
        (True, True, 0.1, "scaled", True),
        (False, True, 0.1, "overflow", False),
    ],
)
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
def test_adam(name, amsgrad, maximize, decay, scale, tensor_lr, step, dtype):
    op, lr = with_rate(name, 0.01, tensor_lr)
    largest = tensors(dtype, positive=True) if amsgrad else []
    check(
        op, tensors(dtype), tensors(dtype), tensors(dtype), tensors(dtype, positive=True), largest, steps(step),
        lr=lr, beta1=0.9, beta2=0.99, weight_decay=decay, eps=1e-8, amsgrad=amsgrad, maximize=maximize,
        **scaling(scale),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov", "first", "maximize", "scale", "tensor_lr"),
    [
        (0.0, 0.0, False, True, False, "none", False),
        (0.9, 0.0, False, True, False, "none", False),
        (0.9, 0.3, False, False, True, "scaled", False),
        (0.9, 0.0, True, False, False, "none", True),
        (0.9, 0.0, True, False, False, "overflow", False),
    ],
)
def test_sgd(momentum, dampening, nesterov, first, maximize, scale, tensor_lr, dtype):
    op, lr = with_rate("_fused_sgd", 0.1, tensor_lr)
    check(
        op, tensors(dtype), tensors(dtype), tensors(dtype) if momentum else [], weight_decay=0.2, momentum=momentum,
        lr=lr, dampening=dampening, nesterov=nesterov, maximize=maximize, is_first_step=first, **scaling(scale),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize(("maximize", "scale", "tensor_lr"), [(False, "none", False), (True, "none", True)])
def test_adagrad(maximize, scale, tensor_lr, dtype):
    op, lr = with_rate("_fused_adagrad", 0.1, tensor_lr)
    check(
        op, tensors(dtype), tensors(dtype), tensors(dtype, positive=True), steps(7),
        lr=lr, lr_decay=0.2, weight_decay=0.1, eps=1e-10, maximize=maximize, **scaling(scale),
    )  # fmt: skip


def test_lists_stay_apart():
    """Each tensor of each list has another value, so that two lists or two places exchanged would show."""
    values = iter(range(1, 100))
    lists = [[torch.full((2,), float(next(values))) for _ in range(3)] for _ in range(4)]
    check(
        "aten::_fused_adam", *lists, [], [torch.tensor(float(s)) for s in (1, 5, 50)], lr=0.5, beta1=0.9, beta2=0.99,
        weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOAT, torch.float16])
@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_amp_unscale(dtype, bad, found):
    grads = tensors(dtype)
    if bad is not None:
        grads[0][1, 2] = bad
    inverse, found_inf = torch.tensor(1 / 64), torch.tensor(found)
    check("aten::_amp_foreach_non_finite_check_and_unscale", grads, found_inf, inverse)


@pytest.mark.parametrize("scale", [1024.0, 3e38])
@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 9])
def test_amp_update_scale(scale, found, tracker):
    count = torch.tensor(tracker, dtype=torch.int32)
    check("aten::_amp_update_scale", torch.tensor(scale), count, torch.tensor(found), 2.0, 0.5, 10)
