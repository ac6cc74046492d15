"""Reductions of segments and their gradients against PyTorch on CPU."""

import pytest
import torch
from harness import check, run

SEGMENTS = {
    "lengths": {"lengths": torch.tensor([2, 0, 4])},
    "short lengths": {"lengths": torch.tensor([2, 0, 1]), "unsafe": True},
    "offsets": {"offsets": torch.tensor([0, 2, 2, 6])},
    "offsets with a gap before": {"offsets": torch.tensor([1, 2, 2, 5])},
    "along the second dimension": {"lengths": torch.tensor([[1, 2], [3, 0]]).repeat(3, 1), "axis": 1},
    "offsets and a start": {"offsets": torch.tensor([[0, 2, 3]]).repeat(6, 1), "axis": 1, "initial": 0.5},
    "lengths and a start": {"lengths": torch.tensor([2, 0, 4]), "initial": 2.0},
}


@pytest.mark.parametrize("how", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradients(how, segments, dtype):
    x = torch.randn(6, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    given = dict(SEGMENTS[segments])
    check("aten::segment_reduce", x, how, **given)
    result = torch.segment_reduce(x, how, **given)
    given.pop("unsafe", None)
    check("aten::_segment_reduce_backward", torch.ones_like(result) / 3, result, x, how, **given)


def test_gradient_of_a_product_with_zeros_and_nan():
    x = torch.tensor([0.0, 2, 3, 0, 0, float("nan"), 4, 5, 1])
    lengths = torch.tensor([3, 2, 4])
    result = torch.segment_reduce(x, "prod", lengths=lengths)
    check("aten::_segment_reduce_backward", torch.rand(3), result, x, "prod", lengths=lengths)


def test_equal_extrema_share_a_gradient_of_any_sign():
    x, lengths = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([3])
    (got,) = run("aten::_segment_reduce_backward", torch.tensor([-1.0]), torch.ones(1), x, "max", lengths=lengths)
    torch.testing.assert_close(got, torch.tensor([-0.5, -0.5, 0.0]))
