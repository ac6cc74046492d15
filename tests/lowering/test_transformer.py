"""The fused operators of nn.MultiheadAttention and nn.TransformerEncoderLayer against CPU."""

import pytest
import torch
from harness import check


def make(shape, dtype=torch.float32, seed=0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.5).to(dtype)


B, L, D, H = 2, 5, 8, 2
MASKS = {
    "nothing left": (torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool(), 1),
    "none": (None, None),
    "over queries": (torch.ones(L, L).triu(1).bool(), 0),
    "padding": (torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool(), 1),
    "merged": (torch.ones(L, L).triu(1).bool().expand(B, H, L, L).contiguous(), 2),
}


def projections(dtype):
    return make((3 * D, D), dtype, 1), make((3 * D,), dtype, 2), make((D, D), dtype, 3), make((D,), dtype, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("average", [True, False])
def test_multi_head_attention(dtype, mask, average):
    x = make((B, L, D), dtype)
    check("aten::_native_multi_head_attention", x, x, x, D, H, *projections(dtype), mask[0], True, average, mask[1])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_module(compiled, need_weights):
    """PyTorch's meta kernel has a tensor of no elements for weights that are not wanted; kernels have none."""
    m = torch.nn.MultiheadAttention(D, H, batch_first=True).eval()
    x, other = make((B, L, D)), make((B, L + 2, D))
    for operands in [(x, x, x), (x, other, other)]:
        with torch.no_grad():
            expected = m.to("cpu")(*operands, need_weights=need_weights)
            call = torch.compile(m.to("tpu"), backend="tpu", fullgraph=True) if compiled else m.to("tpu")
            got = call(*[t.to("tpu") for t in operands], need_weights=need_weights)
        torch.testing.assert_close([None if t is None else t.cpu() for t in got], list(expected))


def test_fused_attention_without_weights():
    x = make((B, L, D))
    arguments = (x, x, x, D, H, *projections(torch.float32), None, False, True, None)
    on_device = [a.to("tpu") if isinstance(a, torch.Tensor) else a for a in arguments]
    expected, got = (torch._native_multi_head_attention(*a) for a in (arguments, on_device))
    torch.testing.assert_close(got[0].cpu(), expected[0])
    assert got[1] is None and expected[1] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("use_gelu", [True, False])
def test_encoder_layer(dtype, mask, norm_first, use_gelu):
    norms = [make((D,), dtype, i) for i in range(5, 9)]
    ffn = [make((12, D), dtype, 10), make((12,), dtype, 11), make((D, 12), dtype, 12), make((D,), dtype, 13)]
    x = make((B, L, D), dtype)
    args = [x, D, H, *projections(dtype), use_gelu, norm_first, 1e-5, *norms, *ffn, *mask]
    check("aten::_transformer_encoder_layer_fwd", *args)
