"""PEFT on device tpu: adapters of every kind train as on CPU; LoRA is saved, loaded, merged and switched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import peft
import pytest
import torch
import transformers as hf

WORDS = 40


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    before = torch.tpu.fallback_counts()
    yield
    assert torch.tpu.fallback_counts() == before


def _base() -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=64, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def _batch(device: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, WORDS, (4, 10), generator=torch.Generator().manual_seed(3)).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


_LAYERS = ["q_proj", "v_proj"]
_TASK: dict[str, Any] = {"task_type": "CAUSAL_LM"}
METHODS: dict[str, Any] = {
    "lora": lambda: peft.LoraConfig(r=4, target_modules=_LAYERS, **_TASK),
    "dora": lambda: peft.LoraConfig(r=4, target_modules=_LAYERS, use_dora=True, **_TASK),
    "rslora": lambda: peft.LoraConfig(r=4, target_modules="all-linear", use_rslora=True, **_TASK),
    "lora of embeddings": lambda: peft.LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"], **_TASK),
    "pissa": lambda: peft.LoraConfig(r=4, target_modules=_LAYERS, init_lora_weights="pissa", **_TASK),
    "adalora": lambda: peft.AdaLoraConfig(init_r=6, target_r=3, target_modules=_LAYERS, total_step=8, tinit=2, **_TASK),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], **_TASK),
    "loha": lambda: peft.LoHaConfig(r=4, target_modules=_LAYERS, **_TASK),
    "lokr": lambda: peft.LoKrConfig(r=4, target_modules=_LAYERS, **_TASK),
    "oft": lambda: peft.OFTConfig(oft_block_size=8, target_modules=_LAYERS, **_TASK),
    "boft": lambda: peft.BOFTConfig(boft_block_size=8, target_modules=_LAYERS, **_TASK),
    "hra": lambda: peft.HRAConfig(r=4, target_modules=_LAYERS, **_TASK),
    "bone": lambda: peft.MissConfig(r=4, target_modules=_LAYERS, **_TASK),
    "vera": lambda: peft.VeraConfig(r=4, target_modules=["q_proj"], **_TASK),
    "fourier": lambda: peft.FourierFTConfig(n_frequency=20, target_modules=["q_proj"], **_TASK),
    "layer norms": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"], **_TASK),
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=4, **_TASK),
    "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=4, **_TASK),
    "p-tuning": lambda: peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=16, **_TASK),
}


def _adapted(method: str, device: str) -> Any:
    """The same adapter on either device: made on CPU, and with no matrix of zeros in it."""
    model = peft.get_peft_model(_base(), METHODS[method]())
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad and float(p.abs().max()) == 0:
                p.normal_(std=0.05)
    return model.to(device)


def _train(model: Any, device: str, steps: int = 5) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for step in range(steps):
        loss = model(**_batch(device)).loss
        loss.backward()
        optimizer.step()
        if hasattr(model.base_model, "update_and_allocate"):
            model.base_model.update_and_allocate(step)
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


_ALWAYS = ["lora", "dora", "ia3", "prefix"]


@pytest.mark.parametrize("method", [m if m in _ALWAYS else pytest.param(m, marks=pytest.mark.more) for m in METHODS])
def test_an_adapter_trains_as_on_cpu(method):
    on_cpu, on_tpu = _adapted(method, "cpu"), _adapted(method, "tpu")
    assert {p.device.type for p in on_tpu.parameters()} == {"tpu"}
    expected = _train(on_cpu, "cpu")
    torch.testing.assert_close(_train(on_tpu, "tpu"), expected, rtol=0, atol=2e-4)
    assert expected[-1] < expected[0]


def test_lora_is_saved_loaded_switched_and_merged(tmp_path):
    model = _adapted("lora", "tpu")
    _train(model, "tpu")
    model.eval()
    inputs = _batch("tpu")
    trained = model(**inputs).logits
    with model.disable_adapter():
        plain = model(**inputs).logits
    torch.testing.assert_close(plain.cpu(), _base().eval()(**_batch("cpu")).logits, rtol=0, atol=1e-5)
    assert float((trained - plain).detach().abs().max()) > 1e-2
    model.save_pretrained(tmp_path / "lora")

    loaded = peft.PeftModel.from_pretrained(_base().to("tpu"), tmp_path / "lora").eval()
    assert {p.device.type for p in loaded.parameters()} == {"tpu"}
    torch.testing.assert_close(loaded(**inputs).logits, trained, rtol=0, atol=1e-6)
    loaded.load_adapter(tmp_path / "lora", adapter_name="other")
    loaded.add_weighted_adapter(["default", "other"], [0.5, 0.5], "mean", combination_type="cat")
    loaded.set_adapter("mean")
    torch.testing.assert_close(loaded(**inputs).logits, trained, rtol=0, atol=1e-5)
    loaded.set_adapter("default")

    merged = loaded.merge_and_unload()
    assert isinstance(merged, hf.LlamaForCausalLM)
    torch.testing.assert_close(merged(**inputs).logits, trained, rtol=0, atol=1e-5)
    merged.save_pretrained(tmp_path / "merged")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", device_map="tpu").eval()
    torch.testing.assert_close(again(**inputs).logits, trained, rtol=0, atol=1e-5)


def test_lora_through_the_trainer_in_bfloat16(tmp_path):
    """The usual recipe: a half-precision base that is not trained, a float32 adapter, checkpointed gradients."""
    model = peft.get_peft_model(_base().to(torch.bfloat16), METHODS["lora"]())
    rows = [{k: v[i].tolist() for k, v in _batch("cpu").items()} for i in range(4)] * 8
    arguments = hf.TrainingArguments(
        str(tmp_path), max_steps=6, per_device_train_batch_size=8, logging_steps=1, learning_rate=1e-2, bf16=True,
        activation_checkpointing=True, report_to=[], disable_tqdm=True, save_steps=6,
    )  # fmt: skip
    trainer = hf.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert {p.device.type for p in model.parameters()} == {"tpu"}
    assert (tmp_path / "checkpoint-6" / "adapter_model.safetensors").exists()
