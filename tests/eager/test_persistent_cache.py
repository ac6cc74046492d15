"""Programs that come from disk in a later process: the same results, and what JAX would set up by tracing is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, torch
torch.manual_seed(0)
a = torch.randn(4, 4, dtype=torch.{dtype})
t = a.to("tpu")
right = {{}}
for name, expression in {expressions!r}.items():
    f = eval("lambda t: " + expression)
    right[name] = torch.allclose(f(t).cpu(), f(a), atol=1e-4)
print(json.dumps([right, torch.tpu.compiler.stats()]))
"""
EXPRESSIONS = {
    "matmul": "t @ t.mT",
    "cholesky": "torch.linalg.cholesky(t @ t.mH + 5 * torch.eye(4, device=t.device, dtype=t.dtype))",
    "det": "torch.linalg.det(t)",
    "inverse": "torch.linalg.inv(t)",
    "eigh": "torch.linalg.eigvalsh(t + t.mH)",
    "svd": "torch.linalg.svdvals(t)",
    "qr": "torch.linalg.qr(t)[1].abs()",
    "fft": "torch.fft.fft(t)",
    "sort": "t.abs().sort(0)[0]",
    "index": "t[torch.tensor([0, 2], device=t.device)]",
    "in place": "t.clone().mul_(2)[1:].add_(1)",
}


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_second_process_compiles_nothing(dtype, tmp_path):
    script = SCRIPT.format(expressions=EXPRESSIONS, dtype=dtype)
    env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(tmp_path / "programs")}
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(json.loads(done.stdout))
    (right_first, first), (right_second, second) = found
    assert all(right_first.values()) and all(right_second.values()), found
    assert first["compiled"] > 10 and first["loaded"] == 0
    assert second["compiled"] == 0 and second["loaded"] == first["compiled"]
