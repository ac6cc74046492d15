"""Arithmetic with broadcasting, against PyTorch on CPU."""

import math

import jax
import jax.numpy as jnp
import pytest
import torch
from harness import check, run

from torch_tpu.lowering import pointwise

FLOAT = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGER = [torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16]
COMPLEX = [torch.complex64, torch.complex128]
REAL = FLOAT + INTEGER
SHAPES = [((3, 4), (4,)), ((), (2, 3)), ((0, 4), (1,)), ((2, 1, 3), (4, 1))]
EDGE = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, float("inf"), float("-inf"), float("nan")]


def make(shape, dtype, *, nonzero=False):
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape).mul(3).to(dtype)
    low = -5 if dtype.is_signed else 0
    x = torch.randint(low, 7, shape)
    return torch.where(x == 0, torch.ones_like(x), x).to(dtype) if nonzero else x.to(dtype)


def edge_pairs(dtype):
    a = torch.tensor(EDGE, dtype=dtype)
    return a[:, None], a[None, :]


ARITHMETIC = ["add.Tensor", "mul.Tensor", "sub.Tensor", "rsub.Tensor"]
DIVISION = ["div.Tensor", "floor_divide", "remainder.Tensor", "fmod.Tensor"]
BOUNDS = ["maximum", "minimum", "fmax", "fmin"]


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", ARITHMETIC + DIVISION + BOUNDS)
def test_real_types(name, dtype):
    check(f"aten::{name}", make((3, 4), dtype), make((4,), dtype, nonzero=True))
    check(f"aten::{name}", make((3, 4), dtype), make((), torch.float64) + 0.7)


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("name", ARITHMETIC + DIVISION + BOUNDS)
def test_shapes(name, shapes):
    check(f"aten::{name}", make(shapes[0], torch.float32), make(shapes[1], torch.float32))
    check(f"aten::{name}", make(shapes[0], torch.int32), make(shapes[1], torch.int64, nonzero=True))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", ["add.Tensor", "mul.Tensor", "sub.Tensor", "div.Tensor", "logaddexp"])
def test_complex(name, dtype):
    check(f"aten::{name}", make((3, 4), dtype), make((4,), dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [
        "div.Tensor", "floor_divide", "remainder.Tensor", "fmod.Tensor", *BOUNDS, "copysign.Tensor", "atan2", "hypot",
        "logaddexp", "logaddexp2", "xlogy.Tensor", "special_xlog1py", "heaviside", "pow.Tensor_Tensor", "nextafter",
    ],
)  # fmt: skip
def test_special_values(name, dtype):
    check(f"aten::{name}", *edge_pairs(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["fmod.Tensor", "copysign.Tensor", "div.Tensor", "maximum"])
def test_sign_of_zero(name, dtype):
    a = torch.tensor([0.0, -0.0, -4.0, 4.0], dtype=dtype)
    b = torch.tensor([2.0, 2.0, 2.0, -2.0], dtype=dtype)
    got = run(f"aten::{name}", a, b)[0]
    assert got.signbit().tolist() == getattr(torch, name.split(".")[0])(a, b).signbit().tolist()


@pytest.mark.parametrize("rounding", [None, "floor", "trunc"])
@pytest.mark.parametrize("dtype", REAL)
def test_div_mode(dtype, rounding):
    check("aten::div.Tensor_mode", make((5, 4), dtype), make((4,), dtype, nonzero=True), rounding_mode=rounding)
    check("aten::div.Scalar_mode", make((5, 4), dtype), 3, rounding_mode=rounding)
    check("aten::div.Scalar_mode", make((5, 4), dtype), 1.5, rounding_mode=rounding)


def test_floor_division_is_exact_where_the_quotient_rounds_up():
    a, b = torch.tensor([0.3, 0.6, 0.7, 1.0], dtype=torch.float32), torch.tensor([0.1, 0.2, 0.1, 0.1])
    check("aten::floor_divide", a, b)


def test_integer_division_by_zero_does_not_crash():
    a = torch.tensor([1, -5, 0])
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        torch.floor_divide(a, torch.zeros_like(a))
    for fn in (pointwise.floor_quotient, pointwise.floor_remainder, pointwise.truncated_quotient):
        assert fn(jnp.asarray([1, -5, 0, -(2**31)]), jnp.asarray([0, 0, 0, -1])).shape == (4,)


def test_integers_wrap():
    check("aten::add.Tensor", torch.tensor([2**31 - 1], dtype=torch.int32), torch.tensor([5], dtype=torch.int32))
    check("aten::mul.Tensor", torch.tensor([200], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8))
    check("aten::sub.Scalar", torch.tensor([2**62, -(2**63)]), 2**62 + 5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "copysign"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.uint8])
@pytest.mark.parametrize("value", [3, 2.5])
def test_scalars(name, dtype, value):
    check(f"aten::{name}.Scalar", make((3, 4), dtype), value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.complex64])
