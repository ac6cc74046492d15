"""What Diffusers' own tests ask of a device, in ``diffusers.utils.testing_utils`` under DIFFUSERS_TEST_DEVICE=tpu."""

from __future__ import annotations

import os
import subprocess
import sys

_USE = """
import diffusers.utils.testing_utils as harness, torch

device = harness.torch_device
assert device == "tpu", device
assert harness.backend_device_count(device) == torch.tpu.device_count() >= 1
harness.backend_manual_seed(device, 3)
first = torch.randn(4, device=device)
harness.backend_manual_seed(device, 3)
assert torch.equal(torch.randn(4, device=device), first)
harness.backend_synchronize(device)
harness.backend_empty_cache(device)
harness.backend_reset_peak_memory_stats(device)
harness.backend_reset_max_memory_allocated(device)
before = harness.backend_max_memory_allocated(device)
kept = torch.ones(2**20, device=device)
assert harness.backend_max_memory_allocated(device) >= before + 2**22
assert harness.backend_supports_training(device)

@harness.require_torch_accelerator
def on_an_accelerator():
    return "ran"

assert on_an_accelerator() == "ran"
assert harness.floats_tensor((2, 3)).to(device).device.type == "tpu"
print("all of it")
"""


# Symptom: the library's tests must find the device by its name alone.
def test_the_harness_of_diffusers_finds_the_device():
    environment = {**os.environ, "DIFFUSERS_TEST_DEVICE": "tpu", "DIFFUSERS_TEST_BACKEND": "torch_tpu"}
    done = subprocess.run([sys.executable, "-c", _USE], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n")[-2:] == ["all of it", ""], done.stderr[-2000:]
