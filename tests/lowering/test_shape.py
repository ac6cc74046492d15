import pytest
import torch
from harness import check, run
from test_gather_scatter import make

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_cat_and_stack(dtype):
    x = make((2, 3), dtype)
    check("aten::cat", [x, make((4, 3), dtype)])
    check("aten::cat", [x, make((2, 1), dtype), make((2, 0), dtype)], -1)
    check("aten::cat", [make((0,), dtype), x, make((0,), dtype)], 1)
    check("aten::cat", [make((0,), dtype), make((3,), dtype)])
    check("aten::cat", [make((0,), dtype)])
    check("aten::cat", [x, make((2, 3), torch.float64)])
    check("aten::cat", [x, torch.randint(0, 5, (2, 3))])
    for dim in (0, 1, -1):
        check("aten::stack", [x, make((2, 3), dtype)], dim)
    check("aten::stack", [make((), dtype), make((), dtype)])
    check("aten::stack", [make((), dtype), make((), torch.float16)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rearrangements(dtype):
    x = make((2, 3, 4), dtype)
    for dims in ([0], [-1, 0], []):
        check("aten::flip", x, dims)
    for shifts, dims in (([2], []), ([1], [1]), ([-5, 2], [0, -1])):
        check("aten::roll", x, shifts, dims)
    for k in (1, 2, -1):
        check("aten::rot90", x, k, [1, 2])
    for repeats in ([2, 1, 3], [2, 1, 1, 2], [0, 1, 1]):
        check("aten::repeat", x, repeats)
    check("aten::repeat", make((), dtype), [2, 2])
    check("aten::repeat", make((), dtype), [])
    check("aten::flip", make((), dtype), [0])
    check("aten::roll", make((), dtype), [1])
    check("aten::roll", make((0, 3), dtype), [1], [1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (2, 3, 3), (0, 3)])
def test_triangles_and_diagonals(shape, dtype):
    x = make(shape, dtype)
    for k in (0, 1, -2, 9):
        check("aten::tril", x, k)
        check("aten::triu", x, k)
        check("aten::diagonal_copy", x, k, -2, -1)
    for k in (0, 1, -2):
        check("aten::diag_embed", x, k)
    check("aten::diag_embed", x, 1, 0, -2)
    grad = make(x.diagonal(1, -1, 0).shape, dtype)
    check("aten::diagonal_copy", x, 1, -1, 0)
    check("aten::diagonal_backward", grad, list(shape), 1, -1, 0)
    check("aten::diagonal_scatter", x, grad, 1, -1, 0)


def test_indices_of_triangles():
    for size in [(3, 4), (4, 3), (0, 2), (1, 1)]:
        for offset in (0, 1, -1, 5, -5):
            check("aten::tril_indices", *size, offset)
            check("aten::triu_indices", *size, offset, dtype=torch.int32)


def test_block_diag():
    check("aten::block_diag", [torch.randn(2, 3), torch.randn(()), torch.randn(4), torch.randn(3, 1)])
    check("aten::block_diag", [torch.randn(2, 0), torch.randint(0, 5, (1, 2)), torch.randn(0, 3)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_images(dtype):
    check("aten::pixel_shuffle", make((2, 12, 3, 5), dtype), 2)
    check("aten::pixel_shuffle", make((9, 2, 1), dtype), 3)
    check("aten::pixel_unshuffle", make((2, 3, 4, 6), dtype), 2)
    check("aten::channel_shuffle", make((2, 6, 4, 3), dtype), 3)
    if dtype not in (torch.int64,):
        for kernel, dilation, padding, stride in [((3, 2), (1, 1), (1, 0), (1, 2)), ((2, 2), (2, 1), (0, 1), (2, 1))]:
            x = make((2, 3, 6, 7), dtype)
            check("aten::im2col", x, kernel, dilation, padding, stride)
            check("aten::im2col", x[0], kernel, dilation, padding, stride)
            if dtype == torch.bool:
                continue
            x = x.round() if dtype == torch.bfloat16 else x
            columns = torch.ops.aten.im2col(x, kernel, dilation, padding, stride)
            check("aten::col2im", columns, (6, 7), kernel, dilation, padding, stride)
            check("aten::col2im", columns[0], (6, 7), kernel, dilation, padding, stride)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_of_views(dtype):
    x = make((2, 3, 4), dtype)
    one = make((2, 1, 4, 1), dtype)
    for name, *args in [
        ("view_copy", x, [6, 4]), ("view_copy", x, [-1]), ("squeeze_copy", one), ("squeeze_copy.dim", one, 1),
        ("squeeze_copy.dim", one, 0), ("squeeze_copy.dims", one, [1, 3]), ("unsqueeze_copy", x, -1),
        ("detach_copy", x), ("alias_copy", x), ("lift_fresh_copy", x), ("_reshape_alias_copy", x, [6, 4], [4, 1]),
        ("expand_copy", one, [2, 5, -1, 3]),
        ("permute_copy", x, [2, 0, -2]), ("transpose_copy.int", x, 0, -1), ("t_copy", x[0]), ("t_copy", x[0, 0]),
        ("slice_copy.Tensor", x, -1, 1, 9, 2), ("slice_copy.Tensor", x, 1, -2, None), ("slice_copy.Tensor", x, 0, 2, 1),
        ("slice_copy.Tensor", x), ("narrow_copy", x, 2, 1, 2), ("narrow_copy", x, 2, 4, 0),
        ("select_copy.int", x, 1, -1), ("select_copy.int", x, -1, 2), ("split_copy.Tensor", x, 2, 1),
        ("split_with_sizes_copy", x, [1, 0, 3], -1),
        ("unbind_copy.int", x, 1), ("unfold_copy", x, 2, 3, 1), ("unfold_copy", x, 1, 1, 2),
        ("unfold_copy", make((), dtype), 0, 1, 1),
        ("as_strided_copy", x, [2, 2], [3, 5], 4), ("as_strided_copy", x, [3], [0]), ("as_strided_copy", x, [], [], 5),
        ("permute_copy", make((), dtype), []), ("transpose_copy.int", make((), dtype), 0, -1),
        ("squeeze_copy.dim", make((), dtype), 0),
    ]:  # fmt: skip
        check(f"aten::{name}", *args)
    if dtype.is_complex:
        check("aten::view_as_real_copy", x)
        check("aten::_conj_copy", x)
    else:
        same_width = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.float64}
        check("aten::view_copy.dtype", x, same_width[dtype.itemsize])
        check("aten::view_copy.dtype", x, torch.uint8)
        if dtype.itemsize < 8 and dtype != torch.bool:
            check("aten::view_copy.dtype", x, torch.int64)
    if dtype != torch.bool:
        check("aten::_neg_view_copy", x)
    check("aten::view_as_complex_copy", torch.randn(3, 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_into_views(dtype):
    x = make((5, 4), dtype)
    for dim, start, end, step in [(0, 1, 3, 1), (1, -3, None, 2), (0, None, 99, 3), (0, 4, 2, 1), (-1, 0, 4, 1)]:
        part = make(torch.ops.aten.slice(x, dim, start, end, step).shape, dtype)
        check("aten::slice_scatter", x, part, dim, start, end, step)
        if start is not None and end is not None:
            check("aten::slice_backward", part, [5, 4], dim, start, end, step)
    for dim, index in [(0, 2), (-1, -1)]:
        part = make(x.select(dim, index).shape, dtype)
        check("aten::select_scatter", x, part, dim, index)
        check("aten::select_backward", part, [5, 4], dim, index)
    check("aten::as_strided_scatter", x, make((2, 3), dtype), [2, 3], [1, 4], 3)
    if dtype not in (torch.bool,):
        for size, step in [(2, 1), (2, 2), (1, 3), (4, 1)]:
            grad = make(x.unfold(0, size, step).shape, dtype)
            check("aten::unfold_backward", grad.round() if dtype == torch.bfloat16 else grad, [5, 4], 0, size, step)
        check("aten::unfold_backward", make((1,), dtype), [], 0, 1, 1)


def test_a_write_casts_to_the_type_of_the_view():
    check("aten::slice_scatter", torch.randn(5, 4), torch.arange(4)[None], 0, 1, 2)
    check("aten::select_scatter", torch.arange(4), torch.tensor(2.7), 0, 1)


def test_bits_as_complex_are_refused():
    with pytest.raises(NotImplementedError, match=r"aten::view_copy: complex64 as torch.int64; supported"):
        run("aten::view_copy.dtype", torch.randn(3, dtype=torch.complex64), torch.int64)
