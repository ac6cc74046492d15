import pytest
import torch
from harness import check, run

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", FLOATS)
def test_embedding(dtype):
    w = torch.randn(7, 3).to(dtype)
    for shape in [(4,), (2, 5), (), (0,)]:
        i = torch.randint(0, 7, shape)
        check("aten::embedding", w, i, 2)
        check("aten::embedding", w, i.int())
        grad = torch.randn(*shape, 3).round().to(dtype)  # exact sums: PyTorch rounds half types at each step
        for padding, by_freq in [(-1, False), (2, False)] + ([(2, True)] if dtype.itemsize > 2 else []):
            check("aten::embedding_dense_backward", grad, i, 7, padding, by_freq)


BAGS = [([0, 3, 3, 7], False), ([0, 4], False), ([0, 2, 2, 9], True)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offsets, last", BAGS)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_embedding_bag(mode, offsets, last, dtype):
    w, i, offsets = torch.randn(7, 3).round().to(dtype), torch.randint(0, 7, (9,)), torch.tensor(offsets)
    i[2] = 2
    for padding in (-1, 2):
        check("aten::_embedding_bag", w, i, offsets, False, mode, False, None, last, padding)
        check("aten::_embedding_bag_forward_only", w, i, offsets, False, mode, False, None, last, padding)
        if dtype.itemsize > 2:
            backward(w, i, offsets, mode, None, last, padding)
    if mode == 0:
        s = torch.randn(9).round().to(dtype)
        check("aten::_embedding_bag", w, i, offsets, False, mode, False, s, last)
        if dtype.itemsize > 2:
            backward(w, i, offsets, mode, s, last, 2)


def backward(w, i, offsets, mode, s, last, padding):
    out, bag, size, largest = torch.ops.aten._embedding_bag(w, i, offsets, False, mode, False, s, last, padding)
    grad = torch.randn_like(out)
    if bag.numel() == 0:
        starts = torch.zeros(len(i) + 1, dtype=torch.int64).index_add(0, offsets, torch.ones_like(offsets))
        bag = starts[:-1].cumsum(0) - 1
        bag = bag.clamp(max=len(out) - 1)
    check("aten::_embedding_bag_dense_backward", grad, i, bag, size, largest, 7, False, mode, s, padding)
    check("aten::_embedding_bag_backward", grad, i, offsets, bag, size, largest, 7, False, mode, False, s, padding)
    if mode == 0:
        check("aten::_embedding_bag_per_sample_weights_backward", grad, w, i, offsets, bag, mode, padding)


def test_bag_gradient_scaled_by_frequency_is_that_of_the_embedding():
    # CPU divides by the count of another index here (pytorch EmbeddingBag.cpp indexes the sorted indices by the
    # number of the distinct index); for bags of one, embedding_dense_backward is the reference.
    i, grad = torch.tensor([5, 5, 5, 1, 0, 0]), torch.randn(6, 2)
    ones = torch.ones(6, dtype=torch.int64)
    args = (grad, i, torch.arange(6), ones, ones[:, None], 7, True, 0, None, -1)
    got = run("aten::_embedding_bag_dense_backward", *args)
    torch.testing.assert_close(got[0], torch.ops.aten.embedding_dense_backward(grad, i, 7, -1, True))
