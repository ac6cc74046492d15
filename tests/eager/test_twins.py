"""Mutating operators served by the lowering of their functional twin: which are found, and what is written where."""

import pytest
import torch

aten = torch.ops.aten
OWN = ("cpu", "tpu")


@pytest.fixture(autouse=True)
def no_fallback():
    before = torch.tpu.fallback_counts()
    yield
    assert torch.tpu.fallback_counts() == before


@pytest.mark.parametrize("training", [True, False])
def test_rrelu_writes_its_noise(training):
    x, noise = torch.randn(50).to("tpu"), torch.full((50,), 7.0, device="tpu")
    y = aten.rrelu_with_noise(x, noise, 0.1, 0.3, training)
    if training:
        negative = x.cpu() <= 0
        slope = noise.cpu()[negative]
        assert (slope >= 0.1).all() and (slope < 0.3).all() and len(slope.unique()) > 5
        assert (noise.cpu()[~negative] == 1).all()
        torch.testing.assert_close(y, x * noise)
    else:
        assert (noise == 7).all()
        torch.testing.assert_close(y, torch.nn.functional.leaky_relu(x, 0.2))
    z = x.clone()
    torch.manual_seed(3)
    assert aten.rrelu_with_noise_(z, noise, 0.1, 0.3, training) is z
    torch.manual_seed(3)
    torch.testing.assert_close(z, aten.rrelu_with_noise(x, noise, 0.1, 0.3, training))


def test_out_comes_before_what_else_is_written():
    """The twin gives the results first; the schema has the other mutated tensors before ``out=``."""
    x, noise, out = torch.randn(20).to("tpu"), torch.zeros(20, device="tpu"), torch.empty(0, device="tpu")
    assert aten.rrelu_with_noise.out(x, noise, 0.1, 0.3, True, out=out) is out
    torch.testing.assert_close(out, x * noise)
    results = []
    values = torch.randn(4, 3, 5)
    for device in OWN:
        mean, var = torch.zeros(3, device=device), torch.ones(3, device=device)
        outs = [torch.empty(0, device=device) for _ in range(3)]
        aten._native_batch_norm_legit.out(
            values.to(device), None, None, mean, var, True, 0.1, 1e-5, out=outs[0], save_mean=outs[1],
            save_invstd=outs[2],
        )  # fmt: skip
        results.append([t.cpu() for t in (*outs, mean, var)])
    torch.testing.assert_close(results[1], results[0])


def test_out_of_operators_without_a_meta_kernel():
    """The sizes are the twin's, or the lowering's own; strides of an out= that fits are kept."""
    x = torch.rand(3, 4).to("tpu") + 0.1
    out = torch.empty(0, device="tpu")
    assert aten._standard_gamma_grad.out(x, x, out=out) is out
    torch.testing.assert_close(out, torch._standard_gamma_grad(x, x))
    strided = torch.empty(3, 4, 2, device="tpu")[..., 0]
    aten._sample_dirichlet.out(x, out=strided)
    assert strided.stride() == (8, 2)
    torch.testing.assert_close(strided.sum(-1), torch.ones(3, device="tpu"))
    y, mask = torch.empty(0, device="tpu"), torch.empty(0, dtype=torch.bool, device="tpu")
    aten.native_dropout.out(x, 0.5, True, out0=y, out1=mask)
    torch.testing.assert_close(y, x * mask * 2)
