"""The recipes of docs/huggingface.md: with the device's random state kept, a resumed run is the uninterrupted one."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import accelerate
import pytest
import torch
import transformers as hf
from accelerate.state import AcceleratorState, GradientState

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "huggingface.md"


@pytest.fixture
def recipes() -> dict[str, Any]:
    found: dict[str, Any] = {"torch": torch, "transformers": hf, "pathlib": pathlib}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(block, found)
    return found


def _trainer(folder: pathlib.Path, callback: Any, **options: Any) -> hf.Trainer:
    hf.set_seed(0)
    config = hf.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2,
        hidden_dropout_prob=0.5,
    )  # fmt: skip
    rows = [{"input_ids": [i % 20, 3, 5], "labels": i % 2} for i in range(32)]
    settings = hf.TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=4, logging_steps=1, report_to=[], disable_tqdm=True,
        **options,
    )  # fmt: skip
    return hf.Trainer(hf.BertForSequenceClassification(config), settings, train_dataset=rows, callbacks=[callback])


def test_trainer(tmp_path, recipes):
    whole = _trainer(tmp_path, recipes["KeepDeviceRandomState"](), save_strategy="steps", save_steps=3)
    whole.train()
    resumed = _trainer(tmp_path, recipes["KeepDeviceRandomState"](), save_strategy="no")
    torch.tpu.manual_seed(99)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (whole, resumed)]
    assert len(losses[0]) == len(losses[1]) == 6
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-6)


def test_accelerate(tmp_path, recipes):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = accelerate.Accelerator()
    accelerator.register_for_checkpointing(recipes["DeviceRandomState"]())
    accelerate.utils.set_seed(1)
    accelerator.save_state(str(tmp_path))
    expected = torch.rand(4, device="tpu").cpu()
    assert not torch.equal(torch.rand(4, device="tpu").cpu(), expected)
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.rand(4, device="tpu").cpu(), expected)
