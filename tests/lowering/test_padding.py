import pytest
import torch
from harness import check
from test_gather_scatter import make

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant(dtype):
    x = make((2, 3, 4), dtype)
    for pad in ([1, 2], [1, 0, -1, 2], [0, 0, 1, 1, 2, 0], [-1, -1], []):
        check("aten::constant_pad_nd", x, pad)
        check("aten::constant_pad_nd", x, pad, 1)
    check("aten::constant_pad_nd", make((0, 3), dtype), [1, 1, 2, 0], 1)
    if dtype.is_floating_point:
        check("aten::constant_pad_nd", x, [1, 1], -torch.inf)


# spatial shape, padding
CASES = [((6,), [2, 3]), ((6,), [0, 0]), ((5, 6), [2, 0, 1, 4]), ((4, 5, 6), [1, 2, 0, 3, 2, 1])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("spatial, padding", CASES)
def test_reflection_and_replication(spatial, padding, kind, dtype):
    name = f"aten::{kind}_pad{len(spatial)}d"
    for batch in [(2, 3), (3,)]:
        x = make((*batch, *spatial), dtype)
        grad = make(getattr(torch.ops.aten, f"{kind}_pad{len(spatial)}d")(x, padding).shape, dtype)
        check(name, x, padding)
        if dtype == torch.bfloat16:
            grad = grad.round()
        check(f"{name}_backward", grad, x, padding)


def test_negative_and_wide_padding():
    for padding in ([-1, 2], [2, -1], [-2, -1]):
        check("aten::replication_pad1d", torch.randn(2, 3, 5), padding)
        check("aten::reflection_pad1d", torch.randn(2, 3, 5), padding)
    check("aten::replication_pad1d", torch.randn(2, 1), [4, 5])
    check("aten::replication_pad1d", torch.randn(0, 2, 3), [1, 1])


@pytest.mark.parametrize("padding", [[-4, 5, 0, 0], [0, 0, 2, -4], [5, -4, -4, 3], [-2, -1, 4, 6], [-1, -1, -1, -2]])
def test_replication_of_what_negative_padding_cuts_off(padding):
    check("aten::replication_pad2d", torch.randn(2, 3, 4, 4), padding)
