"""hash_tensor against PyTorch on CPU: bit for bit."""

import pytest
import torch
from harness import check

TYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64,
    torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_dimensions(dtype):
    x = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    check("aten::hash_tensor", x)
    check("aten::hash_tensor", x, [1], keepdim=True)
    check("aten::hash_tensor", x, [0])
    check("aten::hash_tensor", x[0, 0])


def test_special_values():
    x = torch.tensor([[1e-42], [float("inf")], [-0.0], [0.0], [float("nan")], [-1e-45], [1.1754942e-38], [-1e-38]])
    check("aten::hash_tensor", x, [1])
    check("aten::hash_tensor", x.double(), [1])
