"""Accelerate on device tpu, with nothing set by the user: loops, launching, and models spread by memory."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
import transformers as hf
from accelerate.state import AcceleratorState, GradientState, PartialState

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps its state for the whole process."""
    fallbacks = torch.tpu.fallback_counts()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert torch.tpu.fallback_counts() == fallbacks


def test_the_default_device_is_the_tpu_and_the_cpu_can_be_asked_for():
    assert accelerate.Accelerator().device == torch.device("tpu")
    assert PartialState().device.type == "tpu"
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.Accelerator(cpu=True).device.type == "cpu"
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.Accelerator().device.type == "tpu"


def _run(folder: pathlib.Path, **options: Any) -> tuple[list[float], torch.Tensor, list[int]]:
    """(losses, weights, predictions) of a loop with everything a loop uses; its state is saved and loaded half-way."""
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, **options)
    accelerate.utils.set_seed(0)
    inputs = torch.randn(40, 8)
    labels = (inputs.sum(1) > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=6)
    model, optimizer, schedule, data = accelerator.prepare(model, optimizer, schedule, data)
    losses = []
    for epoch in range(3):
        for x, y in data:
            assert x.device.type == y.device.type == accelerator.device.type
            with accelerator.accumulate(model), accelerator.autocast():
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
        if epoch == 1:
            accelerator.save_state(str(folder))
            with torch.no_grad():
                model[0].weight.zero_()
            accelerator.load_state(str(folder))
    with torch.no_grad():
        found = [accelerator.gather_for_metrics(model(x).argmax(-1)) for x, _ in data]
    return losses, model[0].weight.detach().cpu(), torch.cat(found).tolist()


def test_a_loop_computes_what_it_does_on_cpu(tmp_path):
    expected = _run(tmp_path / "cpu", cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    got = _run(tmp_path / "tpu")
    torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(got[1], expected[1], rtol=0, atol=1e-5)
    assert got[2] == expected[2] and len(got[2]) == 40


def test_mixed_precision(tmp_path):
    exact = _run(tmp_path / "exact")
    AcceleratorState._reset_state(reset_partial_state=True)
    half = _run(tmp_path / "half", mixed_precision="bf16")
    torch.testing.assert_close(half[0], exact[0], rtol=0.05, atol=0.02)
    assert half[0] != exact[0]


@pytest.mark.parametrize("make", [torch.empty, torch.ones, torch.randn])
def test_a_batch_that_does_not_fit_is_made_smaller(make):
    """Accelerate knows what to try again by words in the error's message."""
    tried = []

    @accelerate.utils.find_executable_batch_size(starting_batch_size=2**41, reduce_batch_size_fn=lambda: 8)
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        return make(batch_size, device="tpu").mul(0).add(1).sum().item()

    assert train() == 8
    assert tried == [2**41, 8]


_SCRIPT = """
import accelerate, torch
a = accelerate.Accelerator()
model, data = a.prepare(torch.nn.Linear(4, 2), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4))
for x in data:
    a.backward(model(x).sum())
print("device", a.device.type, model.weight.grad.device.type, a.num_processes, a.mixed_precision)
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "device tpu tpu 1 no"),
        pytest.param(["--mixed_precision=bf16"], "device tpu tpu 1 bf16", marks=pytest.mark.more),
        (["--cpu"], "device cpu cpu 1 no"),
    ],
)
def test_launched_scripts_find_their_device(options, expected, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE_")}
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--num_processes=1", *options, str(script)],
        capture_output=True, text=True, env={**environment, "HF_HOME": str(tmp_path)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert expected in done.stdout, done.stdout


def _model() -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("where", ["auto", "tpu", "part on cpu", "part on disk"])
def test_models_are_spread_by_memory(where, tmp_path):
    """device_map="auto" fills the device first; what does not fit waits on the CPU or on disk."""
    model = _model()
    ids = torch.arange(12).view(2, 6)
    expected = model(ids).logits
    model.save_pretrained(tmp_path / "model")
    options: dict[str, Any] = {"device_map": "tpu" if where == "tpu" else "auto"}
    if where.startswith("part"):
        half = sum(p.nbytes for p in model.parameters()) // 2
        options["max_memory"] = {0: half, "cpu": "1GB" if "cpu" in where else 0}
        options["offload_folder"] = str(tmp_path / "offloaded")
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "model", **options)
    places = {str(p) for p in getattr(loaded, "hf_device_map", {"": "tpu"}).values()}
    if where.startswith("part"):
        assert places == {"0", "cpu" if "cpu" in where else "disk"}
    else:
        assert {p.device.type for p in loaded.parameters()} == {"tpu"}
    got = loaded(ids.to("tpu")).logits
    assert got.device.type == "tpu"
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=1e-5)
    generated = loaded.generate(ids.to("tpu"), max_new_tokens=5, do_sample=False, pad_token_id=0).tolist()
    assert generated == model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0).tolist()


def test_whole_models_wait_on_the_cpu():
    model, ids = _model(), torch.arange(12).view(2, 6)
    expected = model(ids).logits
    accelerate.cpu_offload(model, torch.device("tpu"))
    got = model(ids.to("tpu")).logits
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=1e-5)


def test_memory_is_asked_of_the_device(monkeypatch, caplog):
    free = torch.tpu.mem_get_info()[0]
    memory = accelerate.utils.get_max_memory()
    assert [*memory] == [0] and 0.5 * free < memory[0] < 2 * free  # on XLA:CPU the memory is the host's, counted once
    monkeypatch.setattr("torch_tpu.runtime.platform.name", lambda: "tpu")
    assert [*accelerate.utils.get_max_memory()] == [0, "cpu"]
    given = {"cpu": "2KB", 0: "1KB", "disk": 7}
    assert [*accelerate.utils.get_max_memory(given).items()] == [(0, 1000), ("cpu", 2000), ("disk", 7)]
    assert given == {"cpu": 2000, 0: 1000, "disk": 7}
    assert not caplog.records


def test_half_the_memory_in_bfloat16(tmp_path):
    _model().save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path, device_map="auto", dtype="bfloat16")
    assert {(p.dtype, p.device.type) for p in loaded.parameters()} == {(torch.bfloat16, "tpu")}
