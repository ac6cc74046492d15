"""Histograms against PyTorch on CPU."""

import pytest
import torch
from harness import check

TYPES = [torch.float32, torch.float64]


def _points(dtype, *shape):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("limits", [None, (-1.0, 1.0)])
@pytest.mark.parametrize("density", [False, True])
def test_of_counts_of_bins(dtype, limits, density):
    x = _points(dtype, 40)
    for weight in (None, torch.rand(40).to(dtype)):
        check("aten::histogram.bin_ct", x, 7, range=limits, weight=weight, density=density)
    two = None if limits is None else (*limits, -2.0, 2.0)
    check("aten::_histogramdd_bin_edges", x.reshape(20, 2), [3, 4], range=two)
    check("aten::_histogramdd_from_bin_cts", x.reshape(20, 2), [3, 4], range=two, density=density)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("density", [False, True])
def test_of_edges(dtype, density):
    x, edges = _points(dtype, 40), [torch.tensor([-1.0, 0, 0.5, 2]).to(dtype), torch.tensor([-1.0, 0, 2]).to(dtype)]
    check("aten::histogram.bins_tensor", x, edges[0], density=density)
    check("aten::histogram.bins_tensor", x, edges[0], weight=torch.rand(40).to(dtype), density=density)
    check("aten::_histogramdd_from_bin_tensors", x.reshape(20, 2), edges, density=density)


def test_edge_cases():
    check("aten::histogram.bin_ct", torch.zeros(0), 3)
    check("aten::histogram.bin_ct", torch.ones(4), 3)
    check("aten::histogram.bin_ct", torch.tensor([1.0, 2.0, float("nan")]), 4, range=(0.0, 4.0))
    check("aten::histogram.bin_ct", torch.arange(0, 1, 0.1), 10)
    check("aten::histogram.bins_tensor", torch.tensor([1.0, 2, 2]), torch.tensor([1.0, 1, 2, 2]))
