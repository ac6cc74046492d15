import pytest
import torch
from harness import check

REAL = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.int8]


def make(shape, dtype):
    return torch.randn(shape).mul(3).to(dtype) if dtype.is_floating_point else torch.randint(0, 7, shape).to(dtype)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", ["aten::add.Tensor", "aten::mul.Tensor"])
def test_arithmetic(name, dtype):
    check(name, make((3, 4), dtype), make((4,), dtype))
    check(name, make((3, 4), dtype), make((), torch.float64))


def test_add_alpha():
    check("aten::add.Tensor", torch.randn(3), torch.randn(3), alpha=2.5)
