"""Fake quantization and products with quantized weights against PyTorch on CPU."""

import pytest
import torch
from harness import check, run

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SPECIAL = [-10.0, -1.3, 0.0, 0.24, 0.25, 0.26, 5.0, float("nan"), float("inf"), -float("inf"), 0.125, 0.375]


def _values(dtype):
    return torch.cat([torch.randn(48, generator=torch.Generator().manual_seed(0)) * 3, torch.tensor(SPECIAL)]).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_per_tensor(dtype):
    x = _values(dtype)
    check("aten::fake_quantize_per_tensor_affine_cachemask", x, 0.25, 2, -4, 7)
    for enabled in (0, 1):
        check(
            "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", x, torch.tensor([0.25]),
            torch.tensor([2]), torch.tensor([enabled]), -4, 7,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_per_channel(dtype):
    # What CPU makes of an infinity differs from operator to operator: it goes by way of int64.
    x, scale = (
        _values(dtype).nan_to_num(posinf=9, neginf=-9, nan=float("nan")).reshape(5, 12),
        torch.tensor([0.25, 0.5, 0.1, 1, 2]),
    )
    for point in (torch.tensor([-3, 0, 3, 1, 2], dtype=torch.int32), torch.tensor([-0.5, 0.5, 0, 1.5, 0.25])):
        check("aten::fake_quantize_per_channel_affine_cachemask", x, scale, point, 0, -4, 7)


POINTS = (0.0, 0.5, 1.5, -0.5, -0.6, -1.5, 20.0)


def test_learnable():
    x = _values(torch.float32)
    finite = x[x.isfinite()].reshape(1, -1)
    grad = torch.randn(finite.shape, generator=torch.Generator().manual_seed(1))
    for point in POINTS:
        scale, zero = torch.tensor([0.25]), torch.tensor([point])
        check("aten::_fake_quantize_learnable_per_tensor_affine", x, scale, zero, -4, 7, 2.0)
        check("aten::_fake_quantize_learnable_per_channel_affine", finite, scale, zero, 0, -4, 7, 2.0)
        check(
            "aten::_fake_quantize_learnable_per_tensor_affine_backward", grad, finite, scale, zero, -4, 7, 2.0,
            rtol=1e-5, atol=1e-4,
        )  # fmt: skip
        check(
            "aten::_fake_quantize_learnable_per_channel_affine_backward", grad, finite, scale, zero, 0, -4, 7, 2.0,
            rtol=1e-5, atol=1e-4,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_of_8_bits(dtype):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-128, 127, (16, 32), dtype=torch.int8, generator=generator)
    x, scales = torch.randn(4, 32, generator=generator).to(dtype), torch.rand(16, generator=generator).to(dtype)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}[dtype]
    check("aten::_weight_int8pack_mm", x, weight, scales, rtol=tolerance, atol=1e-3 if dtype == torch.float32 else 1)


def _weight_of_4_bits():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 16, (64, 64), dtype=torch.int32, generator=generator)
    params = torch.rand(2, 64, 2, generator=generator).bfloat16()
    scale, zero = (params[..., i].float().T[:, :, None] for i in range(2))
    plain = ((steps.float() - 8).reshape(64, 2, 32) * scale + zero).reshape(64, 64)
    return steps, params, plain, torch.randn(4, 64, generator=generator).bfloat16()


def test_weight_of_4_bits():
    steps, params, plain, x = _weight_of_4_bits()
    (packed,) = run("aten::_convert_weight_to_int4pack_for_cpu", steps, 1)
    (got,) = run("aten::_weight_int4pack_mm_for_cpu", x, packed, 32, params)
    torch.testing.assert_close(got, (x.float() @ plain.T).bfloat16())


def test_weight_of_4_bits_in_the_form_of_cuda():
    steps, params, plain, x = _weight_of_4_bits()
    pairs = (steps[:, ::2] << 4 | steps[:, 1::2]).to(torch.uint8)
    packed = torch._convert_weight_to_int4pack(pairs.to("tpu"), 2)
    assert packed.shape == (8, 2, 32, 1)
    got = torch._weight_int4pack_mm(x.to("tpu"), packed, 32, params.to("tpu")).cpu()
    torch.testing.assert_close(got, (x.float() @ plain.T).bfloat16())


def _scaled():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    one = torch.tensor(0.5)
    return {
        "one scale": ([one], [0], [0], [one], [0], [0], None, torch.float32),
        "rows and columns": ([draw(4, 1)], [1], [0], [draw(1, 16)], [1], [0], None, torch.bfloat16),
        "bias": ([one], [0], [0], [one], [0], [0], draw(16), torch.float32),
    }


@pytest.mark.parametrize("name", _scaled())
def test_scaled_mm_v2(name):
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(4, 32, generator=generator).to(torch.float8_e4m3fn)
    b = torch.randn(16, 32, generator=generator).to(torch.float8_e4m3fn).t()
    check("aten::_scaled_mm_v2", a, b, *_scaled()[name], rtol=1e-2, atol=1e-2)
