"""A compiled graph as the first thing that a process does on the device."""

import subprocess
import sys

PROGRAM = """
import torch

make = torch.compile(lambda: torch.arange(-1, 2, 2, dtype=torch.float32, device="tpu"), fullgraph=True)
assert make().tolist() == [-1, 1]
"""


def test_a_graph_that_makes_a_range_first_of_all():
    """Lowerings that were not loaded yet had PyTorch take the range apart, without an end."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
