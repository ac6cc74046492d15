"""Functions of one operand, against PyTorch on CPU."""

import jax.numpy as jnp
import pytest
import torch
from harness import check, run

from torch_tpu.lowering import dtypes

FLOAT = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
EDGE = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, -2.5, 3.3, float("inf"), float("-inf"), float("nan")]

ANY = ["exp", "expm1", "exp2", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "erf", "erfc", "sinc"]
ANY += ["deg2rad", "rad2deg", "reciprocal"]
POSITIVE = ["log", "log1p", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma", "i0"]
UNIT = ["asin", "acos", "atanh", "erfinv"]
ROUNDING = ["floor", "ceil", "trunc", "round", "frac", "abs", "neg"]
COMPLEX = ["exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan"]
COMPLEX += ["asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sinc", "abs", "neg", "_conj_physical"]
COMPLEX += ["angle"]


def values(name, dtype):
    if name in UNIT:
        return torch.rand(3, 30).mul(1.98).sub(0.99).to(dtype)
    if name in POSITIVE:
        return torch.rand(3, 30).mul(4).add(0.05).to(dtype)
    return torch.randn(3, 30).mul(3).to(dtype)


@pytest.mark.parametrize("dtype", FLOAT)
@pytest.mark.parametrize("name", ANY + POSITIVE + UNIT + ROUNDING)
def test_values(name, dtype):
    check(f"aten::{name}", values(name, dtype))


@pytest.mark.parametrize("dtype", FLOAT)
def test_acosh(dtype):
    check("aten::acosh", torch.rand(9).add(1).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ANY + POSITIVE + UNIT + ROUNDING + ["acosh", "angle"])
def test_special_values(name, dtype):
    check(f"aten::{name}", torch.tensor(EDGE, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "sin", "erf", "lgamma", "reciprocal", "angle", "sinc"])
def test_integers_become_floats(name, dtype):
    check(f"aten::{name}", torch.arange(5).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int8])
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "abs", "neg"])
def test_integers_stay(name, dtype):
    check(f"aten::{name}", torch.tensor([0, 1, 5, 127, -3, -128]).to(dtype))


def test_large_integers_are_not_rounded():
    check("aten::floor", torch.tensor([2**53 + 1, -(2**63)]))
    check("aten::abs", torch.tensor([2**53 + 1, -(2**63)]))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name, dtype):
    check(f"aten::{name}", torch.randn(30, dtype=dtype))
    check(f"aten::{name}", torch.randn(30, dtype=dtype) * 0.2)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3, 4)])
@pytest.mark.parametrize("name", ["exp", "floor", "abs", "lgamma"])
def test_shapes(name, shape):
    check(f"aten::{name}", torch.rand(shape))


@pytest.mark.parametrize("dtype", FLOAT)
def test_round_half_to_even_and_decimals(dtype):
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 12.345, -1234.5, 0.0], dtype=dtype)
    check("aten::round", x)
    for decimals in (0, 1, 2, -1, -2):
        check("aten::round.decimals", x, decimals=decimals)


def test_sign_of_zero_survives():
    x = torch.tensor([-0.0, -0.3])
    for name in ("ceil", "trunc", "round", "sin", "expm1"):
        assert run(f"aten::{name}", x[:1])[0].signbit().all(), name
    assert run("aten::ceil", x)[0].signbit().all()


@pytest.mark.parametrize("dtype", FLOAT)
def test_frexp(dtype):
    check("aten::frexp.Tensor", torch.tensor([0.0, 1.0, -3.0, 0.1, 1000.0, -0.0078125], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_polygamma(n, dtype):
    check("aten::polygamma", n, torch.rand(20).mul(6).add(0.1).to(dtype) + (1 if dtype == torch.int64 else 0))


def test_trigamma_of_negative_numbers():
    check("aten::polygamma", 1, torch.tensor([-0.3, -1.5, -2.25, 0.2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_mvlgamma(p, dtype):
    check("aten::mvlgamma", torch.rand(9, dtype=dtype).add(2), p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_negative_gamma(dtype):
    x = torch.tensor([-0.5, -1.5, -2.3, -7.9, 30.0, 200.0, 1e-3, -3.0, -1.0], dtype=dtype)
    check("aten::lgamma", x)
    check("aten::digamma", x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_float8_e4m3fn_saturates(dtype):
    big = [448, 449, 465, 500, -500, 10000, 3, 0]
    x = torch.tensor([*big, float("inf"), -float("inf"), float("nan")] if dtype.is_floating_point else big, dtype=dtype)
    got = dtypes.cast(jnp.asarray(x.float().numpy()).astype(dtypes.to_jax(dtype)), torch.float8_e4m3fn)
    expected = x.to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(torch.tensor(got.astype(jnp.float32).tolist()), expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tails(dtype):
    check("aten::erfc", torch.linspace(-6, 9, 31, dtype=dtype), rtol=1e-5, atol=0)
    check("aten::expm1", torch.logspace(-20, 1, 30, dtype=dtype), rtol=2e-6, atol=0)
    check("aten::log1p", torch.logspace(-20, 1, 30, dtype=dtype), rtol=2e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_infinities_and_signed_zeros(dtype):
    parts = [torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1.5]
    x = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)
    check("aten::abs", x)
    known = x[~((x.real.isnan() | x.imag.isnan()) & (x.real.isinf() | x.imag.isinf()))]
    for name in ("exp", "atan", "atanh"):
        check(f"aten::{name}", known)
    check("aten::atan", torch.tensor([complex(torch.nan, torch.inf)], dtype=dtype))
    check("aten::atanh", torch.tensor([complex(torch.inf, torch.nan)], dtype=dtype))
    cut = torch.tensor([complex(0.0, 3.0), complex(-0.0, 3.0), complex(0.0, -3.0), complex(-0.0, -3.0)], dtype=dtype)
    check("aten::asinh", cut)
