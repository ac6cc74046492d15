"""Attention with masks, pooling, resizing and losses on the device: results and gradients as on CPU."""

import pytest
import torch
from torch.nn import functional as F

from device.support import check


def agree(f, *operands, rtol=1e-5, atol=1e-5):
    """Result and the gradients of floating operands are CPU's."""
    ended = []
    for device in ("cpu", "tpu"):
        given = [t.to(device).requires_grad_(t.is_floating_point()) for t in (o.detach().clone() for o in operands)]
        result = f(*given)
        weights = torch.linspace(-1, 1, result.numel()).view(result.shape).to(device)
        leaves = [t for t in given if t.requires_grad]
        ended.append([result, *torch.autograd.grad((result * weights).sum(), leaves)])
    check(ended[1], ended[0], rtol, atol)
    return ended[1]


# Symptom: a fully masked row gives what CPU gives and leaks nothing; an `attn_mask` that requires grad gets one.
@pytest.mark.parametrize("shape", [(4, 6), (2, 1, 4, 6), (1, 3, 4, 6), (2, 3, 1, 6), (2, 3, 4, 6)], ids=str)
def test_masks_that_require_grad(shape):
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    agree(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, torch.randn(shape))


@pytest.mark.parametrize("kind", ["bool", "float", "module"])
def test_fully_masked_rows(kind):
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8), torch.randn(2, 3, 6, 8)
    keep = torch.rand(4, 6) > 0.4
    keep[1] = False
    if kind == "module":
        m = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        x, hidden = torch.randn(2, 6, 8), torch.zeros(2, 6, dtype=torch.bool)
        hidden[1] = True
        for need_weights in (False, True):
            expected = m(x, x, x, key_padding_mask=hidden, need_weights=need_weights)
            m.to("tpu")
            there = x.to("tpu")
            got = m(there, there, there, key_padding_mask=hidden.to("tpu"), need_weights=need_weights)
            m.to("cpu")
            check(got[0], expected[0])
        return
    mask = keep if kind == "bool" else torch.zeros(4, 6).masked_fill(~keep, float("-inf"))
    where = mask.to("tpu")
    found = agree(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, where if q.device.type == "tpu" else mask), q, k, v
    )
    spoiled = v.clone()
    spoiled[..., ~keep.any(0), :] = 1e30  # keys that nobody may see
    again = F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), spoiled.to("tpu"), where)
    check(again, found[0].cpu())


# Symptom: `avg_pool1d` has a gradient.
POOLS = {
    "avg_pool": {"kernel_size": 3, "stride": 2, "padding": 1},
    "max_pool": {"kernel_size": 3, "stride": 2, "padding": 1},
    "lp_pool": {"norm_type": 2.0, "kernel_size": 2}, "adaptive_avg_pool": {"output_size": 3},
    "adaptive_max_pool": {"output_size": 3},
}  # fmt: skip


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", POOLS)
def test_pools_have_gradients(name, rank, batched):
    x = torch.randn(*([2] if batched else []), 2, *[7] * rank)
    agree(lambda x: getattr(F, f"{name}{rank}d")(x, **POOLS[name]), x.abs() if name == "lp_pool" else x)


# Symptom: same-size linear interpolation; antialiased resize.
@pytest.mark.parametrize("size", [(5, 6), (3, 4), (9, 11), (5, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area", "antialiased bilinear",
                                  "antialiased bicubic"])  # fmt: skip
def test_resizing(mode, size):
    options = {"align_corners": False} if mode.endswith(("linear", "cubic")) else {}
    name = mode.removeprefix("antialiased ")
    agree(lambda x: F.interpolate(x, size, mode=name, antialias=name != mode, **options), torch.randn(2, 3, 5, 6))


@pytest.mark.parametrize(
    "mode, rank", [("linear", 1), ("bilinear", 2), ("trilinear", 3), ("nearest", 1), ("nearest", 3)]
)
@pytest.mark.parametrize("align", [True, False])
def test_resizing_to_the_same_size_changes_nothing(mode, rank, align):
    x = torch.randn(2, 3, *[5] * rank)
    options = {} if mode == "nearest" else {"align_corners": align}
    for how in ({"size": [5] * rank}, {"scale_factor": 1.0}):
        found = agree(lambda x, how=how: F.interpolate(x, mode=mode, **how, **options), x)
        check(found[0], x)


# Symptom: `ctc_loss`.
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("flat", [True, False])
def test_ctc_loss(reduction, flat):
    scores, lengths = torch.randn(12, 3, 6), torch.tensor([3, 2, 4])
    targets = torch.randint(1, 6, (9,) if flat else (3, 4))
    agree(
        lambda s, t, n: F.ctc_loss(
            s.log_softmax(-1), t, torch.tensor([12, 10, 12], device=s.device), n, reduction=reduction
        ),
        scores, targets, lengths,
    )  # fmt: skip
