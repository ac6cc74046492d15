"""Moments, Kolmogorov-Smirnov distances, ranges and dtypes of random numbers; keys are fixed, so nothing is flaky."""

import math

import jax
import numpy as np
import pytest
import torch
from harness import check, find, run, to_array

from torch_tpu.lowering import checks, registry

N = 20_000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def distance(x, cdf):
    """The Kolmogorov-Smirnov statistic; above 1.63 / sqrt(N) one sample in 100 would be."""
    x = x.double().flatten().sort().values
    ideal = cdf(x)
    rank = torch.arange(len(x) + 1, dtype=torch.float64) / len(x)
    return max((rank[1:] - ideal).max().item(), (ideal - rank[:-1]).max().item())


CDF = {
    "uniform": lambda x: (x + 1) / 4,
    "normal_functional": lambda x: torch.special.ndtr((x - 2) / 3),
    "exponential": lambda x: 1 - torch.exp(-2.5 * x),
    "cauchy": lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5,
    "log_normal": lambda x: torch.special.ndtr((x.log() - 0.5) / 0.75),
}
PARAMETERS = {"uniform": (-1.0, 3.0), "normal_functional": (2.0, 3.0), "exponential": (2.5,), "cauchy": (1.0, 2.0),
              "log_normal": (0.5, 0.75)}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", sorted(CDF))
def test_continuous_distributions(name, dtype):
    (x,) = run(f"aten::{name}", torch.empty(N, dtype=dtype), *PARAMETERS[name])
    assert x.dtype == dtype and x.isfinite().float().mean() > 0.999
    limit = 1.63 / math.sqrt(N)
    if dtype.itemsize == 2:  # rounding puts several values on one: compare at the width of a step
        limit += 2.0**-8
    assert distance(x, CDF[name]) < limit


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_excludes_the_upper_bound(dtype):
    for low, high in [(0.0, 1.0), (0.1, 0.3), (-1.0, 3.0), (1.0, 1.0)]:
        (x,) = run("aten::uniform", torch.empty(N, dtype=dtype), low, high)
        low, high = torch.tensor([low, high]).to(dtype)
        assert (x >= low).all() and ((x < high).all() or low == high)
    (x,) = run("aten::rand", [N], dtype=dtype)
    assert (x >= 0).all() and (x < 1).all() and abs(x.double().mean() - 0.5) < 0.01


def test_normal_variants():
    mean, std = torch.tensor([-5.0, 5.0]).repeat(N // 2), torch.tensor([1.0, 3.0]).repeat(N // 2)
    for name, args, means, stds in [
        ("Tensor_float", (mean, 2.0), (-5, 5), (2, 2)),
        ("float_Tensor", (1.0, std), (1, 1), (1, 3)),
        ("Tensor_Tensor", (mean, std), (-5, 5), (1, 3)),
        ("float_float", (1.0, 2.0, [N]), (1, 1), (2, 2)),
    ]:
        (x,) = run(f"aten::normal.{name}", *args)
        x = x.reshape(-1, 2)
        torch.testing.assert_close(x.mean(0), torch.tensor(means).float(), atol=0.1, rtol=0)
        torch.testing.assert_close(x.std(0), torch.tensor(stds).float(), atol=0.06, rtol=0)
    (x,) = run("aten::randn", [N], dtype=torch.complex64)
    assert abs(x.real.var() - 0.5) < 0.02 and abs(x.imag.var() - 0.5) < 0.02 and abs((x.real * x.imag).mean()) < 0.02


def test_keys_decide():
    op = ("aten::randn", [100])
    (a,), (b,), (c,) = (run(*op, key=jax.random.key(k)) for k in (1, 1, 2))
    assert a.equal(b) and not a.equal(c)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bernoulli_and_dropout(dtype):
    p = torch.tensor([0.0, 0.25, 1.0], dtype=dtype).repeat(N, 1)
    for x in (run("aten::bernoulli", p)[0], run("aten::bernoulli.Tensor", torch.empty(N, 3, dtype=dtype), p[:1])[0]):
        means = x.double().mean(0)
        assert x.dtype == dtype and means[0] == 0 and means[2] == 1 and abs(means[1] - 0.25) < 0.015
    (x,) = run("aten::bernoulli.p", torch.empty(N, dtype=dtype), 0.7)
    assert abs(x.double().mean() - 0.7) < 0.015
    x = torch.full((N,), 2.0, dtype=dtype)
    y, mask = run("aten::native_dropout", x, 0.2, True)
    assert y.dtype == dtype and mask.dtype == torch.bool and abs(mask.double().mean() - 0.8) < 0.015
    torch.testing.assert_close(y, torch.where(mask, x / 0.8, 0).to(dtype))
    y, mask = run("aten::native_dropout", x, 1.0, True)
    assert not y.any() and not mask.any()
    y, mask = run("aten::native_dropout", x, 0.0, True)
    assert y.equal(x) and mask.all()
    y, mask = run("aten::native_dropout", x, 0.5, False)
    assert y.equal(x) and mask.all()
    check("aten::native_dropout_backward", torch.randn(9).to(dtype), torch.rand(9) > 0.5, 1.25)
    for whole in (torch.bool, torch.int64):
        check("aten::native_dropout_backward", torch.ones(9, dtype=whole), torch.rand(9) > 0.5, 2.0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8, torch.float32])
