"""Comparison, logic, bits, selection and predicates, against PyTorch on CPU."""

import pytest
import torch
from harness import check
from test_pointwise import COMPLEX, EDGE, FLOAT, INTEGER, edge_pairs, make

ALL = [*FLOAT, *INTEGER, torch.bool]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_compare(name, dtype):
    check(f"aten::{name}.Tensor", make((6, 4), dtype), make((4,), dtype))
    check(f"aten::{name}.Tensor", make((0, 4), dtype), make((), torch.float32))
    check(f"aten::{name}.Scalar", make((6, 4), dtype), 1)
    check(f"aten::{name}.Scalar", make((6, 4), dtype), 0.5)
    if dtype.is_floating_point:
        check(f"aten::{name}.Tensor", *edge_pairs(dtype))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", ["eq", "ne"])
def test_compare_complex(name, dtype):
    z = make((4,), dtype)
    check(f"aten::{name}.Tensor", z, torch.cat([z[:2], z[2:] + 1]))
    check(f"aten::{name}.Scalar", z.real.to(dtype), z.real[0].item())


def test_compare_large_integers():
    a = torch.tensor([2**53, 2**53 + 1, 2**62])
    check("aten::eq.Tensor", a, a.flip(0))
    check("aten::gt.Scalar", a, 2**53)


@pytest.mark.parametrize("dtype", [*INTEGER, torch.bool])
@pytest.mark.parametrize("name", ["and", "or", "xor"])
def test_bitwise(name, dtype):
    value = True if dtype == torch.bool else 6
    check(f"aten::bitwise_{name}.Tensor", make((3, 4), dtype), make((4,), dtype))
    check(f"aten::bitwise_{name}.Scalar", make((3, 4), dtype), value)
    check(f"aten::bitwise_{name}.Scalar_Tensor", value, make((3, 4), dtype))
    check("aten::bitwise_not", make((3, 4), dtype))


@pytest.mark.parametrize("dtype", INTEGER)
@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shift(name, dtype):
    a = make((5, 1), dtype)
    amount = torch.tensor([0, 1, 3, 7, 8, 15, 31, 33, 64, 100]).to(dtype)
    check(f"aten::{name}.Tensor", a, amount)
    check(f"aten::{name}.Tensor_Scalar", a, 2)
    check(f"aten::{name}.Scalar_Tensor", 5, amount)
    if dtype.is_signed:
        check(f"aten::{name}.Tensor", a, -amount)
    short = "__lshift__" if "left" in name else "__rshift__"
    check(f"aten::{short}.Tensor", a, amount)
    check(f"aten::{short}.Scalar", a, 3)


@pytest.mark.parametrize("dtype", ALL + COMPLEX)
@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logical(name, dtype):
    a = torch.where(make((3, 4), torch.bool), make((3, 4), dtype), torch.zeros((), dtype=dtype))
    check(f"aten::{name}", a, make((4,), torch.bool))
    check(f"aten::{name}", a, make((4,), torch.int32))
    check("aten::logical_not", a)


def test_nan_is_true():
    check("aten::logical_not", torch.tensor(EDGE))


@pytest.mark.parametrize("dtype", ALL + COMPLEX)
def test_where(dtype):
    condition = make((3, 1), torch.bool)
    check("aten::where.self", condition, make((3, 4), dtype), make((4,), dtype))
    check("aten::where.self", condition, make((3, 4), dtype), make((4,), torch.float32))
    check("aten::where.self", condition, make((3, 4), dtype), make((), torch.float64))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", ["isnan", "isinf", "isposinf", "isneginf", "signbit", "sign", "sgn", "nan_to_num"])
def test_predicates(name, dtype):
    check(f"aten::{name}", make((3, 4), dtype))
    check(f"aten::{name}", make((), dtype))
    check(f"aten::{name}", make((0,), dtype))
    if dtype.is_floating_point:
        check(f"aten::{name}", torch.tensor(EDGE, dtype=dtype))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_predicates(dtype):
    parts = [torch.tensor(EDGE).double().repeat(2), torch.tensor(EDGE * 2).double().flip(0)]
    z = torch.complex(*parts).to(dtype)
    for name in ("isnan", "isinf", "nan_to_num"):
        check(f"aten::{name}", z)
    check("aten::sgn", torch.cat([make((5,), dtype), torch.zeros(1, dtype=dtype)]))


@pytest.mark.parametrize("dtype", FLOAT)
def test_nan_to_num_values(dtype):
    x = torch.tensor(EDGE, dtype=dtype)
    check("aten::nan_to_num", x, 1.5, 7.0, -7.0)
    check("aten::nan_to_num", x, None, 100.0)
