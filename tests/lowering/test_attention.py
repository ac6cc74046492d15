"""Fused attention and its gradient against F.scaled_dot_product_attention on CPU."""

import math

import jax
import pytest
import torch
import torch.nn.functional as F
from harness import to_array, to_tensor

from torch_tpu.eager import sdpa
from torch_tpu.lowering import attention

INF = math.inf
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def make(shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def fused(q, k, v, mask, grad, key=None, p=0.0, causal=False, scale=None):
    """Output, log-sum-exp, and the gradients of q, k, v and mask."""

    def program(q, k, v, mask, grad, key):
        out, lse, _, _, max_q, max_k, seed, offset, _ = attention.fused_attention(
            q, k, v, mask, p, causal, False, scale=scale, key=key
        )
        wanted = (True, True, True, mask is not None and mask.dtype != bool)
        back = attention.fused_attention_backward(
            grad, q, k, v, mask, wanted, out, lse, None, None, max_q, max_k, p, causal, seed, offset, scale=scale
        )
        return out, lse, back

    with jax.enable_x64(True):
        args = [None if t is None else to_array(t) for t in (q, k, v, mask, grad)]
        out, lse, back = jax.jit(program)(*args, jax.random.key(7) if key is None else key)
        return to_tensor(out), to_tensor(lse), [None if g is None else to_tensor(g) for g in back]


def reference(q, k, v, mask, grad, **kwargs):
    """The same from PyTorch in float64."""
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    trained = mask is not None and mask.dtype != torch.bool
    wide = mask.double().requires_grad_() if trained else mask
    out = F.scaled_dot_product_attention(*leaves, wide, enable_gqa=q.shape[-3] != k.shape[-3], **kwargs)
    wanted = [*leaves, *([wide] if trained else [])]
    return out.detach(), list(torch.autograd.grad(out, wanted, grad.double()))


def agree(q, k, v, mask=None, causal=False, scale=None):
    grad = make((*q.shape[:-1], v.shape[-1]), q.dtype, 9)
    out, lse, back = fused(q, k, v, mask, grad, causal=causal, scale=scale)
    want, want_back = reference(q, k, v, mask, grad, is_causal=causal, scale=scale)
    tolerance = TOLERANCE[q.dtype]
    assert out.dtype == q.dtype and out.shape == want.shape
    torch.testing.assert_close(out.double(), want, rtol=tolerance, atol=tolerance)
    for g, w in zip([g for g in back if g is not None], want_back, strict=True):
        assert g.shape == w.shape
        torch.testing.assert_close(g.double(), w, rtol=2 * tolerance, atol=2 * tolerance)
    return out, lse, back


SHAPES = {
    "square": ((2, 4, 8, 16), (2, 4, 8, 16), (2, 4, 8, 16)),
    "more keys": ((2, 2, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)),
    "more queries": ((2, 2, 7, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
    "grouped": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
    "decode": ((3, 4, 1, 8), (3, 4, 9, 8), (3, 4, 9, 8)),
    "3d": ((3, 5, 8), (3, 7, 8), (3, 7, 8)),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("causal", [False, True])
def test_plain_and_causal(dtype, shapes, causal):
    q, k, v = (make(s, dtype, i) for i, s in enumerate(shapes))
    agree(q, k, v, causal=causal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask_shape", [(5, 7), (1, 7), (5, 1), (2, 1, 5, 7), (1, 6, 5, 7), (2, 6, 1, 7), (6, 5, 7)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast_and_have_gradients(dtype, mask_shape, kind):
    q, k, v = (make(s, dtype, i) for i, s in enumerate(SHAPES["grouped"]))
    mask = make(mask_shape, torch.float32, 5)
    agree(q, k, v, mask > -1 if kind == "bool" else mask.to(dtype), scale=0.3)


def test_mask_of_one_dimension():
    agree(*(make(s, torch.float32, i) for i, s in enumerate(SHAPES["grouped"])), make((7,), torch.float32, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fully_masked_rows_are_zero_and_leak_nothing(dtype):
    q, k, v = (make(s, dtype, i) for i, s in enumerate(SHAPES["square"]))
    mask = torch.rand(8, 8, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[2], mask[3, 0] = False, True
    for m in (mask, torch.where(mask, 0.0, -INF).to(dtype)):
        out, lse, back = agree(q, k, v, m)
        assert bool((out[:, :, 2] == 0).all()) and bool((back[0][:, :, 2] == 0).all())
        assert bool((lse[:, :, 2] == -INF).all())


def test_infinite_and_nan_scores_spread_as_on_cpu():
    q, k, v = (make((1, 1, 3, 4), torch.float32, i) for i in range(3))
    for place, value in (((0, 0), INF), ((1, 2), math.nan)):
        mask = torch.zeros(3, 3)
        mask[place] = value
        got = fused(q, k, v, mask, torch.zeros(1, 1, 3, 4))[0]
        torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v, mask), equal_nan=True)
    k[0, 0, 1] = math.nan
    mask = torch.tensor([True, False, True])
    got = fused(q, k, v, mask, torch.zeros(1, 1, 3, 4))[0]
    assert bool(got.isnan().all()) and bool(F.scaled_dot_product_attention(q, k, v, mask[None]).isnan().all())


@pytest.mark.parametrize("batch,queries,keys", [(2, 0, 3), (2, 3, 0), (0, 3, 3)])
def test_empty(batch, queries, keys):
    q, k = make((batch, 2, queries, 4), torch.float32), make((batch, 2, keys, 4), torch.float32)
    agree(q, k, k)


def test_logsumexp():
    q, k, v = (make(s, torch.float32, i) for i, s in enumerate(SHAPES["grouped"]))
    lse = fused(q, k, v, None, make(q.shape, torch.float32))[1]
    scores = q @ k.repeat_interleave(3, 1).mT / math.sqrt(8)
    torch.testing.assert_close(lse, scores.logsumexp(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout(dtype):
    """Value = identity shows the dropped weights; the gradients are those of the same mask."""
    n, p = 64, 0.25
    q, k = make((1, 2, n, 8), dtype), make((1, 2, n, 8), dtype, 1)
    v, grad = torch.eye(n, dtype=dtype).expand(1, 2, n, n), make((1, 2, n, n), dtype, 2)
    out, _, back = fused(q, k, v, None, grad, p=p)
    kept = out != 0
    assert abs(kept.double().mean().item() - (1 - p)) < 0.02 and not torch.equal(kept[0, 0], kept[0, 1])
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    weights = (leaves[0] @ leaves[1].mT / math.sqrt(8)).softmax(-1) * kept / (1 - p)
    want = weights @ leaves[2]
    torch.testing.assert_close(out, want)
    for g, w in zip(back, torch.autograd.grad(want, leaves, grad), strict=False):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
    other = fused(q, k, v, None, grad, key=jax.random.key(8), p=p)[0]
    assert not torch.equal(other != 0, kept)
    assert torch.equal(fused(q, k, v, None, grad, p=p)[0], out)
    assert bool((fused(q, k, v, None, grad, p=1.0)[0] == 0).all())


def test_choice():
    q, k = torch.empty(2, 4, 5, 8), torch.empty(2, 2, 5, 8)
    fused_, math_ = 4, 0
    assert sdpa.fused_sdp_choice(q, q, q) == fused_
    assert sdpa.fused_sdp_choice(q[0], q[0], q[0]) == fused_
    assert sdpa.fused_sdp_choice(q, k, k) == math_
    assert sdpa.fused_sdp_choice(q, k, k, enable_gqa=True) == fused_
    assert sdpa.fused_sdp_choice(q[0, 0], q[0, 0], q[0, 0]) == math_
    assert sdpa.fused_sdp_choice(q, q[:1], q[:1]) == math_
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert sdpa.fused_sdp_choice(q, q, q) == math_


def test_entry_falls_to_the_math_path_and_checks_arguments():
    q, k = torch.randn(2, 3, 5, 6), torch.randn(1, 3, 7, 6)
    for mask in (None, torch.rand(5, 7) > 0.3):
        got = sdpa.scaled_dot_product_attention(q, k, k, mask)
        torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, k, mask))
    for bad, message in [
        ({"attn_mask": torch.ones(5, 7, dtype=torch.bool), "is_causal": True}, "should not be set when is_causal"),
        ({"attn_mask": torch.ones(5, 7, dtype=torch.int32)}, "Expected attn_mask dtype"),
        ({"dropout_p": 1.5}, "dropout probability has to be between 0 and 1"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            sdpa.scaled_dot_product_attention(q, k, k, **bad)