def test_integers(dtype):
    (x,) = run("aten::random.from", torch.empty(N, dtype=dtype), -3 if dtype != torch.uint8 else 3, 7)
    low = 3 if dtype == torch.uint8 else -3
    assert x.dtype == dtype and sorted(x.unique().tolist()) == list(range(low, 7))
    counts = x.double().histc(7 - low, low, 7)
    expected = N / (7 - low)
    assert ((counts - expected) ** 2 / expected).sum() < 35
    (x,) = run("aten::random.to", torch.empty(N, dtype=dtype), 5)
    assert sorted(x.unique().tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool, *FLOATS])
def test_random_covers_the_range_of_its_type(dtype):
    top = {torch.float32: 2**24, torch.float64: 2**53, torch.bfloat16: 2**8, torch.float16: 2**11, torch.bool: 1}
    top = top.get(dtype) or torch.iinfo(dtype).max
    (x,) = run("aten::random", torch.empty(N, dtype=dtype))
    assert x.dtype == dtype and (x >= 0).all() and (x.double() <= float(top)).all()
    assert abs(x.double().mean() / top - 0.5) < 0.015
    if dtype == torch.int64:
        (x,) = run("aten::random.from", torch.empty(N, dtype=dtype), -(2**63), None)
        assert abs((x < 0).double().mean() - 0.5) < 0.02
    assert dtype not in (torch.uint8, torch.bool) or len(x.unique()) == top + 1


def test_randint_and_randperm():
    (x,) = run("aten::randint.low", 5, 8, [N])
    assert x.dtype == torch.int64 and sorted(x.unique().tolist()) == [5, 6, 7]
    (x,) = run("aten::randint", 3, [N], dtype=torch.float32)
    assert x.dtype == torch.float32 and sorted(x.unique().tolist()) == [0, 1, 2]
    (x,) = run("aten::randint_like.low_dtype", torch.empty(N, dtype=torch.int32), -1, 1)
    assert x.dtype == torch.int32 and sorted(x.unique().tolist()) == [-1, 0]
    for n in (0, 1, 1000):
        (x,) = run("aten::randperm", n)
        assert x.dtype == torch.int64 and x.sort().values.equal(torch.arange(n))
    assert not x.equal(torch.arange(1000))


