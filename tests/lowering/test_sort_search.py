import pytest
import torch
from harness import check, run
from test_gather_scatter import make

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
SHAPES = [((3, 7), 1), ((2, 5, 3), -2), ((), 0), ((0, 3), -1)]


def special(dtype):
    x = torch.tensor([[torch.nan, 2, -torch.inf, torch.inf, -0.0, 0.0, torch.nan, -1, 2]])
    return x.to(dtype)


def agrees(name, x, *args, dim, **kwargs):
    """For operators whose choice among equal values is open: the values agree, and the indices lead to them."""
    expected = getattr(torch, name)(x, *args, dim=dim, **kwargs)
    overload = ".dim" if name in ("median", "nanmedian") else ""
    values, index = run(f"aten::{name}{overload}", x, *args, dim, *kwargs.values())
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)
    assert index.dtype == torch.int64 and index.shape == expected.indices.shape
    source, index = (x, index) if values.ndim == x.ndim else (x, index.unsqueeze(dim))
    torch.testing.assert_close(source.gather(dim, index).reshape(values.shape), values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [True, False])
def test_sort(descending, dtype):
    for shape, dim in SHAPES:
        check("aten::sort.stable", make(shape, dtype), stable=True, dim=dim, descending=descending)
    x = make((3, 50), dtype)
    check("aten::sort.stable", x, stable=True, dim=1, descending=descending)
    check("aten::sort.stable", torch.arange(9).to(dtype), stable=True, dim=0, descending=descending)
    if dtype.is_floating_point:
        check("aten::sort.stable", special(dtype), stable=True, dim=1, descending=descending)
        check("aten::sort.stable", -special(dtype), stable=True, dim=1, descending=descending)
        check("aten::sort", torch.randn(20).to(torch.float64).to(dtype).unique(), 0, descending)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool])
@pytest.mark.parametrize("largest", [True, False])
def test_topk(largest, dtype):
    for shape, dim in SHAPES:
        agrees("topk", make(shape, dtype), 1 if shape in ((), (1,)) else 2, dim=dim, largest=largest)
    agrees("topk", make((3, 7), dtype), 0, dim=1, largest=largest)
    agrees("topk", make((3, 7), dtype), 7, dim=1, largest=largest)
    if dtype.is_floating_point:
        for k in range(1, 10):
            agrees("topk", special(dtype), k, dim=1, largest=largest)
            agrees("topk", -special(dtype), k, dim=1, largest=largest)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool])
def test_order_statistics(dtype):
    for shape, dim in SHAPES:
        x = make(shape, dtype)
        if x.numel():
            check("aten::median", x)
            check("aten::nanmedian", x)
        if x.numel() or shape[dim]:
            agrees("kthvalue", x, 1, dim=dim)
            agrees("kthvalue", x, x.shape[dim] if shape else 1, dim=dim, keepdim=True)
            agrees("mode", x, dim=dim)
            for keepdim in (True, False):
                agrees("median", x, dim=dim, keepdim=keepdim)
                agrees("nanmedian", x, dim=dim, keepdim=keepdim)
    if dtype.is_floating_point:
        x = torch.tensor([[torch.nan, 2, 3, 1], [4, 5, torch.nan, torch.nan], [torch.nan] * 4, [4, 3, 2, 1]]).to(dtype)
        for name in ("median", "nanmedian"):
            check(f"aten::{name}", x)
            agrees(name, x, dim=1)
            check(f"aten::{name}", torch.zeros(0, dtype=dtype))
        check("aten::median.dim", x, 1)  # the first NaN
        for k in range(1, 5):
            agrees("kthvalue", x, k, dim=1)


def test_mode_prefers_frequent_then_small_and_gives_the_last_position():
    check("aten::mode", torch.tensor([[3, 1, 3, 1, 2], [5, 4, 3, 2, 1], [7, 7, 7, 1, 1]]), 1)
    check("aten::mode", torch.tensor([[1.5, 1.5], [2.5, 0.5]]), 0, True)


@pytest.mark.parametrize("size", [0, 1, 5, 64, 65, 1000])
@pytest.mark.parametrize("right", [True, False])
def test_searchsorted_and_bucketize(right, size):
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        edges = torch.randint(0, 50, (size,)).sort().values.to(dtype)
        values = torch.randint(-3, 55, (4, 3)).to(dtype)
        check("aten::bucketize.Tensor", values, edges, right=right)
        check("aten::searchsorted.Tensor", edges, values, right=right, out_int32=True)
        rows = torch.randint(0, 50, (4, size)).to(dtype)
        check("aten::searchsorted.Tensor", rows.sort(-1).values, values, side="right" if right else "left")
        check("aten::searchsorted.Tensor", rows, values, right=right, sorter=rows.argsort(-1))
    check("aten::bucketize.Scalar", 7, torch.arange(size), right=right)
    check("aten::searchsorted.Scalar", torch.arange(size), 3.5, right=right)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])
    check("aten::bucketize.Tensor", special, torch.arange(size).float(), right=right)


@pytest.mark.parametrize("size", [0, 5, 64, 65, 500])
def test_isin(size):
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        x, test = torch.randint(0, 40, (3, 4)).to(dtype), torch.randint(0, 40, (size,)).to(dtype)
        check("aten::isin.Tensor_Tensor", x, test)
        check("aten::isin.Tensor_Tensor", x, test, invert=True)
    if size:
        x, test = torch.tensor([torch.nan, 1.0, 2.0]), torch.full((size,), 1.0)
        test[0] = torch.nan
        check("aten::isin.Tensor_Tensor", x, test)
    check("aten::isin.Tensor_Scalar", torch.arange(5), 3)
    check("aten::isin.Scalar_Tensor", 3, torch.arange(size))


def test_repeat_interleave_and_nonzero_static():
    for repeats in ([2, 0, 3], [0, 0, 1], [0], [4], [1, 1, 0, 0], []):
        check("aten::repeat_interleave.Tensor", torch.tensor(repeats, dtype=torch.int64), output_size=sum(repeats))
        check("aten::repeat_interleave.Tensor", torch.tensor(repeats, dtype=torch.int32))
    x = torch.randn(3, 4) > 0
    for size in (0, 2, 12, 20):
        check("aten::nonzero_static", x, size=size)
        check("aten::nonzero_static", x, size=size, fill_value=7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("n", [1, 2, 7, 63, 64, 65, 200])  # on both sides of where the search changes its form
def test_search_in_a_sequence_with_nan(n, right, dtype):
    sequence = torch.arange(n).to(dtype)
    sequence[n // 3 :: 4] = torch.nan
    values = torch.tensor([-1, 0, 1, 2.5, 30, 31, 64, 500, torch.nan]).to(dtype)
    check("aten::searchsorted.Tensor", sequence, values, right=right)
    check("aten::bucketize.Tensor", values, sequence, right=right)
    check("aten::searchsorted.Tensor", sequence.expand(2, n), values.expand(2, 9), right=right)


def test_search_in_what_is_not_sorted():
    for n in (9, 50, 100):
        check("aten::searchsorted.Tensor", torch.randint(20, (n,)), torch.arange(20))


def test_isin_with_nan():
    test = torch.arange(100.0)
    test[60:] = torch.nan
    check("aten::isin.Tensor_Tensor", torch.tensor([1.0, 59, 60, torch.nan, torch.inf]), test)