def test_alpha(dtype):
    a, b = make((3, 4), dtype), make((3, 4), dtype)
    for name in ("add.Tensor", "sub.Tensor", "rsub.Tensor"):
        check(f"aten::{name}", a, b, alpha=3)
        if dtype.is_floating_point:
            check(f"aten::{name}", a, b, alpha=2.5)


def test_bool():
    a, b = make((8,), torch.bool), make((8,), torch.bool)
    check("aten::add.Tensor", a, b)
    check("aten::add.Tensor", a, b, alpha=True)
    check("aten::mul.Tensor", a, b)
    check("aten::maximum", a, b)
    check("aten::mul.Tensor", a, make((8,), torch.float16))
    check("aten::div.Tensor", a, torch.ones(8, dtype=torch.bool))


def test_remainder_scalar_tensor():
    check("aten::remainder.Scalar_Tensor", 7, make((5,), torch.int64, nonzero=True))
    check("aten::remainder.Scalar_Tensor", -7.5, make((5,), torch.float32))


@pytest.mark.parametrize("dtype", [*FLOAT, torch.int32, torch.complex64])
def test_addcmul(dtype):
    a, b, c = make((3, 4), dtype), make((4,), dtype), make((3, 1), dtype)
    check("aten::addcmul", a, b, c)
    check("aten::addcmul", a, b, c, value=3)
    if dtype.is_floating_point or dtype.is_complex:
        check("aten::addcdiv", a, b, c + 1.5, value=0.3)
        check("aten::addcdiv", a, b, make((3, 1), torch.complex128) + 2)


@pytest.mark.parametrize("dtype", [*FLOAT, torch.complex64])
def test_lerp(dtype):
    a, b = make((3, 4), dtype), make((4,), dtype)
    for weight in (0.0, 0.2, 0.5, 0.9, 1.0, -3.0):
        check("aten::lerp.Scalar", a, b, weight)
    check("aten::lerp.Tensor", a, b, make((3, 1), dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8, torch.uint8])
def test_integer_functions(dtype):
    a, b = make((6, 5), dtype), make((5,), dtype)
    for name in ("gcd", "lcm", "pow.Tensor_Tensor"):
        check(f"aten::{name}", a, b)
    check("aten::gcd", torch.zeros(3, dtype=dtype), torch.arange(3).to(dtype))
    check("aten::lcm", torch.zeros(3, dtype=dtype), torch.arange(3).to(dtype))
    check("aten::pow.Tensor_Scalar", a, 70)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 0.5, -0.5, -1.0, -2.0, 2.7, 1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", FLOAT)