def test_randint_bounds_are_operands():
    op, lowering = find("aten::randint.low"), registry.get("aten::randint.low")
    meta = (registry.Meta((4,), torch.int64),)
    with jax.enable_x64(True):
        program = jax.jit(
            lambda low, high, key: registry.call(
                lowering, op._schema, {"low": low, "high": high, "size": [4]}, meta, key
            )
        )
        for low in (5, 50):
            (x,) = program(low, low + 2, jax.random.key(0))
            assert ((np.asarray(x) >= low) & (np.asarray(x) < low + 2)).all()
        assert program._cache_size() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_multinomial(dtype):
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 2.0, 0.0]], dtype=dtype)
    (x,) = run("aten::multinomial", weights, N, True)
    assert x.dtype == torch.int64
    assert sorted(x[0].unique().tolist()) == [1, 2] and sorted(x[1].unique().tolist()) == [0, 2]
    assert abs((x[0] == 2).double().mean() - 0.75) < 0.015 and abs((x[1] == 2).double().mean() - 0.5) < 0.015
    (x,) = run("aten::multinomial", weights, 2, False)
    assert sorted(x[0].tolist()) == [1, 2] and sorted(x[1].tolist()) == [0, 2]
    (x,) = run("aten::multinomial", weights[:1].expand(N, 4), 1)
    assert abs((x == 2).double().mean() - 0.75) < 0.015 and sorted(x.unique().tolist()) == [1, 2]
    (x,) = run("aten::multinomial", weights[0], 1, True)
    assert x.shape == (1,)


def test_counts():
    (x,) = run("aten::geometric", torch.empty(N), 0.25)
    assert x.min() == 1 and abs(x.mean() - 4) < 0.12 and abs(x.var() - 12) < 0.9
    (x,) = run("aten::geometric", torch.empty(N, dtype=torch.int32), 0.25)
    assert x.dtype == torch.int32 and x.min() == 1 and abs(x.double().mean() - 4) < 0.12
    for rate in (0.0, 0.5, 40.0):
        (x,) = run("aten::poisson", torch.full((N,), rate))
        assert abs(x.mean() - rate) < 0.03 * math.sqrt(rate) + 1e-9 and abs(x.var() - rate) <= 0.05 * rate
    (x,) = run("aten::binomial", torch.full((N,), 20.0), torch.tensor(0.3))
    assert abs(x.mean() - 6) < 0.07 and abs(x.var() - 4.2) < 0.25 and x.max() <= 20


def test_gamma_and_dirichlet():
    for alpha in (0.1, 1.0, 7.5):
        (x,) = run("aten::_standard_gamma", torch.full((N,), alpha))
        shape = torch.tensor(alpha).double()
        assert (x > 0).all() and distance(x, lambda v, shape=shape: torch.special.gammainc(shape, v)) < 0.012
    alpha = torch.tensor([0.01, 2.0, 5.0])
    (x,) = run("aten::_sample_dirichlet", alpha.expand(N, 3))
    torch.testing.assert_close(x.sum(-1), torch.ones(N))
    torch.testing.assert_close(x.mean(0), alpha / alpha.sum(), atol=0.01, rtol=0)


@pytest.mark.parametrize("name, args", [
    ("uniform", (2.0, 1.0)), ("normal_functional", (0.0, -1.0)), ("exponential", (-1.0,)), ("geometric", (1.5,)),
    ("cauchy", (0.0, -1.0)), ("log_normal", (0.0, -1.0)), ("bernoulli.p", (1.5,)),
])  # fmt: skip
def test_a_bad_parameter_is_an_error(name, args):
    with jax.enable_x64(True), checks.collect() as found:
        x = to_array(torch.empty(3))
        meta = {"meta": (registry.Meta((3,), torch.float32),)} if registry.get(f"aten::{name}").meta else {}
        registry.get(f"aten::{name}").fn(x, *args, key=jax.random.key(0), **meta)
    assert [c for c in found if c.error is RuntimeError and int(c.report[0])]
    with pytest.raises(RuntimeError):
        find(f"aten::{name}")(torch.empty(3), *args)


def test_multinomial_of_bad_weights_is_an_error():
    for weights in ([0.0, 0.0], [-1.0, 2.0], [torch.inf, 1.0], [torch.nan, 1.0]):
        with jax.enable_x64(True), checks.collect() as found:
            registry.get("aten::multinomial").fn(to_array(torch.tensor(weights)), 1, key=jax.random.key(0))
        assert any(int(c.report[0]) and c.error is RuntimeError for c in found)
