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


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_logcumsumexp(dtype):
    """The imaginary part follows the greatest element so far: it is not brought back to [-pi, pi]."""
    x = make((7, 5), dtype) * 8
    x[3, 2] = complex(-torch.inf, 1.0)
    x[5, 1] = complex(torch.nan, 1.0)
    for dim in (0, 1):
        check("aten::logcumsumexp", x, dim)
        check("aten::logaddexp", x, x.roll(1, dim))
    check("aten::logcumsumexp", make((), dtype), 0)
    check("aten::logcumsumexp", make((0, 3), dtype), 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_masked_softmax(dtype):
    x = make((2, 3, 4, 4), dtype)
    mask = torch.rand(4, 4) > 0.6
    mask[0] = True  # a row without any element is NaN
    whole = mask.expand(2, 3, 4, 4).contiguous()
    for dim in (None, 3, 2):
        check("aten::_masked_softmax", x, mask, dim, 0)
        check("aten::_masked_softmax", x, mask[1:3], dim, 1)
        check("aten::_masked_softmax", x, whole, dim, 2)
        check("aten::_masked_softmax_backward", make((2, 3, 4, 4), dtype), torch.softmax(x, -1), whole, dim)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16])
def test_softmax_of_no_elements_takes_any_type(dtype):
    for name in ("aten::_softmax", "aten::_log_softmax"):
        check(name, torch.ones(0, 3, dtype=dtype), 1, False)
