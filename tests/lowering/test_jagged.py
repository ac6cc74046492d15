"""Rows of jagged nested tensors, padded and back, against PyTorch on CPU."""

import pytest
import torch
from harness import check

OFFSETS = torch.tensor([0, 3, 3, 8])


@pytest.mark.parametrize("longest", [5, 3, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_padded(longest, dtype):
    values = torch.arange(16, dtype=dtype).view(8, 2)
    check("aten::_jagged_to_padded_dense_forward", values, [OFFSETS], [longest], -1.0)


@pytest.mark.parametrize("total", [8, 0])
def test_jagged(total):
    offsets = OFFSETS if total else torch.zeros(4, dtype=torch.int64)
    check("aten::_padded_dense_to_jagged_forward", torch.arange(30.0).view(3, 5, 2), [offsets], total)


def test_a_component_longer_than_the_padded_dimension():
    dense, offsets = torch.ones(2, 3, 2, device="tpu"), torch.tensor([0, 3, 8], device="tpu")
    torch.ops.aten._padded_dense_to_jagged_forward(dense, [offsets], 8)
    with pytest.raises(RuntimeError, match="batch item of length 5 when max length specified by padded input is 3"):
        torch.tpu.synchronize()


def test_the_number_of_rows_is_read_where_it_is_not_said():
    dense, before = torch.arange(30.0).view(3, 5, 2), dict(torch.tpu.fallback_counts())
    got = torch.ops.aten._padded_dense_to_jagged_forward(dense.to("tpu"), [OFFSETS.to("tpu")])
    assert torch.equal(got.cpu(), torch.ops.aten._padded_dense_to_jagged_forward(dense, [OFFSETS]))
    assert torch.tpu.fallback_counts() == before