def test_pow_scalar(dtype, exponent):
    check("aten::pow.Tensor_Scalar", make((20,), dtype), exponent)
    # float16 alone has no square root path on CPU: (-inf) ** 0.5 is inf there, and NaN for every other type.
    edge = [v for v in EDGE if dtype != torch.float16 or exponent not in (0.5, -0.5) or v > 0]
    check("aten::pow.Tensor_Scalar", torch.tensor(edge, dtype=dtype), exponent)
    check("aten::pow.Scalar", exponent, torch.tensor(EDGE, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_pow_integer_base(dtype):
    a = make((3, 4), dtype)
    for exponent in (0, 1, 2, 3, 5, 2.0, 0.5, 1.3):
        check("aten::pow.Tensor_Scalar", a.abs(), exponent)
    check("aten::pow.Scalar", 3, a.abs())
    check("aten::pow.Scalar", 2.5, a)


def test_pow_complex():
    z = torch.cat([make((6,), torch.complex64), torch.zeros(1, dtype=torch.complex64)])
    check("aten::pow.Tensor_Tensor", z, torch.full_like(z, 1.5 - 0.5j))
    for exponent in (0, 2, 0.5, 1.7, -1.0, 1 + 2j):
        check("aten::pow.Tensor_Scalar", z[:6], exponent)
    check("aten::pow.Tensor_Scalar", make((6,), torch.float32), 1 + 2j)


def test_ldexp():
    check("aten::ldexp.Tensor", make((4,), torch.float32), torch.tensor([1, -2, 10, 0]))
    check("aten::ldexp.Tensor", make((4,), torch.int32), torch.tensor([1, 2, 10, 0]))
    check("aten::ldexp.Tensor", make((4,), torch.float16), torch.tensor([1, 2, 3, 0]))
    check("aten::ldexp.Tensor", make((4,), torch.float64), torch.tensor([1.5, 2, 3, 0]))


@pytest.mark.parametrize("dtype", FLOAT)
def test_float_functions(dtype):
    a, b = make((3, 4), dtype), make((4,), dtype)
    for name in ("atan2", "hypot", "logaddexp", "logaddexp2", "copysign.Tensor", "nextafter", "heaviside"):
        check(f"aten::{name}", a, b)
    check("aten::xlogy.Tensor", a, b.abs())
    check("aten::xlogy.Scalar_Self", 2, b.abs())
    check("aten::xlogy.Scalar_Other", a, 2.5)
    check("aten::special_xlog1py.other_scalar", a, 2.5)
    check("aten::special_xlog1py.self_scalar", 2.5, b.abs())


def test_hypot_does_not_overflow():
    check("aten::hypot", torch.tensor([1e30, 1e-30, 0.0]), torch.tensor([1e30, 1e-30, 0.0]))


@pytest.mark.parametrize("name", ["atan2", "xlogy.Tensor", "copysign.Tensor"])
def test_integers_become_floats(name):
    check(f"aten::{name}", make((4,), torch.int32), make((4,), torch.int64).abs() + 1)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("bounds", [(1, 3), (None, 2), (1, None), (0.5, 1.7), (3, 1)])
def test_clamp(dtype, bounds):
    check("aten::clamp", make((3, 4), dtype), *bounds)
    low, high = (None if b is None else torch.tensor([b, b + 1]) for b in bounds)
    check("aten::clamp.Tensor", make((4, 2), dtype), low, high)


def test_clamp_nan():
    x = torch.tensor(EDGE)
    check("aten::clamp", x, float("nan"), 1.0)
    check("aten::clamp_min", x, 0.3)
    check("aten::clamp_max", x, 1)
    check("aten::clamp_min.Tensor", x, torch.tensor(float("nan")))
    check("aten::clamp_max.Tensor", x, torch.randn(10))


def test_complex_parts():
    a, b = torch.randn(3, 4), torch.randn(4)
    check("aten::complex", a, b)
    check("aten::complex", a.double(), b.double())
    check("aten::polar", a, b)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_fill(dtype):
    x = make((3, 4), dtype)
    check("aten::fill.Scalar", x, 2)
    check("aten::fill.Scalar", x, 2.5)
    check("aten::fill.Tensor", x, torch.tensor(3.7))
    check("aten::zero", x)
    check("aten::zero", make((), dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_a_product_with_false_keeps_nan(dtype):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, -2.0, 3.0]).to(dtype)
    no, yes = torch.zeros(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool)
    for b in (no, yes):
        check("aten::mul.Tensor", x, b)
        check("aten::addcmul", x, x, b)
        check("aten::native_dropout_backward", x, b, 2.0)


def test_complex_powers_are_accurate():
    base = torch.tensor([complex(9.0, 2.0), complex(-3.0, 7.5)], dtype=torch.complex64)
    exponent = torch.tensor([complex(9.0, -8.0), complex(7.0, 3.0)], dtype=torch.complex64)
    exact = base.to(torch.complex128) ** exponent.to(torch.complex128)
    got = run("aten::pow.Tensor_Tensor", base, exponent)[0].to(torch.complex128)
    torch.testing.assert_close(got, exact, rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool"])
@pytest.mark.parametrize("name", ["aten::gcd", "aten::lcm"])
def test_divisors_of_what_is_no_integer(name, dtype):
    from torch_tpu.lowering import registry

    x = jnp.ones(3, dtype)
    with pytest.raises(NotImplementedError, match="expected integers"):
        registry.get(name).fn(x, x)


def test_complex64_is_not_computed_in_complex128():
    """XLA:TPU aborts the process on complex128."""
    with jax.enable_x64(True):
        x = jnp.ones(3, jnp.complex64)
        for f in (pointwise.power, pointwise.logaddexp, pointwise.div, pointwise.lerp):
            arguments = (x, x, x)[: 3 if f is pointwise.lerp else 2]
            assert "c128" not in str(jax.make_jaxpr(f)(*arguments)), f


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("divisor", [127.5, 49.0, 3.0])
def test_quotients_by_one_number_are_rounded_once(dtype, divisor):
    x = torch.cat([torch.randn(500), torch.arange(1.0, 100.0) * divisor, torch.tensor([0.0, -0.0, math.inf, math.nan])])
    x = x.to(dtype)
    on_device = x.to("tpu")
    for by in (divisor, torch.tensor(divisor, dtype=dtype), torch.tensor([divisor], dtype=dtype)):
        by_device = by.to("tpu") if isinstance(by, torch.Tensor) else by
        full = torch.full_like(on_device, divisor)[:1]
        for got in (on_device / by_device, torch.addcdiv(torch.zeros_like(on_device), on_device, full)):
            torch.testing.assert_close(got.cpu(), x / by, rtol=0, atol=0, equal_nan=True)
    compiled = torch.compile(lambda t: t / divisor, fullgraph=True)
    torch.testing.assert_close(compiled(on_device).cpu(), x / divisor, rtol=0, atol=0, equal_nan=True)
