import pytest
import torch
from harness import check
from test_gather_scatter import DTYPES, make

SOME = [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.complex64]

# self shape, index (a list of shapes, None for a full slice)
INDICES = [
    ((5, 4, 3), [(6,)]),
    ((5, 4, 3), [None, (2, 3)]),
    ((5, 4, 3), [None, None, (4,)]),
    ((5, 4, 3), [(6,), (6,)]),
    ((5, 4, 3), [None, (6,), (6,)]),
    ((5, 4, 3), [(6,), None, (6,)]),
    ((5, 4, 3), [(6,), None, ()]),
    ((5, 4, 3), [(2, 1), None, (1, 3)]),
    ((5, 4, 3), [None, (6, 1), (7,)]),
    ((5, 4, 3), [None, (7,), (6, 1)]),
    ((2, 5, 4, 3), [None, None, (6, 1), (2,)]),
    ((5, 4, 3), [(2, 1, 1), (1, 3, 1), (4,)]),
    ((5, 4, 3), [(), (), ()]),
    ((5, 4, 3), [(0,)]),
    ((5, 0, 3), [(2,)]),
    ((5,), [()]),
]


def indices(shape, at):
    return [None if s is None else torch.randint(-shape[d], shape[d], s) for d, s in enumerate(at)]


@pytest.mark.parametrize("shape, at", INDICES)
def test_index(shape, at):
    for dtype in SOME:
        check("aten::index.Tensor", make(shape, dtype), indices(shape, at))
    check("aten::_unsafe_index.Tensor", make(shape, torch.float32), indices(shape, at))


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("shape, at", INDICES)
def test_index_put(shape, at, accumulate):
    for dtype in SOME:
        x, i = make(shape, dtype), indices(shape, at)
        if accumulate and dtype in (torch.float16, torch.bfloat16):
            x = x.round()
        out = torch.ops.aten.index(x, i)
        values = make(out.shape, dtype).round() if dtype.is_floating_point else make(out.shape, dtype)
        if not accumulate:  # duplicates are unordered: give them one value
            values = make((), dtype).expand(out.shape)
        check("aten::index_put", x, i, values, accumulate)
        check("aten::index_put", x, i, make((), dtype), False)
        check("aten::_unsafe_index_put", x, i, values, accumulate)


def test_index_put_distinct_values_and_broadcast():
    x = torch.randn(5, 4, 3)
    check("aten::index_put", x, [torch.tensor([3, 0]), None, torch.tensor([1, 2])], torch.randn(2, 4))
    check("aten::index_put", x, [torch.tensor([3, 0])], torch.randn(4, 1))
    check("aten::index_put", x, [None, torch.tensor([-1, 0])], torch.randn(5, 1, 1), True)


def test_a_mask_with_one_value_is_a_select():
    x = torch.randn(5, 4, 3)
    for mask, at in [(x > 0, lambda m: [m]), (x[0] > 0, lambda m: [None, m]), (x[:, :, 0] > 0, lambda m: [m])]:
        for accumulate in (True, False):
            check("aten::index_put", x, at(mask), torch.tensor(2.5), accumulate)
            check("aten::index_put", x, at(mask), torch.tensor([2.5]), accumulate)


def test_masks_with_a_data_dependent_result_are_refused():
    with pytest.raises(NotImplementedError, match=r"index: a mask of shape .* at position 0"):
        check("aten::index.Tensor", torch.randn(3), [torch.tensor([True, False, True])])


def test_unsafe_masked_index():
    x, mask = torch.randn(5, 4), torch.tensor([True, False, True])
    i, j = torch.tensor([0, 9, 4]), torch.tensor([3, -9, 0])
    check("aten::_unsafe_masked_index", x, mask, [i, j], 2.5)
    check("aten::_unsafe_masked_index_put_accumulate", x, mask, [i, j], torch.randn(3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_take_put(dtype):
    x = make((3, 4), dtype)
    check("aten::take", x, torch.randint(-12, 12, (2, 5)))
    check("aten::take", x, torch.randint(0, 12, ()))
    check("aten::take", x, torch.zeros(0, dtype=torch.int64))
    check("aten::put", x, torch.tensor([[0, -1], [5, 3]]), make((4,), dtype))
    if dtype != torch.bool:
        source = make((4,), dtype)
        source = source.round() if dtype.is_floating_point else source
        check("aten::put", x, torch.tensor([0, -1, 5, 0]), source, True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked(dtype):
    x = make((3, 4), dtype)
    check("aten::masked_fill.Scalar", x, torch.rand(3, 4) > 0.5, 1)
    check("aten::masked_fill.Scalar", x, torch.rand(4) > 0.5, True)
    check("aten::masked_fill.Tensor", x, torch.rand(3, 1) > 0.5, make((), dtype))
    check("aten::masked_fill.Scalar", make((), dtype), torch.tensor(True), 1)
    check("aten::masked_fill.Scalar", make((0, 4), dtype), torch.rand(4) > 0.5, 1)
    if dtype.is_floating_point:
        check("aten::masked_fill.Scalar", x, torch.rand(2, 3, 4) > 0.5, -torch.inf)
    check("aten::masked_scatter", x, torch.rand(3, 4) > 0.5, make((13,), dtype))
    check("aten::masked_scatter", x, torch.rand(4) > 0.5, make((4, 4), dtype))
    check("aten::masked_scatter", make((0,), dtype), torch.rand(0) > 0.5, make((4,), dtype))
    check("aten::masked_scatter_backward", x, torch.rand(3, 4) > 0.5, [13])
    check("aten::masked_scatter_backward", x, torch.rand(3, 4) > 0.5, [4, 4])


@pytest.mark.parametrize("accumulate", [True, False])
def test_index_put_of_several_values_by_masks(accumulate):
    x = make((3, 4, 5), torch.float32)
    mask = torch.tensor([True, False, True])
    plane = torch.rand(3, 4) > 0.5
    n = int(plane.sum())
    for at, shape in (
        ([mask], (2, 4, 5)), ([mask], (2, 1, 5)), ([mask], (5,)), ([mask], (4, 1)), ([mask], (1, 4, 5)),
        ([plane], (n, 5)), ([plane], (n, 1)), ([plane], (5,)), ([plane], (1,)), ([plane], (1, 1)),
        ([None, torch.rand(4) > 2], (3, 0, 5)), ([None, torch.arange(4) < 3], (3, 3, 5)),
        ([None, torch.arange(4) < 3], (3, 1)), ([None, None, torch.arange(5) > 2], (2,)),
        ([mask, None, torch.tensor([0, 3])], (2, 4)), ([mask, torch.tensor([0, 3])], (5,)),
        ([mask, None, torch.arange(5) > 2], (2, 4)), ([mask.to(torch.uint8)], (2, 4, 5)),
    ):  # fmt: skip
        check("aten::index_put", x, at, make(shape, torch.float32), accumulate)
