"""Convolution and its gradients against PyTorch on CPU."""

import pytest
import torch
import torch.nn.functional as F
from harness import check
from masked import check_masks

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def make(shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float32).to(dtype)


# input, weight, stride, padding, dilation, transposed, output padding, groups
CASES = {
    "1d": ((2, 3, 9), (4, 3, 3), [1], [0], [1], False, [0], 1),
    "1d strided": ((2, 4, 10), (6, 2, 3), [2], [1], [2], False, [0], 2),
    "2d": ((2, 3, 7, 8), (4, 3, 3, 2), [1, 1], [1, 0], [1, 1], False, [0, 0], 1),
    "2d leftover": ((2, 3, 8, 9), (4, 3, 3, 3), [3, 2], [1, 2], [1, 2], False, [0, 0], 1),
    "depthwise": ((2, 4, 6, 6), (8, 1, 3, 3), [1, 2], [1, 1], [1, 1], False, [0, 0], 4),
    "pointwise": ((2, 4, 5, 5), (6, 4, 1, 1), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    "padding beyond the window": ((1, 2, 3, 3), (2, 2, 1, 2), [1, 1], [2, 3], [1, 1], False, [0, 0], 1),
    "3d": ((1, 2, 5, 6, 4), (4, 1, 3, 2, 1), [2, 1, 1], [1, 0, 1], [1, 2, 1], False, [0, 0, 0], 2),
    "transposed 1d": ((2, 4, 5), (4, 3, 3), [2], [1], [1], True, [1], 1),
    "transposed 2d": ((2, 4, 4, 5), (4, 3, 3, 2), [2, 3], [1, 0], [2, 1], True, [1, 2], 2),
    "transposed 3d": ((1, 2, 3, 2, 3), (2, 2, 2, 3, 1), [1, 2, 2], [0, 1, 0], [1, 1, 2], True, [0, 1, 1], 1),
    "transposed, padding beyond the window": ((1, 2, 6, 6), (2, 2, 2, 2), [1, 1], [2, 3], [1, 1], True, [0, 0], 1),
    "transposed, output padding beyond the stride": (
        (2, 4, 4, 4),
        (4, 2, 5, 6),
        [2, 1],
        [2, 3],
        [4, 4],
        True,
        [3, 1],
        2,
    ),
    "empty batch": ((0, 3, 5, 5), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "one number for all": ((2, 3, 7, 8), (4, 3, 3, 2), [2], [1], [1], False, [0], 1),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_forward_and_backward(dtype, case):
    x, w, stride, padding, dilation, transposed, output_padding, groups = case
    if len(stride) < len(x) - 2:
        args = [stride, padding, dilation, transposed, output_padding, groups]
        check("aten::convolution", make(x, dtype), make(w, dtype), None, *args)
        return
    x, w = make(x, dtype), make(w, dtype)
    bias = make((w.shape[1] * groups if transposed else w.shape[0],), dtype)
    args = [stride, padding, dilation, transposed, output_padding, groups]
    check("aten::convolution", x, w, bias, *args)
    y = torch.ops.aten.convolution(x, w, None, *args)
    check("aten::convolution_backward", make(tuple(y.shape), dtype, 1), x, w, [len(bias)], *args, [True] * 3)


def test_output_mask():
    for name in ("2d", "transposed 2d"):
        x, w, *args = CASES[name]
        x, w = make(x), make(w)
        grad = torch.ops.aten.convolution(x, w, None, *args)
        check_masks("aten::convolution_backward_overrideable", grad, x, w, *args, None)


def test_flags_and_tbc():
    x, w, *args = CASES["2d"]
    check("aten::_convolution", make(x), make(w), None, *args, False, False, True, True)
    for pad in (0, 2):
        check("aten::conv_tbc", make((6, 2, 3)), make((3, 3, 4)), make((4,)), pad)


def test_nan_stays_in_its_window():
    x = make((1, 1, 6))
    x[0, 0, 4] = float("nan")
    check("aten::convolution", x, make((1, 1, 2)), None, [1], [0], [1], False, [0], 1)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(("groups", "stride", "padding", "dilation"), [(1, 1, 0, 1), (2, 2, 1, 2), (2, 3, 2, 1)])
def test_64_bit_integers_are_exact(dims, groups, stride, padding, dilation):
    """XLA:TPU has no convolution of them; it is a matrix product for each place of the window."""
    x = torch.randint(-(2**40), 2**40, (2, 4, *[7] * dims))
    forward, back = getattr(F, f"conv{dims}d"), getattr(F, f"conv_transpose{dims}d")
    w = torch.randint(-(2**30), 2**30, (6, 4 // groups, *[2] * dims))
    options = (None, stride, padding, dilation, groups)
    assert torch.equal(forward(x.to("tpu"), w.to("tpu"), *options).cpu(), forward(x, w, *options))
    w = torch.randint(-(2**30), 2**30, (4, 3, *[2] * dims))
    options = (None, stride, padding, 0, groups, dilation)
    assert torch.equal(back(x.to("tpu"), w.to("tpu"), *options).cpu(), back(x, w, *options))
