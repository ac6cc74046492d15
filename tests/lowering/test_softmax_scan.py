import pytest
import torch
from harness import check
from test_gather_scatter import make
from test_reduction import ALL, FLOATS, with_nan

SHAPES = [((3, 4, 5), 1), ((3, 4, 5), -1), ((), 0), ((), -1), ((1,), 0), ((0, 3), 1), ((3, 0), 1)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape, dim", SHAPES)
def test_softmax(shape, dim, dtype):
    x = make(shape, dtype) * 5
    grad = make(shape, dtype)
    for name in ("softmax", "log_softmax"):
        check(f"aten::_{name}", x, dim, False)
        check(f"aten::_{name}", with_nan(x), dim, False)
        check(f"aten::_{name}_backward_data", grad, getattr(torch, name)(x, dim), dim, dtype)
    check("aten::_safe_softmax", x, dim)
    check("aten::_safe_softmax", x, dim, torch.float64)


def test_softmax_of_masked_rows():
    x = torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf], [torch.inf, 0.0], [1e30, -1e30], [3e38, 3e38]])
    for name in ("aten::_softmax", "aten::_log_softmax"):
        check(name, x, 1, False)
    check("aten::_safe_softmax", x, 1)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape, dim", SHAPES)
def test_cumulative(shape, dim, dtype):
    x = make(shape, dtype)
    check("aten::cumsum", x, dim)
    check("aten::cumprod", x, dim)
    check("aten::cumsum", x, dim, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    check("aten::cumprod", make(shape, dtype), dim, dtype=torch.complex64 if dtype.is_complex else torch.int32)
    if dtype.is_floating_point:
        check("aten::logcumsumexp", x * 5, dim)
    if not dtype.is_complex:
        for name in ("aten::cummax", "aten::cummin"):
            check(name, x, dim)
            check(name, with_nan(x), dim)


def test_cumulative_special_values():
    x = torch.tensor([1.0, 3.0, 3.0, torch.nan, 5.0, torch.nan, 7.0])
    for name in ("aten::cummax", "aten::cummin", "aten::cumsum", "aten::cumprod", "aten::logcumsumexp"):
        check(name, x, 0)
        check(name, torch.tensor([-torch.inf, -torch.inf, 0.0, torch.inf, -torch.inf]), 0)


def test_a_long_cumsum_is_accurate():
    check("aten::cumsum", torch.rand(100_003), 0)
    check("aten::cumsum", torch.ones(5000, dtype=torch.bfloat16), 0)
