"""Fused LSTM and GRU cells (which PyTorch has no CPU kernel of) against the cells written out in float64."""

import jax
import pytest
import torch
from harness import to_array, to_tensor

from torch_tpu.lowering import registry

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def make(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lower(name, *args):
    fn = registry.get(name).fn
    with jax.enable_x64(True):
        results = jax.jit(fn, static_argnums=[i for i, a in enumerate(args) if isinstance(a, bool)])(
            *(to_array(a) if isinstance(a, torch.Tensor) else a for a in args)
        )
    return [None if r is None else to_tensor(r) for r in results]


def lstm(gates, hidden, cx, b1, b2):
    gates = gates + hidden + (0 if b1 is None else b1 + b2)
    i, f, g, o = gates.chunk(4, 1)
    cy = f.sigmoid() * cx + i.sigmoid() * g.tanh()
    return o.sigmoid() * cy.tanh(), cy


def gru(gates, hidden, hx, b1, b2):
    if b1 is not None:
        gates, hidden = gates + b1, hidden + b2
    (r, z, n), (hr, hz, hn) = gates.chunk(3, 1), hidden.chunk(3, 1)
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    n = (n + r * hn).tanh()
    return ((1 - z) * n + z * hx,)


def close(got, want, dtype):
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want.detach(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def cell(k, dtype, bias):
    """Arguments of a cell with k gates, and the same as float64 leaves."""
    shapes = [(3, k * 4), (3, k * 4), (3, 4)] + [(k * 4,)] * 2
    args = [make(s, dtype, i) for i, s in enumerate(shapes)]
    args[3:] = args[3:] if bias else [None, None]
    return args, [None if a is None else a.double().requires_grad_() for a in args]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("with_hy,with_cy", [(True, True), (True, False), (False, True)])
def test_lstm_cell(dtype, bias, with_hy, with_cy):
    args, wide = cell(4, dtype, bias)
    hy, cy, workspace = lower("aten::_thnn_fused_lstm_cell", *args)
    want = lstm(*wide)
    close(hy, want[0], dtype)
    close(cy, want[1], dtype)
    assert workspace.shape == (3, 16)
    grads = [make((3, 4), dtype, 7) if with_hy else None, make((3, 4), dtype, 8) if with_cy else None]
    got = lower("aten::_thnn_fused_lstm_cell_backward_impl", *grads, args[2], cy, workspace, bias)
    total = sum((w * g.double()).sum() for w, g in zip(want, grads, strict=True) if g is not None)
    leaves = [wide[0], wide[2], *([wide[3]] if bias else [])]
    assert (got[2] is not None) == bias
    for g, w in zip(got, torch.autograd.grad(total, leaves), strict=False):
        close(g, w, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [True, False])
def test_gru_cell(dtype, bias):
    args, wide = cell(3, dtype, bias)
    hy, workspace = lower("aten::_thnn_fused_gru_cell", *args)
    (want,) = gru(*wide)
    close(hy, want, dtype)
    assert workspace.shape == (3, 20)
    grad = make((3, 4), dtype, 7)
    got = lower("aten::_thnn_fused_gru_cell_backward", grad, workspace, bias)
    leaves = [t for t in wide if t is not None]
    assert [g is not None for g in got] == [True, True, True, bias, bias]
    for g, w in zip(got, torch.autograd.grad(want, leaves, grad.double()), strict=False):
        close(g, w, dtype)


def test_no_gradient():
    state, workspace = make((3, 4), torch.float32, 0), make((3, 16), torch.float32, 1)
    got = lower("aten::_thnn_fused_lstm_cell_backward_impl", None, None, state, state, workspace, True)
    assert got == [None, None, None]


@pytest.mark.parametrize("name, k", [("aten::_thnn_fused_lstm_cell", 4), ("aten::_thnn_fused_gru_cell", 3)])
@pytest.mark.parametrize("bad", range(5))
def test_operands_that_do_not_fit(name, k, bad):
    args, _ = cell(k, torch.float32, True)
    args[bad] = args[bad][..., 1:]
    with pytest.raises(RuntimeError, match=r"expected (gates|biases) of shape"):
        lower(name, *args)
