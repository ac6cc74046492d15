import jax
import jax.numpy as jnp
import pytest
import torch
from harness import check, find, to_array

from torch_tpu.lowering import checks, registry

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
          torch.bool, torch.complex64]  # fmt: skip
NUMERIC = [d for d in DTYPES if d not in (torch.bool, torch.complex64)]


def make(shape, dtype, low=0, high=7):
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    return torch.randint(low, 2 if dtype == torch.bool else high, shape).to(dtype)


def idx(shape, size):
    return torch.randint(0, size, shape)


# self shape, dim, index shape
ELEMENTS = [((5, 4), 0, (7, 4)), ((5, 4), 1, (3, 9)), ((3, 4, 5), -2, (2, 6, 5)), ((6,), 0, (4,)), ((), 0, ()),
            ((), -1, (3,)), ((5, 4), 0, (0, 4)), ((4, 0), 0, (2, 0))]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, dim, at", ELEMENTS)
def test_gather(shape, dim, at, dtype):
    check("aten::gather", make(shape, dtype), dim, idx(at, shape[dim] if shape else 1))


# Scatter with duplicates is unordered in PyTorch, so these indices are distinct along dim.
SCATTERS = [((5, 4), 0, (3, 4), (3, 4)), ((5, 4), 1, (3, 4), (5, 6)), ((3, 4, 5), -2, (2, 3, 5), (3, 3, 5)),
            ((6,), 0, (4,), (4,)), ((), 0, (), ()), ((5, 4), 0, (0, 4), (2, 4)),
            ((4, 3), 0, (2, 2), (2, 3))]  # fmt: skip


