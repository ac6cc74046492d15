"""Layer, group, RMS, weight and batch normalization against PyTorch on CPU."""

import jax
import pytest
import torch
from harness import check, run, to_array, to_tensor
from masked import check_masks

from torch_tpu.lowering import batch_norm

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ALL = [True, True, True]


def make(shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,normalized", [((4, 6), (6,)), ((2, 3, 5), (3, 5)), ((7,), (7,)), ((0, 4), (4,))])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(dtype, shape, normalized, affine):
    x, grad = make(shape, dtype), make(shape, dtype, 1)
    weight, bias = (make(normalized, dtype, 2), make(normalized, dtype, 3)) if affine else (None, None)
    check("aten::native_layer_norm", x, list(normalized), weight, bias, 1e-5)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, list(normalized), weight, bias, 1e-5)
    if affine:
        args = [grad, x, list(normalized), mean, rstd, weight, bias]
        check("aten::native_layer_norm_backward", *args, ALL)
        if dtype is torch.float32:
            check_masks("aten::native_layer_norm_backward", *args, None)


def test_layer_norm_with_float32_weight_and_half_input():
    check("aten::native_layer_norm", make((4, 6), torch.bfloat16), [6], make((6,), torch.float32), None, 1e-5)


def test_variance_of_a_large_mean_is_stable():
    """E[x^2] - E[x]^2 would be wrong by several percent here; a float32 sum of 64 such values may be off by 0.1."""
    x = make((4, 64), torch.float32) + 1000
    check("aten::native_layer_norm", x, [64], None, None, 1e-12, atol=2e-3)
    check("aten::native_group_norm", x.reshape(4, 8, 8), None, None, 4, 8, 8, 2, 1e-12, atol=2e-3)
    check("aten::_native_batch_norm_legit.no_stats", x.reshape(8, 4, 8), None, None, True, 0.1, 1e-12, atol=2e-3)


def test_nan_stays_in_its_row():
    x = make((3, 5), torch.float32)
    x[1, 2] = float("nan")
    check("aten::native_layer_norm", x, [5], None, None, 1e-5)
    check("aten::_fused_rms_norm", x, [5], None, 1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("eps", [1e-6, None])
@pytest.mark.parametrize("shape,normalized", [((4, 6), (6,)), ((2, 3, 5), (3, 5)), ((0, 4), (4,))])
def test_rms_norm(dtype, eps, shape, normalized):
    x, grad, weight = make(shape, dtype), make(shape, dtype, 1), make(normalized, dtype, 2)
    for w in (weight, None):
        check("aten::_fused_rms_norm", x, list(normalized), w, eps)
    rstd = torch.ops.aten._fused_rms_norm(x, list(normalized), weight, eps)[1]
    if x.numel():
        with jax.enable_x64(True):
            from torch_tpu.lowering.norm import rms_norm_backward

            got = rms_norm_backward(*map(to_array, (grad, x)), normalized, to_array(rstd), to_array(weight), ALL[:2])
        wide = [t.double().requires_grad_() for t in (x, weight)]
        default = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        y = torch.rms_norm(wide[0], normalized, wide[1], default if eps is None else eps)
        want = torch.autograd.grad(y, wide, grad.double())
        tolerance = {torch.float64: 1e-10, torch.float32: 1e-5}.get(dtype, 2e-2)
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(to_tensor(g).double(), w, rtol=tolerance, atol=tolerance)
        if dtype is torch.float32:
            check_masks("aten::_fused_rms_norm_backward", grad, x, list(normalized), rstd, weight, None, count=2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape,groups", [((2, 6, 5), 3), ((3, 4, 2, 3), 1), ((2, 4), 4), ((0, 4, 3), 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(dtype, shape, groups, affine):
    n, c, hw = shape[0], shape[1], int(torch.Size(shape[2:]).numel())
    x, grad = make(shape, dtype), make(shape, dtype, 1)
    weight, bias = (make((c,), dtype, 2), make((c,), dtype, 3)) if affine else (None, None)
    check("aten::native_group_norm", x, weight, bias, n, c, hw, groups, 1e-5)
    _, mean, rstd = torch.ops.aten.native_group_norm(x, weight, bias, n, c, hw, groups, 1e-5)
    if affine:
        args = [grad, x, mean, rstd, weight, n, c, hw, groups]
        check("aten::native_group_norm_backward", *args, ALL)
        if dtype is torch.float32:
            check_masks("aten::native_group_norm_backward", *args, None)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dtype, dim):
    v, g = make((3, 4, 5), dtype), make((3, 1, 1) if dim == 0 else (1, 1, 5), dtype, 1)
    check("aten::_weight_norm_interface", v, g, dim)
    _, norms = torch.ops.aten._weight_norm_interface(v, g, dim)
    check("aten::_weight_norm_interface_backward", make((3, 4, 5), dtype, 2), v, g, norms, dim)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 2)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(dtype, shape, training, affine):
    x, grad, c = make(shape, dtype), make(shape, dtype, 1), shape[1]
    weight, bias = (make((c,), dtype, 2), make((c,), dtype, 3)) if affine else (None, None)
    mean, var = make((c,), dtype, 4), make((c,), dtype, 5).abs() + 0.5
    args = [x, weight, bias, mean, var, training, 0.1, 1e-5]
    check("aten::_native_batch_norm_legit_functional", *args)
    _, saved_mean, saved_invstd = torch.ops.aten.native_batch_norm(*args[:3], mean.clone(), var.clone(), *args[5:])
    back = [grad, x, weight, mean, var, saved_mean, saved_invstd, training, 1e-5]
    if affine:
        check("aten::native_batch_norm_backward", *back, ALL)
    if dtype is torch.float32:
        check_masks("aten::native_batch_norm_backward", *back, None)
        check("aten::native_batch_norm", x, weight, bias, None, None, True, 0.1, 1e-5)
        check("aten::_native_batch_norm_legit.no_stats", x, weight, bias, True, 0.1, 1e-5)


