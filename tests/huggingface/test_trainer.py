"""Transformers' Trainer on device tpu, with nothing set by the user: losses, checkpoints and results are CPU's."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers as hf

WORDS, LENGTH = 40, 12


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No host fallback in any of these, and no progress in the log."""
    hf.logging.set_verbosity_error()
    before = torch.tpu.fallback_counts()
    yield
    assert torch.tpu.fallback_counts() == before


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Sequences of uneven length, padded; the label says whether small numbers prevail."""
    random, rows = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        length = int(torch.randint(5, LENGTH + 1, (1,), generator=random))
        ids = torch.randint(4, WORDS, (length,), generator=random)
        pad = [0] * (LENGTH - length)
        rows.append(
            {
                "input_ids": ids.tolist() + pad,
                "attention_mask": [1] * length + pad,
                "labels": int((ids < WORDS // 2).float().mean() > 0.5),
            }
        )
    return rows


def _language_rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [
        {**r, "labels": [i if m else -100 for i, m in zip(r["input_ids"], r["attention_mask"])]}
        for r in _rows(count, seed)
    ]


def _classifier() -> Any:
    config = hf.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return hf.BertForSequenceClassification(config)


def _language_model() -> Any:
    config = hf.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=64, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def _accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def _trainer(folder: pathlib.Path, device: str, make: Any = _classifier, **options: Any) -> hf.Trainer:
    hf.set_seed(0)
    rows = _rows if make is _classifier else _language_rows
    settings = {
        "max_steps": 8, "per_device_train_batch_size": 8, "logging_steps": 1, "learning_rate": 3e-3, "report_to": [],
        "disable_tqdm": True, "save_strategy": "no", "use_cpu": device == "cpu", **options,
    }  # fmt: skip
    return hf.Trainer(
        make(), hf.TrainingArguments(str(folder), **settings), train_dataset=rows(64, 0), eval_dataset=rows(20, 1),
        compute_metrics=_accuracy if make is _classifier else None,
    )  # fmt: skip


def _losses(trainer: hf.Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _train(folder: pathlib.Path, device: str, make: Any = _classifier, **options: Any) -> hf.Trainer:
    trainer = _trainer(folder, device, make, **options)
    assert trainer.args.device.type == trainer.accelerator.device.type == device
    assert {p.device.type for p in trainer.model.parameters()} == {device}
    trainer.train()
    assert len(_losses(trainer)) == 8
    return trainer


def _weights(trainer: hf.Trainer) -> dict[str, torch.Tensor]:
    return {n: p.detach().cpu() for n, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}


@pytest.fixture(scope="module")
def classifier_on_cpu(tmp_path_factory) -> hf.Trainer:
    return _train(tmp_path_factory.mktemp("classifier"), "cpu")


@pytest.fixture(scope="module")
def language_model_on_cpu(tmp_path_factory) -> hf.Trainer:
    return _train(tmp_path_factory.mktemp("lm"), "cpu", _language_model)


def test_a_classifier_trains_and_evaluates_as_on_cpu(tmp_path, classifier_on_cpu):
    trainer = _train(tmp_path, "tpu")
    torch.testing.assert_close(_losses(trainer), _losses(classifier_on_cpu), rtol=0, atol=1e-5)
    got, expected = trainer.evaluate(), classifier_on_cpu.evaluate()
    assert got["eval_accuracy"] == expected["eval_accuracy"]
    assert abs(got["eval_loss"] - expected["eval_loss"]) < 1e-5
    torch.testing.assert_close(_weights(trainer), _weights(classifier_on_cpu), rtol=0, atol=1e-4)
    predictions = [t.predict(_rows(20, 1)).predictions for t in (trainer, classifier_on_cpu)]
    torch.testing.assert_close(*predictions, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"torch_compile": True},
        pytest.param({"activation_checkpointing": True}, marks=pytest.mark.more),
        pytest.param({"optim": "adamw_torch_fused"}, marks=pytest.mark.more),
        pytest.param({"optim": "sgd", "lr_scheduler_type": "cosine"}, marks=pytest.mark.more),
        pytest.param({"torch_empty_cache_steps": 1, "skip_memory_metrics": False}, marks=pytest.mark.more),
    ],
    ids=lambda o: ",".join(o) if "optim" not in o else o["optim"],
)
def test_a_language_model_trains_as_on_cpu(options, tmp_path, language_model_on_cpu):
    trainer = _train(tmp_path, "tpu", _language_model, **options)
    on_cpu = language_model_on_cpu
    if options.get("optim") == "sgd":
        on_cpu = _train(tmp_path, "cpu", _language_model, **options)
    torch.testing.assert_close(_losses(trainer), _losses(on_cpu), rtol=0, atol=2e-5)
    assert abs(trainer.evaluate()["eval_loss"] - on_cpu.evaluate()["eval_loss"]) < 2e-5


@pytest.mark.more
def test_adafactor_trains_as_on_cpu(tmp_path):
    options = {"optim": "adafactor"}
    expected = _train(tmp_path, "cpu", _language_model, **options)
    got = _train(tmp_path, "tpu", _language_model, **options)
    torch.testing.assert_close(_losses(got), _losses(expected), rtol=0, atol=2e-5)


_MORE_OPTIONS: dict[str, dict[str, Any]] = {
    "finds its batch": {"auto_find_batch_size": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "smoothed labels": {"label_smoothing_factor": 0.1},
    "a fused optimizer": {"optim": "adamw_torch_fused"},
    "adagrad": {"optim": "adagrad"},
    "rmsprop": {"optim": "rmsprop"},
    "clipped": {"lr_scheduler_type": "cosine", "max_grad_norm": 0.1, "warmup_steps": 2, "weight_decay": 0.1},
    "a process loads": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    "unpinned": {"dataloader_pin_memory": False},
}


@pytest.mark.more
@pytest.mark.parametrize("name", _MORE_OPTIONS)
def test_other_options_train_and_predict_as_on_cpu(name, tmp_path):
    expected = _train(tmp_path, "cpu", _language_model, **_MORE_OPTIONS[name])
    got = _train(tmp_path, "tpu", _language_model, **_MORE_OPTIONS[name])
    torch.testing.assert_close(_losses(got), _losses(expected), rtol=0, atol=2e-5)
    predicted = [torch.as_tensor(t.predict(t.eval_dataset).predictions) for t in (got, expected)]
    torch.testing.assert_close(*predicted, rtol=0, atol=1e-4)


def test_half_precision_without_a_scaler_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"fp16 mixed precision requires a device in .*not 'tpu'"):
        _trainer(tmp_path, "tpu", fp16=True)


def test_bfloat16_with_accumulated_gradients_follows_cpu(tmp_path):
    options = {"bf16": True, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    expected = _losses(_train(tmp_path, "cpu", _language_model, **options))
    exact = _losses(_train(tmp_path, "tpu", _language_model, **{**options, "bf16": False}))
    trainer = _train(tmp_path, "tpu", _language_model, **options)
    # bfloat16 keeps 8 bits: near CPU's losses, and not those of float32.
    torch.testing.assert_close(_losses(trainer), expected, rtol=0.02, atol=0)
    assert _losses(trainer) != exact
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


def test_training_goes_on_from_a_checkpoint(tmp_path, language_model_on_cpu):
    whole = _train(tmp_path, "tpu", _language_model, save_strategy="steps", save_steps=4)
    resumed = _trainer(tmp_path / "resumed", "tpu", _language_model)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.global_step == 8
    torch.testing.assert_close(_losses(resumed)[-4:], _losses(whole)[-4:], rtol=0, atol=1e-6)
    torch.testing.assert_close(_weights(resumed), _weights(whole), rtol=0, atol=1e-6)
    loaded = hf.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-8", device_map="tpu")
    torch.testing.assert_close(
        {n: p.detach().cpu() for n, p in loaded.named_parameters()}, _weights(language_model_on_cpu), rtol=0, atol=1e-4
    )


@pytest.mark.more
def test_a_sequence_to_sequence_trainer_generates(tmp_path):
    results = {}
    for device in ("cpu", "tpu"):
        hf.set_seed(0)
        config = hf.T5Config(
            vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0,
            dropout_rate=0.0,
        )  # fmt: skip
        arguments = hf.Seq2SeqTrainingArguments(
            str(tmp_path), max_steps=4, per_device_train_batch_size=8, logging_steps=1, report_to=[], disable_tqdm=True,
            save_strategy="no", use_cpu=device == "cpu", predict_with_generate=True, generation_max_length=8,
        )  # fmt: skip
        rows = _language_rows(16, 2)
        trainer = hf.Seq2SeqTrainer(hf.T5ForConditionalGeneration(config), arguments, train_dataset=rows)
        trainer.train()
        results[device] = _losses(trainer), trainer.predict(rows[:4]).predictions.tolist()
    torch.testing.assert_close(results["tpu"][0], results["cpu"][0], rtol=0, atol=1e-5)
    assert results["tpu"][1] == results["cpu"][1]
