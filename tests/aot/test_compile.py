"""Whole plans of small models, compiled by libtpu for a slice that is not attached."""

import importlib.util
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from torch_tpu import aot
from torch_tpu.aot import compiler, models, plan
from torch_tpu.aot.chips import topology
from torch_tpu.aot.plan import capture
from torch_tpu.aot.state import State


class Counter(nn.Module):
    """Writes into a buffer of its own and into an input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 256)
        self.register_buffer("seen", torch.zeros(256))

    def forward(self, x, kept):
        y = self.linear(x)
        self.seen.add_(y.detach().sum(0))
        kept[:, :4] = y[:4, :128].t().to(kept.dtype)[: kept.shape[0]]
        return y.relu()


@pytest.fixture(scope="module")
def decode():
    """A two-layer decoder's step with a static cache."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=1024,
    )  # fmt: skip
    with torch.device("meta"), models.default_dtype(torch.bfloat16):
        model = LlamaForCausalLM(config).eval()
    cache = models.static_cache(config, 4, 256, torch.bfloat16)
    ids = torch.empty(4, 1, dtype=torch.int64, device="meta")
    report = aot.compile(
        model, ids, {"past_key_values": cache, "logits_to_keep": 1}, topology="v6e-1", items=4, title="<tiny>"
    )
    return model, cache, report


def test_every_cache_buffer_is_updated_in_place(decode):
    _, _, report = decode
    program = report.program("forward")
    for layer in range(2):
        for part in ("keys", "values", "cumulative_length"):
            assert f"kwargs.past_key_values.layers.{layer}.{part}" in program.in_place
    assert program.copied == ()


def test_bytes_agree_with_arithmetic(decode):
    model, _, report = decode
    memory = report.program("forward").memory
    weights = 2 * (1024 * 256 * 2 + 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256 + 2 * 256) + 256)
    assert memory["weights"] == pytest.approx(weights, rel=0.01)
    assert weights == sum(p.numel() * 2 for p in model.parameters())
    assert memory["cache"] == pytest.approx(2 * 2 * 4 * 2 * 256 * 64 * 2, rel=0.01)


def test_products_agree_with_arithmetic(decode):
    _, _, report = decode
    program = report.program("forward")
    matrices = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256) + 1024 * 256
    attention = 2 * 2 * 4 * 256 * 64
    assert program.matrix_flops == 2 * 4 * (matrices + attention)
    assert program.bound == "HBM" and program.fits and report.fits
    assert program.hbm_bytes >= program.memory["weights"] * 0.8  # but for the rows of the embedding that nobody reads
    assert report.items_per_second == pytest.approx(4 / report.seconds)


def test_the_model_is_as_before(decode):
    model, cache, _ = decode
    assert all(p.device.type == "meta" and isinstance(p, nn.Parameter) for p in model.parameters())
    assert cache.layers[0].keys.device.type == "meta" and cache.layers[0].device == torch.device("meta")


def test_shows(decode):
    _, _, report = decode
    page = report.to_html()
    assert "&lt;tiny&gt;" in page and "<tiny>" not in page and "<svg" in page
    assert "<script" not in page and "http" not in page
    assert json.loads(report.to_json())["programs"][0]["name"] == "forward"
    assert "v6e-1: fits" in str(report) and "6 buffers are updated in place" in str(report)


def test_training():
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
    report = aot.compile(
        model, torch.empty(64, 256), topology="v5e-1", train=True, loss=lambda y: y.square().mean(),
        optimizer=torch.optim.AdamW,
    )  # fmt: skip
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert [p.name for p in report.programs] == ["forward", "backward", "optimizer"]
    for p in report.programs:  # what one program does not read lies in the memory all the same
        assert p.memory["weights"] == weights
        assert p.memory["optimizer"] == pytest.approx(2 * weights, rel=0.01)
    assert report.program("backward").memory["gradients"] == weights
    assert report.program("forward").memory["activations"] > 0
    assert len(report.program("optimizer").in_place) >= 3 * 4
    assert all(not p.requires_grad or p.grad is None for p in model.parameters())


