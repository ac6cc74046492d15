"""Types of results: of indexing, of in-place arithmetic, of mixed operands; and float32's accuracy by default."""

import pytest
import torch
from torch.nn import functional as F

from device.support import check, on

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)  # fmt: skip


def values(*shape, dtype, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.randint(0, 2, shape, generator=g) if dtype == torch.bool else torch.randint(1, 9, shape, generator=g)
    return t.to(dtype)


# Symptom: indexing an int tensor keeps its dtype.
INDEXINGS = {
    "number": lambda t, i: t[1], "slice": lambda t, i: t[1:, ::2], "tensor": lambda t, i: t[i],
    "two tensors": lambda t, i: t[i, i], "scalar tensor": lambda t, i: t[i[0]], "mask": lambda t, i: t[t != 3],
    "list": lambda t, i: t[[0, 2]], "int32 tensor": lambda t, i: t[i.int()], "uint8 mask": lambda t, i: t[:, i > 0],
    "ellipsis": lambda t, i: t[..., i], "None": lambda t, i: t[None, i], "take": lambda t, i: t.take(i),
    "index_select": lambda t, i: t.index_select(1, i), "gather": lambda t, i: t.gather(1, i.expand(3, 3)),
    "item of a row": lambda t, i: t[1][i],
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_indexing_keeps_the_type(dtype):
    host, at = values(3, 3, dtype=dtype), torch.tensor([2, 0, 1])
    for name, f in INDEXINGS.items():
        got, expected = f(host.to("tpu"), at.to("tpu")), f(host, at)
        assert got.dtype == dtype, name
        check(got, expected)


# Symptom: bf16 `*= 0.5` stays bf16.
WRITES = {
    "*= float": lambda t: t.__imul__(0.5), "+= int": lambda t: t.__iadd__(2), "-= int": lambda t: t.__isub__(1),
    "/= int": lambda t: t.__itruediv__(2), "//= int": lambda t: t.__ifloordiv__(2), "**= int": lambda t: t.__ipow__(2),
    "%= int": lambda t: t.__imod__(3), "+= bool": lambda t: t.__iadd__(True), "*= complex": lambda t: t.__imul__(1j),
    "&= int": lambda t: t.__iand__(1), "+= float64": lambda t: t.__iadd__(torch.full_like(t, 2, dtype=torch.float64)),
    "+= int64": lambda t: t.__iadd__(torch.full_like(t, 2, dtype=torch.int64)),
    "*= 0-d float64": lambda t: t.__imul__(torch.tensor(0.5, dtype=torch.float64, device=t.device)),
    "clamp_ float": lambda t: t.clamp_(1.5, 3.5), "fill_ float": lambda t: t.fill_(2.75),
    "setitem float": lambda t: t.__setitem__(0, 2.75) or t, "copy_ float64": lambda t: t.copy_(
        torch.full_like(t, 2.75, dtype=torch.float64)), "lerp_": lambda t: t.lerp_(t.clone(), 0.5),
    "addcmul_": lambda t: t.addcmul_(t.clone(), t.clone(), value=2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_in_place_keeps_the_type_or_refuses(dtype):
    for name, f in WRITES.items():
        host = values(2, 3, dtype=dtype)
        there = host.to("tpu")
        try:
            f(host)
        except Exception as e:
            with pytest.raises(type(e)):
                f(there)
                pytest.fail(f"{name}: accepted; CPU says {e}")
            continue
        f(there)
        assert there.dtype == dtype, name
        check(there, host, rtol=1e-2 if dtype.itemsize == 2 else 1e-5)


# Symptom: `addcdiv` with float64/complex128; `where` with mixed types.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128])
@pytest.mark.parametrize("f", [torch.addcdiv, torch.addcmul], ids=["addcdiv", "addcmul"])
def test_products_and_quotients_added(f, dtype):
    a, b, c = (values(3, 4, dtype=dtype, seed=i) for i in range(3))
    for value in (1, 0.5, -2):
        check(
            f(*on((a, b, c), "tpu"), value=value), f(a, b, c, value=value), rtol=1e-2 if dtype.itemsize == 2 else 1e-6
        )
    if dtype.itemsize == 8:
        wide = f(a.double() if not dtype.is_complex else a, b, c)
        assert f(*on((a.double() if not dtype.is_complex else a, b, c), "tpu")).dtype == wide.dtype


@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_mixed_types_promote_as_on_cpu(first):
    mask = values(2, 3, dtype=torch.bool)
    for second in DTYPES:
        a, b = values(2, 3, dtype=first), values(2, 3, dtype=second, seed=1)
        for f in (
            lambda m, a, b: torch.where(m, a, b), lambda m, a, b: a + b, lambda m, a, b: torch.where(m, a, b[0, 0]),
            lambda m, a, b: torch.cat([a, b]), lambda m, a, b: torch.where(m, a, 2.5), lambda m, a, b: a * b[0, 0],
            lambda m, a, b: torch.eq(a, b), lambda m, a, b: torch.where(m, 3, b), lambda m, a, b: torch.div(a, b),
        ):  # fmt: skip
            try:
                expected = f(mask, a, b)
            except RuntimeError:
                continue
            if expected.dtype == torch.complex32:  # which XLA has not
                continue
            check(f(*on((mask, a, b), "tpu")), expected, rtol=2e-2 if expected.dtype.itemsize == 2 else 1e-5)


# Symptom: BCE with integer weights; losses whose other operands have other types.
@pytest.mark.parametrize("weight", [torch.int64, torch.int32, torch.uint8, torch.float64, torch.bool], ids=str)
@pytest.mark.parametrize("target", [torch.float32, torch.float64])
def test_losses_with_weights_of_other_types(weight, target):
    x, y = torch.rand(4, 3), torch.rand(4, 3).to(target)
    w = values(4, 3, dtype=weight)
    for f in (
        lambda x, y, w: F.binary_cross_entropy(x, y, w), lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, w),
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
        lambda x, y, w: F.mse_loss(x, y, weight=w), lambda x, y, w: F.l1_loss(x, y),
        lambda x, y, w: F.huber_loss(x, y),
        lambda x, y, w: F.smooth_l1_loss(x, y), lambda x, y, w: F.kl_div(x, y, reduction="batchmean"),
        lambda x, y, w: F.poisson_nll_loss(x, y),
    ):  # fmt: skip
        try:
            expected = f(x, y, w)
        except RuntimeError as e:
            with pytest.raises(type(e)):
                f(*on((x, y, w), "tpu"))
            continue
        check(f(*on((x, y, w), "tpu")), expected)


# Symptom: int64 matmul works.
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_products_of_integers(dtype):
    a, b, v = (values(*s, dtype=dtype) for s in ((3, 4), (4, 5), (4,)))
    big = torch.full((2, 2), 2**33 + 1 if dtype == torch.int64 else 100).to(dtype)
    for f in (
        lambda a, b, v, g: a @ b, lambda a, b, v, g: a @ v, lambda a, b, v, g: v @ v, lambda a, b, v, g: g @ g,
        lambda a, b, v, g: torch.bmm(a[None], b[None]), lambda a, b, v, g: torch.addmm(b[:3], a, b, beta=2, alpha=3),
        lambda a, b, v, g: torch.einsum("ij,jk->ki", a, b), lambda a, b, v, g: torch.outer(v, v),
        lambda a, b, v, g: torch.matmul(a.expand(2, 3, 4), b), lambda a, b, v, g: torch.mv(a, v),
    ):  # fmt: skip
        expected = f(a, b, v, big)
        got = f(*on((a, b, v, big), "tpu"))
        assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)


# Symptom: float32 matmul, conv and attention agree with CPU to float32 accuracy at the default setting.
PRODUCTS = {
    "mm": (lambda a, b: a @ b, (64, 300), (300, 50)), "mv": (lambda a, b: a @ b, (64, 300), (300,)),
    "bmm": (torch.bmm, (3, 20, 300), (3, 300, 20)), "linear": (F.linear, (7, 5, 300), (20, 300)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 9, 300), (2, 8, 300)),
    "conv1d": (F.conv1d, (2, 30, 40), (8, 30, 5)), "conv2d": (F.conv2d, (2, 30, 12, 12), (8, 30, 3, 3)),
    "conv3d": (F.conv3d, (1, 9, 6, 6, 6), (4, 9, 3, 3, 3)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 30, 6, 6), (30, 8, 3, 3)),
    "grouped": (lambda a, b: F.conv2d(a, b, groups=3), (2, 30, 9, 9), (6, 10, 3, 3)),
    "attention": (lambda a, b: F.scaled_dot_product_attention(a, b, b), (2, 4, 33, 64), (2, 4, 40, 64)),
    "cdist": (torch.cdist, (20, 64), (30, 64)), "dot": (torch.dot, (5000,), (5000,)),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_float32_is_float32(name):
    f, *shapes = PRODUCTS[name]
    a, b = (torch.randn(s) for s in shapes)
    assert torch.get_float32_matmul_precision() == "highest"

    def ran(device, dtype):
        x, y = (t.to(device, dtype).requires_grad_() for t in (a, b))
        result = f(x, y)
        return [t.detach().cpu().double() for t in (result, *torch.autograd.grad(result.square().sum(), (x, y)))]

    for exact, cpu, tpu in zip(ran("cpu", torch.float64), ran("cpu", torch.float32), ran("tpu", torch.float32)):
        scale = exact.abs().max()
        assert (tpu - exact).abs().max() <= max(3 * (cpu - exact).abs().max(), 1e-6 * scale)


def test_numbers_that_an_integer_cannot_hold():
    inf = torch.inf
    x = torch.tensor([inf, -inf, torch.nan, 1e30, -1e30, 3e9, -3e9, 5e9, 70000.5, -1.5, 300, 2**31, 2**31 - 128, 2**62])
    for source in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64):
        for target in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            expected = x.to(source).to(target)
            assert torch.equal(x.to("tpu", source).to(target).cpu(), expected), (source, target)
