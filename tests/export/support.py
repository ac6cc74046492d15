"""Models that are exported, and how an artifact is checked."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}  # float32 sums in another order


def check(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, path: pathlib.Path,
    calls: int = 1, others: tuple[tuple[Any, ...], ...] = (), sizes: Any = None, platforms: Any = "cpu", **options: Any,
) -> Any:  # fmt: skip
    """Export on CPU tensors, save, load, and compare results, written arguments and weights with the model's own.

    Args:
      calls: how many times to call both; what the model keeps between calls must agree.
      others: further arguments to call both with (other sizes).

    Returns:
      The loaded artifact.
    """
    reference = copy.deepcopy(model)
    program = torch.export.export(model, copy.deepcopy(args), kwargs, **options)
    torch.tpu.export.save(program, path, sizes=sizes, platforms=platforms)
    loaded = torch.tpu.export.load(path)
    for given in (*(args,) * calls, *others):
        on_cpu, on_tpu = copy.deepcopy(given), moved(given)
        with torch.no_grad():
            expected = reference(*on_cpu, **(kwargs or {}))
        compare(loaded(*on_tpu, **moved(kwargs or {})), expected)
        compare(on_tpu, on_cpu)
    state = loaded.state_dict()
    for name, value in reference.state_dict().items():
        if name in state:
            torch.testing.assert_close(state[name].cpu(), value, **TOLERANCE)
    return loaded


def moved(x: Any) -> Any:
    return pytree.tree_map(lambda v: v.detach().to("tpu") if isinstance(v, torch.Tensor) else v, x)


def compare(found: Any, expected: Any) -> None:
    """The same structure, and the same values."""
    a, spec = pytree.tree_flatten(found)
    b, expected_spec = pytree.tree_flatten(expected)
    assert spec == expected_spec
    for x, y in zip(a, b, strict=True):
        if isinstance(y, torch.Tensor):
            assert x.device.type == "tpu"
            torch.testing.assert_close(x.cpu(), y, **TOLERANCE, check_stride=False)
        else:
            assert type(x) is type(y)
            assert x == y


class Mlp(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16, dtype=dtype), torch.nn.GELU(), torch.nn.Dropout(0.5),
            torch.nn.Linear(16, 4, dtype=dtype),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class ConvNet(torch.nn.Module):
    """With batch norm, whose statistics a call in training mode writes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(6)
        self.head = torch.nn.Linear(6, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(image)))
        x = torch.nn.functional.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


class AttentionBlock(torch.nn.Module):
    """As a block of a diffusion model's U-Net: group norm, self- and cross-attention, gated feed-forward."""

    def __init__(self, channels: int = 16, heads: int = 2, context: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.GroupNorm(4, channels)
        self.proj_in = torch.nn.Conv2d(channels, channels, 1)
        self.norm1, self.norm2, self.norm3 = (torch.nn.LayerNorm(channels) for _ in range(3))
        self.q1, self.k1, self.v1 = (torch.nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.q2 = torch.nn.Linear(channels, channels, bias=False)
        self.k2, self.v2 = (torch.nn.Linear(context, channels, bias=False) for _ in range(2))
        self.out1, self.out2 = torch.nn.Linear(channels, channels), torch.nn.Linear(channels, channels)
        self.up, self.down = torch.nn.Linear(channels, 8 * channels), torch.nn.Linear(4 * channels, channels)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, sample: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        b, c, h, w = sample.shape
        x = self.proj_in(self.norm(sample)).permute(0, 2, 3, 1).reshape(b, h * w, c)
        y = self.norm1(x)
        x = x + self.out1(self.attend(self.q1(y), self.k1(y), self.v1(y)))
        x = x + self.out2(self.attend(self.q2(self.norm2(x)), self.k2(context), self.v2(context)))
        value, gate = self.up(self.norm3(x)).chunk(2, dim=-1)
        x = x + self.down(value * torch.nn.functional.gelu(gate))
        return sample + x.reshape(b, h, w, c).permute(0, 3, 1, 2)


def gpt2() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()