def test_too_large_is_a_result():
    """96 GiB of weights on a chip of 32."""
    with torch.device("meta"):
        model = nn.Linear(1 << 17, 3 * (1 << 16), bias=False, dtype=torch.bfloat16)
        model2 = nn.Linear(3 * (1 << 16), 1 << 17, bias=False, dtype=torch.bfloat16)
        x = torch.empty(8, 1 << 17, dtype=torch.bfloat16)
    report = aot.compile(nn.Sequential(model, model2), x, topology="v6e-1")
    program = report.program("forward")
    assert not report.fits and program.memory["weights"] == 2 * 2 * 3 << 33
    assert "Ran out of memory" in program.message or "RESOURCE_EXHAUSTED" in program.message
    assert report.slice_needed == "v6e-4" and any("v6e-4 (4 chips)" in a for a in report.advice)
    assert any(a.startswith("weights: a smaller dtype") for a in report.advice)
    assert "does NOT fit" in str(report) and "does not fit" in report.to_html()


def test_a_program_that_libtpu_cannot_compile_is_an_error_not_the_end():
    x = torch.empty(16, dtype=torch.complex128)
    with pytest.raises(aot.CompilerError, match="forward program for v6e-1"):
        aot.compile(lambda x: torch.fft.fft(x) * x, x, topology="v6e-1")


def test_names_errors():
    with pytest.raises(ValueError, match="unknown TPU topology"):
        aot.compile(nn.Linear(2, 2), torch.empty(1, 2), topology="v9-1")
    with pytest.raises(ValueError, match="must give a loss"):
        capture(nn.Linear(2, 2), (torch.empty(3, 2),), {}, train=True)
    with pytest.raises(ValueError, match="no model 'gpt-9'"):
        models.config_of("gpt-9")


def test_without_libtpu(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name))
    with pytest.raises(
        aot.LibtpuMissingError, match=r"needs libtpu, which is not installed: pip install 'torch-tpu\[tpu\]'"
    ):
        aot.compile(nn.Linear(2, 2), torch.empty(1, 2), topology="v6e-1")


def test_buffers_and_inputs_that_are_written():
    (program,) = capture(Counter(), (torch.empty(8, 128), torch.empty(128, 16)), {})
    roles = {v.name: v.role for v in program.operands}
    assert roles == {"linear.weight": "weights", "linear.bias": "weights", "seen": "buffers", "args.0": "inputs",
                     "args.1": "cache"}  # fmt: skip
    assert sorted(program.operands[i].name for i in program.donated) == ["args.1", "seen"]


def test_a_whole_step_as_one_program():
    """What a function closes over is found: model and optimizer."""
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    (program,) = capture(step, (torch.empty(8, 16),), {})
    assert {program.operands[i].name for i in program.donated} == {"model.weight", "model.bias"}
    assert model.weight.grad is None and optimizer.param_groups[0]["params"][0] is model.weight


def test_state_finds_each_tensor_once():
    shared = torch.empty(3)
    inputs = {"a": [shared, (shared, torch.empty(2))]}
    state = State([("kwargs", inputs, "inputs")])
    assert [h.name for h in state.held.values()] == ["kwargs.a.0", "kwargs.a.1.1"]
    one, two = torch.ones(3), torch.ones(2)
    with state.holding([one, two]):
        assert inputs["a"][0] is one and inputs["a"][1][0] is one and inputs["a"][1][1] is two
    assert inputs["a"][0] is shared and inputs["a"][1][0] is shared


def test_the_compiler_words():
    found = compiler.out_of_memory(
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (55.93G) exceeds "
        "available HBM (31.25G)."
    )
    assert found is not None and found.available == int(31.25 * 2**30) and found.required == int(55.93 * 2**30)
    assert compiler.out_of_memory("INTERNAL: something else") is None


def test_shardings_over_a_mesh():
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 256, bias=False))
    laid = aot.Shardings({"tensor": 4}, {"0.weight": ("tensor", None), "2.weight": (None, "tensor")})
    report = aot.compile(model, torch.empty(64, 256), topology="v6e-4", shardings=laid)
    assert report.devices == 4
    (program,) = report.programs
    (reduce,) = program.collectives
    assert (reduce.kind, reduce.count, reduce.ranks) == ("all-reduce", 1, 4)
    # A ring sends the result twice, but for the own part.
    assert reduce.ici_bytes == program.ici_bytes == 64 * 256 * 4 * 2 * 3 // 4
    assert program.memory["weights"] == 2 * 256 * 1024 * 4 // 4 and program.memory["inputs"] == 64 * 256 * 4
    assert program.matrix_flops == 2 * 2 * 64 * 256 * 1024 / 4
    assert "all-reduce        4" in str(report)
    with pytest.raises(ValueError, match="mesh of 4 devices"):
        aot.compile(model, torch.empty(64, 256), topology="v6e-1", shardings=laid)


