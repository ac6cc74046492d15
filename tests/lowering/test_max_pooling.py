"""Max pooling: values, indices and gradients against PyTorch on CPU."""

import jax
import pytest
import torch
from harness import check, to_array

from torch_tpu.lowering import checks, registry

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.uint8]


def make(shape, dtype=torch.float32, seed=0):
    """Few distinct values, so that there are ties."""
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(0 if dtype is torch.uint8 else -3, 4, shape, generator=g).to(dtype)


# kernel, stride, padding, dilation, ceil_mode
CASES_2D = {
    "plain": ([2, 3], [2, 1], [0, 0], [1, 1], False),
    "default stride": ([3], [], [1], [1], False),
    "overlapping, padded": ([3, 3], [2, 2], [1, 1], [1, 1], False),
    "ceil": ([3, 2], [2, 2], [1, 1], [1, 1], True),
    "dilated": ([2, 3], [1, 2], [1, 1], [3, 2], True),
    "whole plane": ([7, 8], [1, 1], [0, 0], [1, 1], False),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES_2D.values(), ids=CASES_2D)
@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (3, 7, 8)])
def test_max_pool2d(dtype, case, shape):
    x = make(shape, dtype)
    check("aten::max_pool2d_with_indices", x, *case)
    if dtype.is_floating_point:
        y, indices = torch.ops.aten.max_pool2d_with_indices(x, *case)
        grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        # CPU adds half types in their own type; the tolerance is one rounding of each of up to 4 additions.
        atol = 5e-2 if dtype is torch.bfloat16 else 5e-3 if dtype is torch.float16 else None
        check("aten::max_pool2d_with_indices_backward", grad, x, *case, indices, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_max_pool3d(dtype):
    cases = [
        ([2, 3, 1], [2, 1, 2], [1, 1, 0], [1, 1, 1], True),
        ([2], [], [0], [2], False),
        ([3], [1], [1], [1], False),
    ]
    for case in cases:
        x = make((1, 2, 5, 6, 4), dtype)
        check("aten::max_pool3d_with_indices", x, *case)
        if dtype.is_floating_point:
            y, indices = torch.ops.aten.max_pool3d_with_indices(x, *case)
            check("aten::max_pool3d_with_indices_backward", torch.randn(y.shape), x, *case, indices)


def test_nan_and_infinities():
    x = make((1, 2, 5, 5))
    x[0, 0, 1, 1] = x[0, 0, 2, 2] = x[0, 0, 2, 0] = float("nan")
    x[0, 1] = -float("inf")
    check("aten::max_pool2d_with_indices", x, [3, 3], [1, 1], [1, 1])
    check("aten::adaptive_max_pool2d", x, [2, 3])


@pytest.mark.parametrize("kernel", [[1, 70], [70, 70]])
def test_large_windows(kernel):
    x = torch.randn(1, 2, 70, 80, generator=torch.Generator().manual_seed(3))
    x[0, 0, 3, 50] = float("nan")
    check("aten::max_pool2d_with_indices", x, kernel, [1, 1])


def test_empty_batch():
    x = torch.zeros(0, 2, 4, 4)
    check("aten::max_pool2d_with_indices", x, [2, 2])
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])
    check("aten::max_pool2d_with_indices_backward", y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("out", [[1, 1], [3, 4], [7, 8], [9, 5]])
def test_adaptive_max_pool(dtype, out):
    x = make((2, 3, 7, 8), dtype)
    check("aten::adaptive_max_pool2d", x, out)
    _, indices = torch.ops.aten.adaptive_max_pool2d(x, out)
    check("aten::adaptive_max_pool2d_backward", make((2, 3, *out), dtype, 1), x, indices)
    x, out = make((2, 2, 7, 8, 3), dtype), [*out, 2]
    check("aten::adaptive_max_pool3d", x, out)
    _, indices = torch.ops.aten.adaptive_max_pool3d(x, out)
    check("aten::adaptive_max_pool3d_backward", make((2, 2, *out), dtype, 1), x, indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batched", [True, False])
def test_fractional_max_pool(dtype, batched):
    samples = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(5)).to(dtype)
    x = make((2, 3, 9, 8), dtype)
    if not batched:
        x, samples = x[0], samples[:1]
    for kernel, out in [([2, 3], [4, 3]), ([3, 2], [1, 5])]:
        check("aten::fractional_max_pool2d", x, kernel, out, samples)
        y, indices = torch.ops.aten.fractional_max_pool2d(x, kernel, out, samples)
        check("aten::fractional_max_pool2d_backward", make(tuple(y.shape), dtype), x, kernel, out, indices)
    samples = torch.rand(2, 2, 3, generator=torch.Generator().manual_seed(5)).to(dtype)
    x = make((2, 2, 6, 9, 8), dtype)
    check("aten::fractional_max_pool3d", x, [2, 3, 2], [3, 4, 5], samples)
    y, indices = torch.ops.aten.fractional_max_pool3d(x, [2, 3, 2], [3, 4, 5], samples)
    check("aten::fractional_max_pool3d_backward", make(tuple(y.shape), dtype), x, [2, 3, 2], [3, 4, 5], indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_max_unpool(dtype):
    y, indices = torch.ops.aten.max_pool2d_with_indices(make((2, 3, 6, 8), dtype), [2, 2])
    check("aten::max_unpool2d", y, indices, [7, 9])
    y, indices = torch.ops.aten.max_pool3d_with_indices(make((2, 3, 4, 6, 8), dtype), [2, 2, 2])
    check("aten::max_unpool3d", y, indices, [4, 6, 8], [2, 2, 2], [0, 0, 0])


def test_max_unpool_checks_its_indices():
    x, indices = torch.ones(1, 1, 1, 2), torch.tensor([[[[0, 99]]]])
    with jax.enable_x64(True), checks.collect() as found:
        registry.get("aten::max_unpool2d").fn(to_array(x), to_array(indices), [2, 2])
        assert found[0].report.tolist() == [1, 99] and found[0].error is RuntimeError
