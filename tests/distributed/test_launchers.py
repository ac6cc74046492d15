"""Trainer, by torchrun and by ``accelerate launch``: data parallel training equals training in one process."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

from .harness import free_port

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"
SCRIPT = pathlib.Path(__file__).with_name("trainer_script.py")
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
                   "--mixed_precision=no", "--dynamo_backend=no"],
}  # fmt: skip


def trained(folder, launcher, rows):
    folder.mkdir()
    command = [sys.executable, *(["-m", *launcher] if launcher else []), str(SCRIPT), str(folder), str(rows)]
    environment = os.environ | {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return torch.load(folder / "state.pt")


@pytest.mark.skipif(not MORE, reason="long: with TORCH_TPU_TEST_MORE=1")
@pytest.mark.parametrize("name", LAUNCHERS)
def test_trainer(name, tmp_path):
    launcher = LAUNCHERS[name]
    if name == "accelerate":
        launcher = [*launcher, f"--main_process_port={free_port()}"]
    wanted, got = trained(tmp_path / "one", [], 8), trained(tmp_path / "two", launcher, 4)
    for key, value in wanted.items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-5)
