"""The example of docs/kernels.md, run as its reader would."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("transformers")

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "kernels" / "rms_norm.py"


def test_a_kernel_from_writing_to_compiling() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout
    errors = [float(line.rpartition(": ")[2]) for line in said.splitlines() if " x " in line and "torch." in line]
    assert len(errors) == 3 and max(errors) < 8
    assert "no races" in said and "Llama with 5 kernels" in said
    differences = [float(word.rstrip(",")) for word in said.replace("\n", " ").split() if "e-0" in word]
    assert len(differences) >= 2 and max(differences) < 1e-5
    assert "rms_norm" in said and ("of 128.00 MiB" in said or "libtpu" in said)
