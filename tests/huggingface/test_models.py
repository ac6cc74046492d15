"""The part of the model sweep that is always run: one architecture of several kinds, the cells that tell most."""

from __future__ import annotations

import pytest
import torch
from architectures import all_architectures
from cells import CELLS, Different, Times, compare
from more_cells import MORE

_CHECKS = {
    "llama": ["forward", "gradients", "tied", "save_load", "generate_dynamic", "generate_static", "sampling"],
    "qwen3_moe": ["forward", "gradients", "generate_dynamic"],
    "mamba": ["forward", "gradients"],
    "modernbert": ["forward_bf16", "compiled", "right_padding"],
    "t5": ["forward", "eager", "generate_dynamic"],
    "vit": ["forward", "gradients", "exported"],
}


@pytest.mark.parametrize(("name", "check"), [(n, c) for n, of in _CHECKS.items() for c in of])
def test_device_equals_cpu(name: str, check: str) -> None:
    fallbacks = dict(torch.tpu.fallback_counts())
    {**CELLS, **MORE}[check](all_architectures()[name], Times())
    assert torch.tpu.fallback_counts() == fallbacks


def test_tables_name_at_least_eighty_architectures_of_every_kind() -> None:
    rows = all_architectures().values()
    assert len(rows) >= 80
    assert {r.kind for r in rows} == {
        "decoder", "encoder", "encoder-decoder", "mixture", "state-space", "vision", "audio", "multimodal",
    }  # fmt: skip
    assert all(hasattr(r.model_class, "config_class") for r in rows)


def test_a_wrong_value_is_seen() -> None:
    expected = {"logits": torch.randn(2, 8)}
    compare({"logits": expected["logits"].to("tpu")}, expected)
    wrong = expected["logits"].clone()
    wrong[1, 3] += 1e-3 * wrong.abs().max()
    with pytest.raises(Different, match=r"logits: differs by .* at 11 of \(2, 8\)"):
        compare({"logits": wrong.to("tpu")}, expected, lambda: {"logits": expected["logits"].double()})