def test_batch_norm_mixed_types_and_updates():
    x = make((2, 3, 5), torch.bfloat16)
    stats = [torch.zeros(3), torch.ones(3)]
    check("aten::_native_batch_norm_legit_functional", x, torch.rand(3), torch.rand(3), *stats, True, 0.3, 1e-3)
    x, stats = make((2, 3, 5), torch.float32), [torch.rand(3), torch.rand(3)]
    check("aten::_batch_norm_with_update_functional", x, torch.rand(3), torch.rand(3), *stats, 0.3, 1e-3)
    check("aten::_batch_norm_no_update", x, torch.rand(3), torch.rand(3), *stats, 0.3, 1e-3)
    check("aten::batch_norm_update_stats", x, None, None, 0.3)


def test_sync_batch_norm_pieces_make_a_whole():
    """Two processes' pieces, put together, are the batch norm of the joint batch, forward and backward."""
    eps, momentum, parts = 1e-5, 0.1, [make((2, 3, 4), torch.float32), make((4, 3, 4), torch.float32, 1) * 2 + 1]
    x, weight, bias = torch.cat(parts), make((3,), torch.float32, 2), make((3,), torch.float32, 3)
    running = [torch.zeros(3), torch.ones(3)]
    grad = make((6, 3, 4), torch.float32, 4)
    want = torch.ops.aten._native_batch_norm_legit_functional(x, weight, bias, *running, True, momentum, eps)
    want_back = torch.ops.aten.native_batch_norm_backward(grad, x, weight, *running, want[1], want[2], True, eps, ALL)
    with jax.enable_x64(True):
        local = [batch_norm.batch_norm_stats(to_array(p), eps) for p in parts]
        means, invstds = (to_array(torch.stack([to_tensor(s[i]) for s in local])) for i in (0, 1))
        counts = to_array(torch.tensor([8.0, 16.0]))
        args = [means, invstds, *map(to_array, running), momentum, eps, counts]
        mean, invstd = batch_norm.batch_norm_gather_stats_with_counts(to_array(x), *args)
        updated = batch_norm.gathered_running_stats(*args)
        rest = [*map(to_array, (weight, bias)), mean, invstd]
        y = batch_norm.batch_norm_elemt(to_array(x), *rest, eps)
        back = [to_array(grad), to_array(x), mean, invstd, to_array(weight)]
        sums = batch_norm.batch_norm_backward_reduce(*back, True, True, True)
        grad_x = batch_norm.batch_norm_backward_elemt(*back, *sums[:2], counts.astype("int32"))
    for got, expected in zip((y, mean, invstd, *updated, grad_x, *sums[2:]), (*want, *want_back), strict=True):
        torch.testing.assert_close(to_tensor(got), expected, rtol=1e-5, atol=1e-5)


def test_momentum_and_eps_are_operands():
    x, stats = make((2, 3, 5), torch.float32), [torch.zeros(3), torch.ones(3)]
    first = run("aten::_native_batch_norm_legit_functional", x, None, None, *stats, True, 0.0, 1e-5)
    assert torch.equal(first[3], stats[0]) and torch.equal(first[4], stats[1])
