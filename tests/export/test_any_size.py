"""Common layers as one program for every batch and length: exported once, run at two sizes.

A lowering that compares sizes in Python, where they are symbols, would fail here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from export.support import TOLERANCE

F = nn.functional
torch.manual_seed(0)


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


def attention(x: torch.Tensor, **options: Any) -> torch.Tensor:
    h = heads(x)
    return F.scaled_dot_product_attention(h, h, h, **options)


def masked(x: torch.Tensor, mask: Callable[[int], torch.Tensor]) -> torch.Tensor:
    return attention(x, attn_mask=mask(x.shape[1]).to(x.device))


def grouped(x: torch.Tensor) -> torch.Tensor:
    h = heads(x)
    return F.scaled_dot_product_attention(h, h[:, :2], h[:, :2], is_causal=True, enable_gqa=True)


def rotary(x: torch.Tensor) -> torch.Tensor:
    h = x.unflatten(-1, (2, 8))
    angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), 10000.0 ** -(torch.arange(4.0) / 4)).repeat(
        1, 2
    )
    return h * angles.cos()[:, None] + torch.cat([-h[..., 4:], h[..., :4]], -1) * angles.sin()[:, None]


def layer(module: nn.Module, channels_first: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    module.eval()
    return lambda x: module(x.transpose(1, 2) if channels_first else x)


EMBEDDING, ATTENTION = nn.Embedding(10, 4), nn.MultiheadAttention(16, 4, batch_first=True).eval()
GROUPS: dict[str, list[Callable[[torch.Tensor], torch.Tensor]]] = {
    "attention": [
        attention, lambda x: attention(x, is_causal=True), lambda x: attention(x, scale=0.3), grouped, rotary,
        lambda x: masked(x, lambda n: torch.ones(n, n, dtype=torch.bool).tril()),
        lambda x: masked(x, lambda n: -torch.arange(n).expand(n, n).float()), lambda x: ATTENTION(x, x, x)[0],
        layer(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)),
    ],
    "layers": [
        layer(nn.Linear(16, 8)), layer(nn.Conv1d(16, 8, 3, padding=1, stride=2), True),
        layer(nn.ConvTranspose1d(16, 8, 3, stride=2), True), layer(nn.LayerNorm(16)), layer(nn.RMSNorm(16)),
        layer(nn.GroupNorm(4, 16), True), layer(nn.BatchNorm1d(16), True), layer(nn.InstanceNorm1d(16), True),
        lambda x: EMBEDDING(x.abs().long().sum(-1) % 10), lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 1),
        lambda x: F.interpolate(x[:, None], size=(8, 8), mode="bilinear"),
    ],
    "order and sums": [
        lambda x: x.cumsum(1), lambda x: x.cummax(1)[0], lambda x: x.logcumsumexp(1), lambda x: x.sort(1)[0],
        lambda x: x.topk(2, 1)[0], lambda x: x.softmax(1), lambda x: x.log_softmax(-1), lambda x: x.logsumexp(1),
        lambda x: x.var(1), lambda x: x.mean(1), lambda x: x.argmax(), lambda x: x.norm(dim=1), lambda x: x.diff(dim=1),
        lambda x: F.cross_entropy(x.flatten(0, 1), x.argmax(-1).flatten()), lambda x: torch.fft.fft(x, dim=-1).real,
        lambda x: F.cross_entropy(x.transpose(1, 2), x.argmax(-1), label_smoothing=0.1),
    ],
    "shapes": [
        lambda x: torch.cat([x, x * 2], 1), lambda x: torch.stack([x, x]), lambda x: F.pad(x, (0, 0, 1, 2)),
        lambda x: F.pad(x.transpose(1, 2), (1, 1), mode="reflect"), lambda x: x.gather(1, x.argmax(1, keepdim=True)),
        lambda x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0), lambda x: x.roll(1, 1),
        lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)], lambda x: torch.where(x > 0, x, 0.0), lambda x: x[:, -1],
        lambda x: x.repeat(1, 2, 1), lambda x: x.repeat_interleave(2, 1), lambda x: (x @ x.transpose(1, 2)).tril(),
        lambda x: torch.einsum("bld,bmd->blm", x, x), lambda x: F.unfold(x[:, None], 3, padding=1),
        lambda x: torch.meshgrid(torch.arange(x.shape[1]), torch.arange(3), indexing="ij")[0],
    ],
}  # fmt: skip


class Group(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.functions = GROUPS[name]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(f(x) for f in self.functions)


@pytest.mark.parametrize("name", GROUPS)
def test_one_program_for_every_size(name: str) -> None:
    model = Group(name)
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=3, max=128)}
    program = torch.export.export(model, (torch.randn(3, 6, 16),), dynamic_shapes={"x": sizes})
    artifact = torch.tpu.export.export(program, platforms="cpu")
    for batch, length in ((2, 5), (4, 9)):
        x = torch.randn(batch, length, 16)
        for i, (got, expected) in enumerate(zip(artifact(x.to("tpu")), model(x), strict=True)):
            torch.testing.assert_close(got.cpu(), expected, msg=lambda m, i=i: f"function {i}: {m}", **TOLERANCE)
