"""Losses and their gradients, against PyTorch on CPU."""

import jax.numpy as jnp
import pytest
import torch
from harness import check

from torch_tpu.lowering import checks, loss

FLOAT = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
REDUCTIONS = [0, 1, 2]


def gradient(result_shape, reduction, dtype):
    return torch.randn(() if reduction else result_shape).to(dtype)


PAIRWISE = [
    ("mse_loss", ()),
    ("smooth_l1_loss", (1.0,)),
    ("smooth_l1_loss", (0.4,)),
    ("smooth_l1_loss", (0.0,)),
    ("huber_loss", (1.0,)),
    ("huber_loss", (0.7,)),
    ("soft_margin_loss", ()),
]


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "extra"), PAIRWISE)
def test_elementwise(name, extra, reduction, dtype):
    a, b = torch.randn(5, 4).to(dtype), torch.randn(5, 4).to(dtype)
    a[0] = b[0]
    check(f"aten::{name}", a, b, reduction, *extra)
    if extra != (0.0,):  # with beta 0 PyTorch calls the L1 loss instead
        check(f"aten::{name}_backward", gradient((5, 4), reduction, dtype), a, b, reduction, *extra)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"])
def test_shapes(name, reduction):
    args = (None, None, reduction) if "logits" in name else (reduction,)
    check(f"aten::{name}", torch.rand(()), torch.rand(()), *args)
    check(f"aten::{name}", torch.rand(0, 3), torch.rand(0, 3), *args)


def test_mse_broadcasts_and_promotes():
    check("aten::mse_loss", torch.randn(5, 4), torch.randn(4))
    check("aten::mse_loss", torch.randn(5, 4), torch.randn(5, 4).double(), 2)


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(dtype, reduction, weighted):
    p, t = torch.rand(5, 4).to(dtype), torch.rand(5, 4).to(dtype)
    p[0] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    t[0] = torch.tensor([0.0, 1.0, 1.0, 0.0])
    weight = torch.rand(4).to(dtype) if weighted else None
    check("aten::binary_cross_entropy", p, t, weight, reduction)
    q = p[1:]  # at 0 and 1 the gradient is 1e12 and overflows float16
    check("aten::binary_cross_entropy_backward", gradient(q.shape, reduction, dtype), q, t[1:], weight, reduction)


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weights", [(False, False), (True, False), (False, True), (True, True)])
def test_binary_cross_entropy_with_logits(dtype, reduction, weights):
    x, t = torch.randn(5, 4).mul(8).to(dtype), torch.rand(5, 4).to(dtype)
    weight, pos_weight = (torch.rand(4).to(dtype) if w else None for w in weights)
    check("aten::binary_cross_entropy_with_logits", x, t, weight, pos_weight, reduction)


def test_binary_cross_entropy_integer_weight():
    check("aten::binary_cross_entropy_with_logits", torch.randn(3), torch.rand(3), torch.tensor([1, 2, 3]), None, 1)


def test_binary_cross_entropy_checks_its_range():
    with checks.collect() as found:
        loss.binary_cross_entropy(jnp.asarray([0.5, 1.5, -0.1]), jnp.asarray([1.0, 0.0, 0.0]))
    assert [int(c.report[0]) for c in found] == [2] and found[0].error is RuntimeError


NLL = [((5, 7), (5,), ""), ((7,), (), ""), ((3, 7, 2, 4), (3, 2, 4), "2d")]


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "target_shape", "kind"), NLL)
def test_nll_loss(shape, target_shape, kind, weighted, reduction, dtype):
    scores = torch.randn(shape).log_softmax(0 if len(shape) == 1 else 1).to(dtype)
    target = torch.randint(0, 7, target_shape)
    if target.ndim:
        target[0] = 2  # ignored
        scores[0, 2] = float("-inf")
    weight = torch.rand(7).to(dtype) if weighted else None
    ignore = 2 if target.ndim else -100
    check(f"aten::nll_loss{kind}_forward", scores, target, weight, reduction, ignore)
    result, total = getattr(torch.ops.aten, f"nll_loss{kind}_forward")(scores, target, weight, reduction, ignore)
    grad = torch.randn(result.shape).to(dtype)
    check(f"aten::nll_loss{kind}_backward", grad, scores, target, weight, reduction, ignore, total)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss_empty_or_all_ignored(reduction):
    check("aten::nll_loss_forward", torch.randn(0, 4), torch.zeros(0, dtype=torch.long), None, reduction, -100)
    check("aten::nll_loss_forward", torch.randn(2, 4), torch.full((2,), -100), None, reduction, -100)


def test_nll_loss_checks_its_targets():
    with checks.collect() as found:
        loss.nll_loss_forward(jnp.zeros((3, 4)), jnp.asarray([1, 4, -100]), None, 1, -100)
    assert int(found[0].report[0]) == 1 and int(found[0].report[1]) == 4
    assert found[0].message.format(value=4) == "nll_loss: target 4 is out of bounds for 4 classes"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("p", "margin", "weighted"), [(1, 1, False), (2, 1, False), (1, 0.3, True), (2, 0.5, True)])
@pytest.mark.parametrize("shape", [(5, 7), (7,)])
def test_multi_margin(shape, p, margin, weighted, reduction, dtype):
    x, target = torch.randn(shape, dtype=dtype), torch.randint(0, 7, shape[:-1])
    weight = torch.rand(7, dtype=dtype) if weighted else None
    check("aten::multi_margin_loss", x, target, p, margin, weight, reduction)
    grad = gradient(target.shape, reduction, dtype)
    check("aten::multi_margin_loss_backward", grad, x, target, p, margin, weight, reduction)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5, 7), (7,)])
def test_multilabel_margin(shape, reduction, dtype):
    x = torch.randn(shape, dtype=dtype)
    target = torch.stack([torch.randperm(7) for _ in range(x.numel() // 7)]).reshape(shape)
    target[..., 3] = -1  # what follows is not a target
    check("aten::multilabel_margin_loss_forward", x, target, reduction)
    result, is_target = torch.ops.aten.multilabel_margin_loss_forward(x, target, reduction)
    grad = torch.randn(result.shape, dtype=dtype)
    check("aten::multilabel_margin_loss_backward", grad, x, target, reduction, is_target)
