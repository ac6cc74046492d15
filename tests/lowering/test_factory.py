import jax
import pytest
import torch
from harness import check

from torch_tpu.lowering import registry

DTYPES = [None, torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arange(dtype):
    for start, end, step in [(5, 9, 1), (0, 100, 7), (9, -3, -2), (3, 3, 1)]:
        if dtype == torch.uint8 and end < 0:
            continue
        check("aten::arange.start_step", start, end, step, dtype=dtype)
        check("aten::arange.start", min(start, end), max(start, end), dtype=dtype)
    check("aten::arange", 7, dtype=dtype)
    check("aten::arange", 6.5, dtype=dtype)
    if dtype is None or dtype.is_floating_point:
        check("aten::arange.start_step", 0.1, 2.0, 0.3, dtype=dtype)
        check("aten::arange.start_step", 1e6, 1e6 + 3, 0.25, dtype=torch.float32)
    check("aten::arange.start_step", 2**60 + 1, 2**60 + 5, 2, dtype=torch.int64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linspace_logspace(dtype):
    for steps in (0, 1, 2, 5, 100):
        check("aten::linspace", 0, 10, steps, dtype=dtype)
        check("aten::linspace", 10.5, 0.25, steps, dtype=dtype)
        check("aten::logspace", 0.0, 2.0, steps, dtype=dtype)
    check("aten::logspace", 0, 5, 6, 2.0, dtype=dtype)
    check("aten::linspace.Tensor_Tensor", torch.tensor(1.5), torch.tensor(4.0), 7, dtype=dtype)
    check("aten::linspace.Tensor_Scalar", torch.tensor(1), 4.0, 7, dtype=dtype)
    check("aten::linspace.Scalar_Tensor", 2, torch.tensor(4.0), 7, dtype=dtype)
    check("aten::logspace.Tensor_Scalar", torch.tensor(1), 4.0, 4, dtype=dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.complex64])
def test_full_and_eye(dtype):
    for value in (3, True, 2.5, 0) + ((1 + 2j,) if dtype == torch.complex64 else ()):
        check("aten::full", [2, 3], value, dtype=dtype)
        check("aten::scalar_tensor", value, dtype=dtype)
    check("aten::full", [], 1, dtype=dtype)
    check("aten::full_like", torch.ones(2, 2, dtype=torch.int16), 3, dtype=dtype)
    check("aten::eye", 3, dtype=dtype)
    for n, m in ((2, 4), (4, 2), (0, 3)):
        check("aten::eye.m", n, m, dtype=dtype)


def test_ranges_of_one_length_share_a_program():
    op, lowering = torch.ops.aten.arange.start_step, registry.get("aten::arange.start_step")
    meta = (registry.Meta((4,), torch.int64),)
    with jax.enable_x64(True):
        program = jax.jit(lambda s, e: registry.call(lowering, op._schema, {"start": s, "end": e}, meta))
        assert program(5, 9)[0].tolist() == [5, 6, 7, 8]
        assert program(6, 10)[0].tolist() == [6, 7, 8, 9]
        assert program._cache_size() == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_between_truncated_ends(dtype):
    for steps in (2, 3, 4, 7, 50, 97):
        check("aten::linspace", 50, 1, steps, dtype=dtype)
        check("aten::linspace", 0.9, 97.9, steps, dtype=dtype)
        check("aten::logspace", 0.9, 4.9, steps, 2.7, dtype=dtype)
        check("aten::logspace", 3, 0, steps, 3.0, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64, torch.float32])
def test_out_says_the_type(dtype):
    def made(device):
        out = torch.ones(9, dtype=dtype, device=device)
        torch.linspace(4.3, -3, 9, out=out)
        yield out.cpu()
        yield torch.arange(0.5, 9.5, out=torch.ones(9, dtype=dtype, device=device)).cpu()
        yield torch.linspace(4.3, -3, 50, out=torch.ones(50, 2, dtype=dtype, device=device)[:, 1]).cpu()
        yield torch.eye(3, 4, out=torch.ones(0, dtype=dtype, device=device)).cpu()
        yield torch.logspace(0.9, 3.3, 9, out=torch.ones(9, dtype=dtype, device=device)).cpu()
        yield torch.full((9,), 2.7, out=torch.ones(9, dtype=dtype, device=device)).cpu()

    for got, expected in zip(made("tpu"), made("cpu"), strict=True):
        torch.testing.assert_close(got, expected)
