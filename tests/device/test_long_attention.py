"""Attention whose scores would not fit the memory: blocks of queries, one after the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torch_tpu.lowering import attention
from torch_tpu.runtime import programs

# Of lengths that no other test has: a program that is there already would not be made in blocks.
CASES = [(37, 37, 4, 4), (19, 31, 4, 2), (31, 19, 2, 2)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    taken = []
    monkeypatch.setattr(programs.cache, "directory", None)  # programs from the disk are not made in blocks either
    monkeypatch.setattr(attention, "MOST_SCORES", 64)
    monkeypatch.setattr(attention, "BLOCK_SCORES", 1)  # eight queries, the least
    split = attention._split
    monkeypatch.setattr(attention, "_split", lambda x, block: (taken.append(block), split(x, block))[1])
    yield
    assert set(taken) == {8}


def gradients(device: str, tensors: list[torch.Tensor], mask: torch.Tensor | None, causal: bool) -> list[torch.Tensor]:
    leaves = [t.detach().clone().to(device).requires_grad_() for t in tensors]
    out = F.scaled_dot_product_attention(
        *leaves, attn_mask=None if mask is None else mask.to(device), is_causal=causal, enable_gqa=True
    )
    (out * torch.linspace(-1, 1, out.shape[-2], dtype=out.dtype, device=device)[:, None]).sum().backward()
    return [out.detach().cpu(), *(t.grad.cpu() for t in leaves if t.grad is not None)]


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "added", "of keys"])
@pytest.mark.parametrize("lengths", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_blocks_are_the_whole(dtype, lengths, kind):
    gen = torch.Generator().manual_seed(0)
    queries, keys, heads, kv_heads = lengths
    shapes = (2, heads, queries, 7), (2, kv_heads, keys, 7), (2, kv_heads, keys, 7)
    tensors = [torch.randn(s, generator=gen, dtype=dtype) for s in shapes]
    mask = None
    if kind == "bool":
        mask = torch.rand(queries, keys, generator=gen) > 0.5
        mask[3] = False  # a row that sees nothing
    elif kind == "added":
        mask = torch.randn(2, 1, queries, keys, generator=gen, dtype=dtype)
    elif kind == "of keys":
        mask = torch.rand(2, 1, 1, keys, generator=gen) > 0.3
    on_cpu = gradients("cpu", tensors, mask, kind == "causal")
    on_tpu = gradients("tpu", tensors, mask, kind == "causal")
    assert len(on_cpu) == len(on_tpu) == 4
    for got, expected in zip(on_tpu, on_cpu, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-5)
