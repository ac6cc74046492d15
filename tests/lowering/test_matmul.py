"""Matrix products against PyTorch on CPU."""

import pytest
import torch
from harness import check, run

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
INTS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def make(shape, dtype, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=g, dtype=dtype if dtype.is_complex else torch.float32).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, generator=g, dtype=torch.int64).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTS)
@pytest.mark.parametrize("m,k,n", [(3, 5, 4), (1, 7, 1), (0, 3, 2), (2, 0, 3), (65, 70, 66)])
def test_mm(dtype, m, k, n):
    check("aten::mm", make((m, k), dtype), make((k, n), dtype, 1))
    check("aten::bmm", make((2, m, k), dtype), make((2, k, n), dtype, 1))
    check("aten::mv", make((m, k), dtype), make((k,), dtype, 1))


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_dot(dtype):
    for n in (0, 1, 33):
        check("aten::dot", make((n,), dtype), make((n,), dtype, 1))
        check("aten::vdot", make((n,), dtype), make((n,), dtype, 1))


def test_int64_is_exact_for_every_path():
    # Large enough for the digit products, and longer than one int32 sum of digits can be.
    check("aten::mm", make((80, 64), torch.int64), make((64, 90), torch.int64, 1))
    check("aten::mm", make((2, 140_000), torch.int64), make((140_000, 2), torch.int64, 1))
    low = torch.full((2, 140_000), -(2**63))
    check("aten::mm", low + 127, (low + 127).T.contiguous())
    check("aten::mm", torch.full((2, 140_000), 128), torch.full((140_000, 2), 128))


@pytest.mark.parametrize("dtype", FLOATS + INTS)
@pytest.mark.parametrize("beta,alpha", [(1, 1), (0, 1), (2, 3), (0, -1)])
def test_addmm_family(dtype, beta, alpha):
    scale = {"beta": beta, "alpha": alpha}
    a, b, v, w = make((3, 5), dtype), make((5, 4), dtype, 1), make((5,), dtype, 2), make((4,), dtype, 3)
    # PyTorch leaves NaN of self unread where beta is 0.
    bad = [make(s, dtype, 4) for s in [(3, 4), (4,), (3,)]]
    if beta == 0 and dtype in FLOATS:
        bad = [torch.full_like(t, float("nan")) for t in bad]
    check("aten::addmm", bad[0], a, b, **scale)
    check("aten::addmm", bad[1], a, b, **scale)
    check("aten::addmv", bad[2], a, v, **scale)
    check("aten::addr", bad[0], a[:, 0].contiguous(), w, **scale)
    check("aten::baddbmm", bad[0], make((2, 3, 5), dtype), make((2, 5, 4), dtype, 1), **scale)
    check("aten::addbmm", bad[0], make((2, 3, 5), dtype), make((2, 5, 4), dtype, 1), **scale)


@pytest.mark.parametrize("dtype", FLOATS)
def test_addmm_with_fractional_scales(dtype):
    check("aten::addmm", make((4,), dtype), make((3, 5), dtype), make((5, 4), dtype, 1), beta=0.5, alpha=-1.25)


@pytest.mark.parametrize("name,batch", [("addmm", ()), ("baddbmm", (1,))])
def test_empty_contraction_scales_self(name, batch):
    check(f"aten::{name}", *[make((*batch, *s), torch.float32) for s in [(3, 2), (3, 0), (0, 2)]], beta=2.0)


def test_addr_types():
    x, y = torch.tensor([True, False]), torch.tensor([True, True])
    for beta, alpha in [(True, True), (False, True), (True, False)]:
        check("aten::addr", torch.tensor([[True, False], [False, False]]), x, y, beta=beta, alpha=alpha)
    check("aten::addr", torch.ones(2, 2), torch.arange(2), torch.arange(2.0, dtype=torch.float64))


def test_infinities_and_nan_spread_as_on_cpu():
    a = torch.tensor([[float("inf"), 1.0], [float("nan"), 0.0]])
    check("aten::mm", a, torch.tensor([[0.0, 1.0], [1.0, -1.0]]))


@pytest.mark.parametrize("use_gelu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_addmm_activation(dtype, use_gelu):
    check("aten::_addmm_activation", make((4,), dtype), make((3, 5), dtype), make((5, 4), dtype, 1), use_gelu=use_gelu)


def test_int_mm():
    check("aten::_int_mm", make((32, 300), torch.int8), make((300, 16), torch.int8, 1))


def test_bool_is_refused_as_on_cpu():
    import jax.numpy as jnp

    from torch_tpu.lowering import registry

    x = jnp.ones((2, 2), bool)
    with pytest.raises(NotImplementedError, match="bool operands"):
        registry.get("aten::mm").fn(x, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_trilinear(dtype):
    layer = make((4, 3, 5), dtype)
    check("aten::_trilinear", make((6, 3), dtype), layer, make((6, 5), dtype, 1), [1, 3], [0], [1, 2], [2, 3])


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16])
def test_scaled_mm(kind, out):
    a, b = make((16, 32), torch.float32).to(torch.float8_e4m3fn), make((16, 32), torch.float32, 1).to(kind).T
    one = torch.tensor(0.5)
    check("aten::_scaled_mm", a, b, one, torch.tensor(0.25), out_dtype=out)
    check("aten::_scaled_mm", a, b, one, one, bias=make((16,), out), out_dtype=out)
    rows, columns = torch.rand(16, 1), torch.rand(1, 16)
    got = run("aten::_scaled_mm", a, b, rows, columns, out_dtype=out)[0]
    want = ((a.double() * rows) @ (b.double() * columns)).to(out)
    torch.testing.assert_close(got, want, rtol=1.6e-2 if out == torch.bfloat16 else 1e-5, atol=1e-5)


def test_precision_follows_pytorch():
    from jax import lax

    from torch_tpu.lowering.matmul import precision

    before = torch.get_float32_matmul_precision()
    try:
        for name, expected in [("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "DEFAULT")]:
            torch.set_float32_matmul_precision(name)
            assert precision("float32") == precision("complex64") == lax.Precision[expected]
            assert precision("float64") == lax.Precision.HIGHEST
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("shapes", [((2, 0), (0, 3)), ((0, 1), (1, 3)), ((2, 3), (3, 0))], ids=str)
def test_bool_where_there_are_no_products(shapes):
    """PyTorch has no product of bools, and does not look where none is needed."""
    check("aten::mm", *(torch.ones(s, dtype=torch.bool) for s in shapes))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_masked_transposed_operand_of_a_half_type(dtype):
    """XLA:CPU chose a library for this product, and then folded the transposition into it: UNIMPLEMENTED."""
    a, b, mask = torch.randn(64, 8, dtype=dtype), torch.randn(64, 16, dtype=dtype), torch.arange(64)[None] < 30

    def product(a, b, mask):
        return torch.where(mask, a.t(), 0) @ b

    got = torch.compile(product, fullgraph=True)(a.to("tpu"), b.to("tpu"), mask.to("tpu"))
    torch.testing.assert_close(got.cpu(), product(a, b, mask))
