import math

import pytest
import torch
from harness import check
from test_gather_scatter import make

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
REAL = [*FLOATS, torch.int64, torch.uint8, torch.bool]
ALL = [*REAL, torch.complex64]
SHAPES = [(3, 4, 5), (), (3, 0)]
DIMS = [[1], [-1], [0, 2], [], None]


def with_nan(x):
    x = x.clone()
    if x.dtype.is_floating_point and x.numel() > 4:
        x.view(-1)[3] = torch.nan
        x.view(-1)[-1] = torch.inf
    return x


def dims_for(shape):
    """Dimension lists that suit the shape."""
    n = max(len(shape), 1)
    return [d for d in DIMS if d is None or all(-n <= e < n for e in d)]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_sum_mean_nansum(shape, dtype):
    x = make(shape, dtype)
    check("aten::sum", x)
    for i, dim in enumerate(dims_for(shape)):
        check("aten::sum.dim_IntList", x, dim, i % 2 == 0)
        if not dtype.is_complex:
            check("aten::nansum", with_nan(x), dim, i % 2 == 1)
        if dtype.is_floating_point or dtype.is_complex:
            check("aten::mean.dim", x, dim, i % 2 == 1)
    if dtype.is_floating_point or dtype.is_complex:
        check("aten::mean", x)


def test_sum_in_another_type():
    x = torch.randn(3, 4) * 3
    for name in ("aten::sum.dim_IntList", "aten::mean.dim"):
        check(name, x.bfloat16(), [0], dtype=torch.float32)
        check(name, torch.arange(6), [0], dtype=torch.float16)
    check("aten::sum", x, dtype=torch.int32)
    check("aten::prod", torch.arange(1, 30), dtype=torch.float32)
    check("aten::sum", torch.full((70000,), 1.0, dtype=torch.float16), dtype=torch.float32)
    check("aten::mean", torch.full((70000,), 3.0, dtype=torch.float16))


def test_a_long_sum_is_accurate():
    check("aten::sum", torch.rand(3_000_001))
    check("aten::mean.dim", torch.rand(3, 300_001).bfloat16(), [1])


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_prod_any_all_count(shape, dtype):
    x = make(shape, dtype)
    check("aten::prod", x)
    check("aten::prod.dim_int", x, -1, True)
    for y in (x, torch.zeros_like(x), with_nan(x)):
        for name in ("any", "all"):
            check(f"aten::{name}", y)
            check(f"aten::{name}.dim", y, -1)
            check(f"aten::{name}.dims", y, [0], True)
    for name in ("any", "all"):
        for dim in dims_for(shape)[-2:]:
            check(f"aten::{name}.dims", x, dim, False)
    check("aten::count_nonzero", x)
    check("aten::count_nonzero", x, -1)
    check("aten::count_nonzero.dim_IntList", x, [0])


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("shape", [(3, 4, 5), (), (0, 3)])
def test_extrema(shape, dtype):
    for x in (make(shape, dtype), with_nan(make(shape, dtype))):
        empty = x.numel() == 0
        for name in ("max", "min"):
            check(f"aten::{name}.dim", x, -1)
            check(f"aten::{name}.dim", x, len(shape) - 1 if shape else 0, True)
            if dtype != torch.bool:
                check(f"aten::arg{name}", x, -1, True)
            check(f"aten::a{name}", x, [-1])
            if empty:
                continue
            check(f"aten::{name}", x)
            if dtype != torch.bool:
                check(f"aten::arg{name}", x, None, True)
                check(f"aten::arg{name}", x, 0)
            check(f"aten::a{name}", x, [], True)
            check(f"aten::a{name}", x, [0, -1] if len(shape) > 1 else [0])
        if not empty:
            check("aten::aminmax", x)
        check("aten::aminmax", x, dim=-1, keepdim=True)


def test_extrema_of_infinities_and_ties():
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[-inf, -inf], [inf, inf], [2.0, 2.0], [-0.0, 0.0], [nan, nan]])
    for name in ("max", "min"):
        check(f"aten::{name}.dim", x, 1)
        check(f"aten::{name}.dim", torch.tensor([[2**62, 2**62 + 1], [-(2**63), 2**63 - 1]]), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (), (2, 0)])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variance(shape, dtype):
    x = make(shape, dtype)
    for i, dim in enumerate(dims_for(shape)):
        for correction in [None, 0, 2] if i % 2 else [1, 0.5, 100]:
            check("aten::var.correction", x, dim, correction=correction, keepdim=i % 2 == 1)
            if correction != 0.5 or not dtype.is_complex:
                check("aten::std_mean.correction", x, dim, correction=correction, keepdim=i % 2 == 0)
    check("aten::std.correction", x)
    check("aten::var_mean.correction", x, correction=0)
    check("aten::var_mean.correction", x + 1000, [-1], correction=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, 2.5, math.inf, -math.inf])
