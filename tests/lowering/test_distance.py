"""Pairwise distances and their gradients, against PyTorch on CPU."""

import pytest
import torch
from harness import check

NORMS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")]
# (first, second): plain, batched, many rows (the matrix product), empty rows, no columns
SHAPES = [((4, 3), (5, 3)), ((2, 4, 3), (2, 5, 3)), ((30, 6), (7, 6)), ((0, 3), (5, 3)), ((4, 0), (5, 0))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("p", NORMS)
def test_cdist(p, shapes, dtype):
    a, b = (torch.randn(s, dtype=dtype) for s in shapes)
    check("aten::_cdist_forward", a, b, p, None)


@pytest.mark.parametrize("mode", [1, 2])
def test_cdist_mode(mode):
    check("aten::_cdist_forward", torch.randn(4, 3), torch.randn(40, 3), 2.0, mode)
    check("aten::_euclidean_dist", torch.randn(4, 3), torch.randn(40, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", NORMS)
def test_cdist_backward(p, dtype):
    a, b = torch.randn(2, 4, 3, dtype=dtype), torch.randn(2, 5, 3, dtype=dtype)
    a[0, 1] = b[0, 2]  # equal rows
    a[1, 0, 1] = b[1, 0, 1]  # one equal coordinate
    distance = torch.ops.aten._cdist_forward(a, b, p, 2)
    check("aten::_cdist_backward", torch.randn(2, 4, 5, dtype=dtype), a, b, p, distance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [0, 1, 2, 7])
@pytest.mark.parametrize("p", NORMS)
def test_pdist(p, rows, dtype):
    x = torch.randn(rows, 3, dtype=dtype)
    if rows > 2:
        x[4] = x[1]
    check("aten::_pdist_forward", x, p)
    distance = torch.ops.aten._pdist_forward(x, p)
    if rows:  # PyTorch 2.13 ends the process here when there are no rows
        check("aten::_pdist_backward", torch.randn(distance.shape, dtype=dtype), x, p, distance)


def test_cdist_backward_of_an_empty_batch():
    grad = torch.ones(0, 4, 3)
    check("aten::_cdist_backward", grad, torch.randn(4, 5), torch.randn(0, 3, 5), 2.0, grad)
