"""Average pooling and its gradient against PyTorch on CPU."""

import pytest
import torch
from harness import check

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def make(shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
SLIDING_2D = {
    "plain": ([2, 3], [2, 1], [0, 0], False, True, None),
    "default stride": ([3], [], [1], False, True, None),
    "padding not counted": ([3, 3], [2, 2], [1, 1], False, False, None),
    "ceil": ([3, 2], [2, 2], [1, 1], True, True, None),
    "ceil, padding not counted": ([3, 2], [2, 3], [1, 0], True, False, None),
    "divisor": ([2, 2], [3, 1], [1, 0], False, True, 3),
    "whole plane": ([7, 8], [1, 1], [0, 0], False, True, None),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", SLIDING_2D.values(), ids=SLIDING_2D)
@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (3, 7, 8)])
def test_avg_pool2d(dtype, case, shape):
    x = make(shape, dtype)
    check("aten::avg_pool2d", x, *case)
    y = torch.ops.aten.avg_pool2d(x, *case)
    check("aten::avg_pool2d_backward", make(tuple(y.shape), dtype, 1), x, *case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_avg_pool3d(dtype):
    for case in [([2, 3, 1], [2, 1, 2], [1, 1, 0], True, False, None), ([2], [], [0], False, True, 5)]:
        x = make((1, 2, 5, 6, 4), dtype)
        check("aten::avg_pool3d", x, *case)
        y = torch.ops.aten.avg_pool3d(x, *case)
        check("aten::avg_pool3d_backward", make(tuple(y.shape), dtype, 1), x, *case)


def test_integers_truncate():
    check("aten::avg_pool2d", torch.randint(-9, 9, (1, 2, 6, 6)), [2, 2])


@pytest.mark.parametrize("shape", [(1, 1, 40, 80), (0, 2, 4, 4)])
def test_large_windows_and_empty_batch(shape):
    for kernel in ([3, 40], [40, 80]) if shape[0] else ([2, 2],):
        case = (kernel, [1, 1], [0, 0], False, True, None)
        x = make(shape)
        check("aten::avg_pool2d", x, *case)
        y = torch.ops.aten.avg_pool2d(x, *case)
        check("aten::avg_pool2d_backward", make(tuple(y.shape), seed=1), x, *case)


def test_infinity_stays_in_its_window():
    x = make((1, 1, 6, 6))
    x[0, 0, 2, 2], x[0, 0, 4, 5] = float("inf"), float("nan")
    check("aten::avg_pool2d", x, [2, 2], [1, 1], [1, 1])
    check("aten::_adaptive_avg_pool2d", x, [4, 5])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("out", [[1, 1], [3, 4], [7, 8], [10, 5], [0, 2]])
@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (3, 7, 8)])
def test_adaptive_avg_pool2d(dtype, out, shape):
    x = make(shape, dtype)
    check("aten::_adaptive_avg_pool2d", x, out)
    if out[0]:
        check("aten::_adaptive_avg_pool2d_backward", make((*shape[:-2], *out), dtype, 1), x)


@pytest.mark.parametrize("out", [[1, 1, 1], [2, 5, 3]])
def test_adaptive_avg_pool3d(out):
    x = make((2, 2, 5, 4, 6))
    check("aten::_adaptive_avg_pool3d", x, out)
    check("aten::_adaptive_avg_pool3d_backward", make((2, 2, *out), seed=1), x)
