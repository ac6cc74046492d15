"""The fused operators of nn.MultiheadAttention and nn.TransformerEncoderLayer against CPU."""

import pytest
import torch
from harness import check

from torch_tpu.lowering import registry


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


def test_without_weights():
    import jax.numpy as jnp

    x = jnp.ones((B, L, D), "float32")
    rest = [jnp.ones(s, "float32") for s in [(3 * D, D), (3 * D,), (D, D), (D,)]]
    assert registry.get("aten::_native_multi_head_attention").fn(x, x, x, D, H, *rest, need_weights=False)[1] is None


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