def test_shardings_that_mean_nothing():
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 256, bias=False))
    programs = capture(model, (torch.empty(64, 256),), {})

    def lay(rules, mesh=("tensor", 4)):
        return plan.compile_all(programs, topology("v6e-4"), aot.Shardings(dict([mesh]), rules))

    with pytest.raises(
        ValueError, match=r"'\*\.wieght' matches no operand; the nearest are: \d.weight, \d.weight, args.0"
    ):
        lay({"0.weight": ("tensor", None), "*.wieght": ("tensor", None)})
    with pytest.raises(ValueError, match="'Weight' matches no operand"):
        lay({"Weight": ("tensor", None)})
    with pytest.raises(TypeError, match=r"an entry a dimension, as in \('tensor', None\), got 'tensor'"):
        lay({"0.weight": "tensor"})
    with pytest.raises(ValueError, match="mesh axis 'tensor': expected a number of devices, got 0"):
        lay({"0.weight": ("tensor", None)}, ("tensor", 0))
    with pytest.raises(ValueError, match="no mesh axis 'model'; there are: tensor"):
        lay({"0.weight": ("model", None)})


def test_a_decoder_over_chips_has_two_all_reduces_a_layer():
    from torch_tpu.aot import layouts, models

    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "vocab_size": 512,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 128,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.PRESETS, "small", config)
        call = models.call("small", "decode", batch=8, length=128, cache=128, dtype=torch.bfloat16)
    laid = layouts.tensor_parallel(call.model, 4)
    report = aot.compile(call.model, call.args, call.kwargs, topology="v6e-4", shardings=laid)
    found = report.programs[0].collectives
    assert {c.kind for c in found} == {"all-reduce"} and sum(c.count for c in found) == 2 * 2 + 1, found
    assert report.programs[0].memory["cache"] == 2 * 2 * 8 * 4 * 128 * 128 * 2 // 4 + 2 * 8
    with pytest.raises(ValueError, match="cannot be split over 3 chips"):
        layouts.tensor_parallel(call.model, 3)


def test_command_line(tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "torch_tpu.cli.main", "plan", "--model", str(tmp_path), "--cache", "128", "--json"]
    done = subprocess.run([*command, "--html", str(tmp_path / "out.html")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"] and found["topology"] == "v6e-1" and found["programs"][0]["copied"] == []
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    bad = subprocess.run([*command[:5], "nothing", "--topology", "v6e-1"], capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stderr.startswith("torch-tpu plan: no model 'nothing'")
    assert len(bad.stderr.splitlines()) == 1


def test_hand_arithmetic_of_the_presets():
    """Weights of the presets, from the architecture's numbers."""
    expected = {"llama-3.1-8b": 8.03e9, "llama-3.1-70b": 70.55e9, "mixtral-8x7b": 46.70e9}
    for name, count in expected.items():
        c = models.config_of(name)
        h, i, layers, v = (c[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"))
        kv = h * c["num_key_value_heads"] // c["num_attention_heads"]
        experts = c.get("num_local_experts", 1)
        by_hand = (
            2 * v * h
            + h
            + layers * (2 * h * h + 2 * h * kv + experts * 3 * h * i + 2 * h + (experts * h if experts > 1 else 0))
        )
        assert by_hand == pytest.approx(count, rel=0.001)
        call = models.call(name, "decode", batch=4, length=1, cache=1024, dtype=torch.bfloat16)
        assert sum(p.numel() for p in call.model.parameters()) == by_hand
        cache = [t for layer in call.kwargs["past_key_values"].layers for t in (layer.keys, layer.values)]
        assert sum(t.numel() for t in cache) == 2 * layers * 4 * 1024 * kv


def by_value(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize("model", [by_value, lambda x: x * x.sum().item(), lambda x: x.nonzero()])
def test_what_depends_on_values_names_the_users_line(model):
    with pytest.raises(ValueError, match=r"depends on the values of tensors \(.*test_compile.py:\d+: .*torch.where"):
        aot.compile(model, (torch.ones(4),), topology="v6e-1")
    with pytest.raises(TypeError, match="such as 'v6e-8', got 3"):
        aot.compile(model, (torch.ones(4),), topology=3)  # type: ignore[arg-type]


def test_a_page_in_a_folder_that_is_not_there_is_refused_first(tmp_path, capsys):
    from torch_tpu.cli.main import main

    file = tmp_path / "none" / "plan.html"
    assert main(["plan", "--model", "llama-3.2-1b", "--topology", "v6e-1", "--html", str(file)]) == 2
    assert "there is no folder" in capsys.readouterr().err
