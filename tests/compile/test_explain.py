"""Why programs were compiled, XLA's options, the backend's own options, and the warm start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


USER = """
import torch

def scaled(x):
    return x.sin() * 2

compiled = torch.compile(scaled)
for n in (3, 5):
    compiled(torch.ones(n, 4, device="tpu").exp())
print(torch.tpu.compiler.explain())
"""


def test_explain_names_the_line_and_what_is_new(tmp_path):
    file = tmp_path / "user.py"
    file.write_text(USER)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "graph (user.py:5)" in text and "aten::exp" in text
    assert re.search(rf"at {re.escape(str(file))}:[45] in scaled", text)
    assert f"at {file}:9 in <module>" in text
    assert "new: (5, 4) (was (3, 4))" in text
    last = text.strip().splitlines()[-1]
    assert last.startswith("total: ") and "programs compiled in" in last


def test_the_same_is_printed_while_it_runs():
    code = "import torch; (torch.ones(2, device='tpu') + 1).cpu()"
    said = run(code, TORCH_TPU_EXPLAIN="1").stderr
    assert "[torch_tpu]" in said and "aten::add.Tensor" in said and "[torch_tpu] total: " in said
    assert "[torch_tpu]" not in run(code).stderr


def test_unknown_options_and_modes_are_refused():
    x = torch.ones(2, device="tpu")
    with pytest.raises(Exception, match=r"unknown option fancy; known: xla_options"):
        torch.compile(lambda x: x + 1, backend="tpu", options={"fancy": 1})(x)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"unknown mode 'fastest'; known: default, reduce-overhead"):
        torch.compile(lambda x: x + 1, backend="tpu", mode="fastest")(x)
    torch._dynamo.reset()
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        assert torch.compile(lambda x: x + 1, backend="tpu", mode=mode)(x).sum().item() == 4
        assert torch.compile(lambda x: x + 1, mode=mode)(x).sum().item() == 4
        torch._dynamo.reset()


def test_xla_options_make_another_program():
    x = torch.ones(3, device="tpu")

    def compiled() -> int:
        torch._dynamo.reset()
        before = torch.tpu.compiler.stats()
        assert torch.compile(lambda x: x * 3 + 1, backend="tpu")(x).sum().item() == 12
        after = torch.tpu.compiler.stats()
        return after["compiled"] + after["loaded"] - before["compiled"] - before["loaded"]

    compiled()
    assert compiled() == 0
    with torch.tpu.compiler.custom_compiler_options({"xla_cpu_enable_fast_math": True}):
        assert compiled() == 1
    assert compiled() == 0
    torch._dynamo.reset()
    with (
        torch.tpu.compiler.custom_compiler_options({"xla_no_such_option": True}),
        pytest.raises(Exception, match="xla_no_such_option"),
    ):
        torch.compile(lambda x: x * 5, backend="tpu")(x)


def test_a_second_process_compiles_nothing(tmp_path):
    code = """
import json, torch
torch.manual_seed(0)
layers = torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2)
model = torch.nn.Sequential(*layers).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
forward, step = torch.compile(model), torch.compile(optimizer.step)
x = torch.randn(4, 8).to("tpu")
for _ in range(3):
    forward(x).square().mean().backward()
    step()
    optimizer.zero_grad()
print(json.dumps({k: torch.tpu.compiler.stats()[k] for k in ("compiled", "loaded")}))
"""
    first, second = (
        json.loads(run(code, TORCH_TPU_CACHE_DIR=str(tmp_path / "cache")).stdout.splitlines()[-1]) for _ in range(2)
    )
    assert first["compiled"] > 0
    assert second == {"compiled": 0, "loaded": first["compiled"]}


def test_a_float_that_changes_compiles_at_most_once_more():
    compiled = torch.compile(lambda x, s: (x * s).sum(), fullgraph=True)
    x, counts = torch.ones(5, device="tpu"), []
    for s in (0.1, 0.2, 0.3, 0.4, 0.5):
        assert abs(compiled(x, s).item() - 5 * s) < 1e-6
        counts.append(torch.tpu.compiler.stats()["compiled"] + torch.tpu.compiler.stats()["loaded"])
    assert counts[1] == counts[-1]


def test_cpu_graphs_are_left_to_cpu():
    compiled = torch.compile(lambda x: x + 1, backend="tpu")
    x = torch.ones(3)
    assert torch.equal(compiled(x), x + 1)
