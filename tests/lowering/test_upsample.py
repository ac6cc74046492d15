"""Resizing and its gradient against PyTorch on CPU."""

import pytest
import torch
from harness import check, run

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZES = [(5, 9), (9, 4), (6, 6), (6, 12), (3, 10), (1, 4), (7, 1), (12, 5)]


def make(shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def both(name, x, out, *rest, gradient=True):
    check(f"aten::{name}", x, out, *rest)
    if gradient:
        grad = make((*x.shape[:2], *out), x.dtype, 1)
        check(f"aten::{name}_backward", grad, out, list(x.shape), *rest)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size,out", SIZES)
@pytest.mark.parametrize("prefix", ["upsample_nearest", "_upsample_nearest_exact"])
def test_nearest(dtype, size, out, prefix):
    gradient = dtype in (torch.float32, torch.float64)
    both(f"{prefix}2d", make((2, 3, size, 5), dtype), [out, 7], gradient=gradient)
    if (size, out) not in SIZES[:2]:
        return
    both(f"{prefix}1d", make((2, 3, size), dtype), [out], gradient=gradient)
    both(f"{prefix}3d", make((1, 2, size, 4, 3), dtype), [out, 6, 3], gradient=gradient)


@pytest.mark.parametrize("prefix", ["upsample_nearest", "_upsample_nearest_exact"])
def test_nearest_sizes_where_rounding_decides(prefix):
    for size in (7, 10, 33, 100, 127):
        for out in (3, 11, 30, 70, 128, 253):
            check(f"aten::{prefix}1d", torch.arange(float(size)).reshape(1, 1, size), [out])
            check(f"aten::{prefix}1d", torch.arange(float(size)).reshape(1, 1, size), [out], out / size * 1.001)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size,out", SIZES)
@pytest.mark.parametrize("align", [True, False])
def test_linear(dtype, size, out, align):
    gradient = dtype in (torch.float32, torch.float64)
    both("upsample_bilinear2d", make((2, 3, size, 5), dtype), [out, 7], align, gradient=gradient)
    if (size, out) not in SIZES[:2]:
        return
    both("upsample_linear1d", make((2, 3, size), dtype), [out], align, gradient=gradient)
    both("upsample_trilinear3d", make((1, 2, size, 4, 3), dtype), [out, 6, 3], align, gradient=gradient)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size,out", SIZES)
@pytest.mark.parametrize("align", [True, False])
def test_cubic(dtype, size, out, align):
    gradient = dtype in (torch.float32, torch.float64)
    both("upsample_bicubic2d", make((2, 3, size, 5), dtype), [out, 7], align, gradient=gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size,out", SIZES)
@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("name", ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"])
def test_antialiased(dtype, size, out, align, name):
    both(name, make((2, 3, size, 5), dtype), [out, 7], align)


def test_strong_reduction():
    both("_upsample_bilinear2d_aa", make((1, 2, 90, 70)), [2, 3], False)


def test_scale_factors_decide_positions():
    x = make((1, 2, 6, 7))
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"):
        both(name, x, [9, 10], False, 1.6, 1.45)
    both("upsample_nearest2d", x, [9, 10], 1.6, 1.45)


def test_integers():
    x = torch.randint(0, 256, (1, 3, 5, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    check("aten::upsample_nearest2d", x, [7, 9])
    for name in ("upsample_bilinear2d", "upsample_bicubic2d"):
        # CPU's uint8 kernels have 16-bit weights: the last bit may differ.
        check(f"aten::{name}", x, [7, 9], False, atol=1.0)


def test_infinity_stays_where_it_is():
    x = make((1, 1, 6, 6))
    x[0, 0, 2, 3] = float("inf")
    check("aten::upsample_bilinear2d", x, [11, 13], False)
    check("aten::upsample_nearest2d", x, [11, 4])


@pytest.mark.parametrize("name", ["upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
                                  "_upsample_bicubic2d_aa"])  # fmt: skip
@pytest.mark.parametrize("align_corners", [True, False])
def test_bytes_are_rounded_as_on_cpu(name, align_corners):
    """Exactly: an image of bytes is resized in fixed point."""
    for shape, out in (((2, 3, 90, 70), (43, 61)), ((2, 3, 4, 4), (5, 5)), ((1, 6, 17, 23), (40, 9)),
                       ((1, 1, 5, 5), (3, 7)), ((1, 3, 8, 8), (8, 20))):  # fmt: skip
        image = torch.randint(0, 256, shape, dtype=torch.uint8)
        (got,) = run(f"aten::{name}", image, out, align_corners)
        assert torch.equal(got, getattr(torch.ops.aten, name)(image, out, align_corners))