def test_norms(order, dtype):
    x = make((3, 4, 5), dtype)
    x[0, 0, 0] = 0 if order >= 0 else 1
    check("aten::linalg_vector_norm", x, order)
    check("aten::linalg_vector_norm", x, order, [0, -1], True)
    check("aten::linalg_vector_norm", x[:, :1], order, [1])
    check("aten::linalg_vector_norm", x[1, 1, 1], order)
    check("aten::norm.Scalar", x, order)
    check("aten::norm.ScalarOpt_dim", x, order, [1])
    check("aten::dist", x, x[0] + 1, order)
    if order > 0 and math.isfinite(order):
        check("aten::linalg_vector_norm", make((0, 3), dtype), order, [0])
        check("aten::renorm", x, order, 1, 1.5)
    if dtype in (torch.float16, torch.float32):
        check("aten::linalg_vector_norm", x, order, [1], dtype=torch.float64)
        check("aten::norm.ScalarOpt_dim_dtype", x, order, [1], False, dtype=torch.float64)
        check("aten::norm.ScalarOpt_dtype", x, order, dtype=torch.float64)


def test_norms_with_nan_and_default_order():
    x = torch.tensor([[1.0, torch.nan], [2.0, -3.0], [-torch.inf, 0.0]])
    for order in (0, 1, 2, math.inf, -math.inf):
        check("aten::linalg_vector_norm", x, order, [1])
    check("aten::norm.ScalarOpt_dim", x, None, [1])
    check("aten::embedding_renorm", torch.randn(5, 3) * 3, torch.tensor([[0, 2], [2, 4]]), 1.0, 2.0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64])
def test_logsumexp(dtype):
    for shape in [(3, 4, 5), (), (0, 3), (1,)]:
        for dim in dims_for(shape)[:-2]:  # CPU refuses the empty list
            check("aten::logsumexp", make(shape, dtype), dim, dim == [1])
    if dtype.is_floating_point:
        x = torch.tensor([[torch.inf, 1], [-torch.inf, -torch.inf], [torch.inf, -torch.inf], [torch.nan, 0], [90, 90]])
        check("aten::logsumexp", x.to(dtype), [1])


@pytest.mark.parametrize("dtype", [d for d in ALL if d != torch.bool])
def test_trace(dtype):
    for shape in [(3, 4), (4, 3), (3, 3), (0, 3), (1, 1)]:
        check("aten::trace", make(shape, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histc(dtype):
    x = make((50,), dtype)
    check("aten::histc", x)
    check("aten::histc", x, 7)
    check("aten::histc", x, 7, -1, 2)
    check("aten::histc", x, 5, 0.5, 0.5)
    check("aten::histc", torch.full((4,), 2.0, dtype=dtype), 5)
    check("aten::histc", torch.arange(8, dtype=dtype), 8, 0, 8)
    check("aten::histc", make((0,), dtype), 5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_histc_of_integers_divides_them_as_cuda_does(dtype):
    """CPU has no kernel: the tokens of each expert, unequal bins, what lies outside, and the data's own range."""
    x = torch.tensor([0, 3, 3, 1, 7, 5, 2, 7], dtype=dtype, device="tpu")
    for args, counts in [
        ((8, 0, 7), [1, 1, 1, 2, 0, 1, 0, 2]),
        ((3, 0, 7), [3, 2, 3]),  # 2 * 3 // 7 is 0, 3 * 3 // 7 is 1, 5 * 3 // 7 is 2
        ((2, 1, 5), [2, 3]),
        ((4,), [2, 3, 1, 2]),
    ]:
        got = torch.histc(x, *args)
        assert got.dtype == dtype
        assert got.tolist() == counts
    assert torch.histc(torch.full((3,), 4, dtype=dtype, device="tpu"), 2).tolist() == [0, 3]
    assert torch.histc(torch.empty(0, dtype=dtype, device="tpu"), 2, 0, 1).tolist() == [0, 0]
