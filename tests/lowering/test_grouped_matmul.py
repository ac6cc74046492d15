"""Grouped matrix products against PyTorch on CPU (which leaves rows past the last end unset)."""

import jax
import pytest
import torch
from harness import check, run, to_array

from torch_tpu.lowering import registry


def offs(*ends):
    return torch.tensor(ends, dtype=torch.int32)


def make(shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


ENDS = [offs(3, 5, 32), offs(0, 0, 32), offs(32, 32, 32), offs(1, 31, 32)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_forms(dtype, ends):
    check("aten::_grouped_mm", make((32, 16), dtype), make((3, 16, 24), dtype, 1), ends)
    check("aten::_grouped_mm", make((24, 32), dtype), make((32, 16), dtype, 1), ends)
    check("aten::_grouped_mm", make((3, 24, 16), dtype), make((16, 32), dtype, 1), ends)
    check("aten::_grouped_mm", make((3, 8, 16), dtype), make((3, 16, 8), dtype, 1))


def test_many_blocks_a_group():
    ends, bounds = offs(700, 701, 1200), [(0, 700), (700, 701), (701, 1200)]
    x, w = make((1200, 16), torch.float32).round(), make((3, 16, 8), torch.float32, 1).round()  # every sum is exact
    got = run("aten::_grouped_mm", x, w, ends)[0]
    assert torch.equal(got, torch.cat([x[a:b] @ w[g] for g, (a, b) in enumerate(bounds)]))
    got = run("aten::_grouped_mm", x.T, x, ends)[0]
    assert torch.equal(got, torch.stack([x[a:b].T @ x[a:b] for a, b in bounds]))


def test_rows_past_the_last_end_are_zero():
    got = run("aten::_grouped_mm", make((16, 16), torch.float32), make((3, 16, 8), torch.float32, 1), offs(3, 5, 7))[0]
    assert bool((got[7:] == 0).all()) and bool((got[:7] != 0).all())


def test_nan_stays_in_its_group():
    a, b = make((16, 32), torch.float32), make((32, 16), torch.float32, 1)
    a[:, 3], b[4] = float("nan"), float("inf")
    got = run("aten::_grouped_mm", a, b, offs(3, 5, 32))[0]
    assert bool(got[0].isfinite().all()) and bool(got[2].isfinite().all()) and bool(got[1].isnan().all())
    x = make((32, 16), torch.float32)
    x[3] = float("nan")
    rows = run("aten::_grouped_mm", x, make((3, 16, 24), torch.float32, 1), offs(3, 5, 32))[0].isnan()
    assert bool(rows[3].all()) and int(rows.sum()) == 24


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64, torch.float8_e5m2])
def test_types_that_the_cpu_refuses(dtype):
    fn, ends = registry.get("aten::_grouped_mm").fn, to_array(ENDS[0])
    with jax.enable_x64(True):
        x, w = (to_array(make(s, torch.float32).to(dtype)) for s in [(32, 16), (3, 16, 8)])
        one, other = to_array(make((32, 16), torch.float32)), to_array(make((3, 16, 8), torch.float32))
        for operands, said in [((x, w), "mat_a"), ((one, w), "mat_b"), ((x, other), "mat_a")]:
            with pytest.raises(RuntimeError, match=f"Expected {said} to be Float32, BFloat16 or Float16 matrix"):
                fn(*operands, ends)
        with pytest.raises(RuntimeError, match="output dtype must match"):
            fn(one, other, ends, out_dtype=dtype)


def test_errors():
    import jax.numpy as jnp

    fn = registry.get("aten::_grouped_mm").fn
    with pytest.raises(NotImplementedError, match="bias"):
        fn(jnp.ones((2, 2)), jnp.ones((1, 2, 2)), jnp.ones((1,), "int32"), bias=jnp.ones(2))
    with pytest.raises(NotImplementedError, match="offs=None for operands of 2 and 3"):
        fn(jnp.ones((2, 2)), jnp.ones((1, 2, 2)))