def distinct(shape, dim, at):
    size = shape[dim] if shape else 1
    keys = torch.rand([size if d == dim % max(len(at), 1) else n for d, n in enumerate(at)])
    return keys.argsort(dim).narrow(dim, 0, at[dim]).contiguous() if at else torch.zeros((), dtype=torch.int64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, dim, at, src", SCATTERS)
def test_scatter(shape, dim, at, src, dtype):
    x, i = make(shape, dtype), distinct(shape, dim, at)
    check("aten::scatter.src", x, dim, i, make(src, dtype))
    check("aten::scatter.value", x, dim, i, 1 if dtype == torch.bool else 3)
    if dtype.is_floating_point:
        check("aten::scatter.value", x, dim, i, 2.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, dim, at", ELEMENTS)
def test_scatter_add(shape, dim, at, dtype):
    at = tuple(min(n, shape[d]) if d != dim % len(shape) else n for d, n in enumerate(at)) if shape else at
    i = idx(at, shape[dim] if shape else 1)
    check("aten::scatter_add", make(shape, dtype), dim, i, make(at, dtype))
    if not dtype.is_complex:
        check("aten::scatter.reduce", make(shape, dtype), dim, i, make(at, dtype), reduce="add")


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_a_reduction(reduce, dtype):
    x, i = make((5, 4), dtype), distinct((5, 4), 0, (3, 4))
    check("aten::scatter.reduce", x, 0, i, make((3, 4), dtype), reduce=reduce)
    check("aten::scatter.value_reduce", x, 0, i, 3, reduce=reduce)


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce_and_index_reduce(reduce, include_self, dtype):
    x, src = make((5, 4), dtype, 1, 4), make((7, 4), dtype, 1, 4)
    if dtype in (torch.float16, torch.bfloat16) and reduce in ("sum", "prod", "mean"):
        x, src = x.round(), src.round()  # PyTorch rounds after each step here
    check("aten::scatter_reduce.two", x, 0, idx((7, 4), 4), src, reduce, include_self=include_self)
    check("aten::scatter_reduce.two", x[0, 0], 0, idx((3,), 1), src[:3, 0], reduce, include_self=include_self)
    if reduce != "sum":
        check("aten::index_reduce", x, 0, idx((7,), 4), src, reduce, include_self=include_self)
        check("aten::index_reduce", x, 1, idx((3,), 4), src[:5, :3], reduce, include_self=include_self)


def test_scatter_reduce_propagates_nan():
    x, src = torch.tensor([1.0, torch.nan, 3.0]), torch.tensor([torch.nan, 2.0, 9.0])
    for reduce in ("amax", "amin", "sum", "prod", "mean"):
        check("aten::scatter_reduce.two", x, 0, torch.tensor([0, 1, 2]), src, reduce)


def test_integer_mean_rounds_down():
    x = torch.tensor([-3, 4, -7])
    check("aten::scatter_reduce.two", x, 0, torch.tensor([0, 0, 1]), torch.tensor([-2, 0, 1]), "mean")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_type", [torch.int64, torch.int32])
def test_index_select(dtype, index_type):
    for shape, dim, n in [((5, 4), 0, 7), ((3, 4, 5), -2, 3), ((5, 4), 1, 0), ((6,), 0, 4), ((0, 4), 1, 2), ((), 0, 1)]:
        check("aten::index_select", make(shape, dtype), dim, idx((n,), shape[dim] if shape else 1).to(index_type))
    check("aten::index_select", make((5, 4), dtype), 1, torch.tensor(2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_add_copy_fill(dtype):
    for shape, dim, n in [((5, 4), 0, 7), ((3, 4, 5), -2, 3), ((5, 4), 1, 0), ((6,), 0, 4), ((), 0, 1)]:
        size = shape[dim] if shape else 1
        source = make([n if d == dim % len(shape) else s for d, s in enumerate(shape)] if shape else (), dtype)
        check("aten::index_add", make(shape, dtype), dim, idx((n,), size), source)
        if dtype != torch.bool:
            check("aten::index_add", make(shape, dtype), dim, idx((n,), size), source, alpha=2)
        some = torch.randperm(size)[: min(n, size)]
        check("aten::index_copy", make(shape, dtype), dim, some, source.narrow(dim, 0, len(some)) if shape else source)
        check("aten::index_fill.int_Scalar", make(shape, dtype), dim, some - size, 1)
        check("aten::index_fill.int_Tensor", make(shape, dtype), dim, some, torch.ones((), dtype=dtype))


@pytest.mark.parametrize("name, make_args, negative", [
    ("aten::gather", lambda i: (torch.randn(3, 2), 0, i[:, None]), False),
    ("aten::scatter_add", lambda i: (torch.randn(3, 2), 0, i[:, None], torch.randn(3, 2)), False),
    ("aten::index_select", lambda i: (torch.randn(3, 2), 0, i), False),
    ("aten::index_add", lambda i: (torch.randn(3, 2), 0, i, torch.randn(i.numel(), 2)), False),
    ("aten::index_copy", lambda i: (torch.randn(3, 2), 0, i, torch.randn(i.numel(), 2)), False),
    ("aten::index_fill.int_Scalar", lambda i: (torch.randn(3, 2), 0, i, 1.0), True),
    ("aten::index.Tensor", lambda i: (torch.randn(3, 2), [i]), True),
    ("aten::index_put", lambda i: (torch.randn(3, 2), [i], torch.randn(())), True),
    ("aten::take", lambda i: (torch.randn(3), i), True),
    ("aten::put", lambda i: (torch.randn(3), i, torch.randn(i.numel())), True),
    ("aten::embedding", lambda i: (torch.randn(3, 2), i), False),
])  # fmt: skip
def test_an_index_out_of_range_is_reported_as_pytorch_does(name, make_args, negative):
    assert bad(name, make_args(torch.tensor([0, 2]))) == []
    assert bad(name, make_args(torch.tensor([0, 3]))) == [3]
    assert bad(name, make_args(torch.tensor([-1, 0]))) == ([] if negative else [-1])
    assert bad(name, make_args(torch.tensor([-4, 0]))) == [-4]
    for index, fails in [([0, 3], True), ([-1, 0], not negative), ([-4, 0], True)]:
        if fails:
            with pytest.raises((IndexError, RuntimeError)):
                find(name)(*make_args(torch.tensor(index)))
        else:
            find(name)(*make_args(torch.tensor(index)))


def to_arrays(v):
    if isinstance(v, list):
        return [to_arrays(e) for e in v]
    return to_array(v) if isinstance(v, torch.Tensor) else v


def bad(name, args):
    """The values that the lowering's checks report."""
    lowering, schema = registry.get(name), find(name)._schema
    with jax.enable_x64(True), checks.collect() as found:
        bound = {a.name: to_arrays(v) for a, v in zip(schema.arguments, args, strict=False)}
        shape = (2, 2) if name == "aten::index.Tensor" else None
        meta = (registry.Meta(shape, torch.float32),)
        if shape is None:
            lowering.fn(*[bound[a.name] for a in schema.arguments if a.name in bound])
        else:
            lowering.fn(*bound.values(), meta=meta)
        reports = [jnp.asarray(c.report).tolist() for c in found]
        assert all(issubclass(c.error, IndexError) and "{value}" in c.message for c in found)
    return [value for count, value in reports if count]
