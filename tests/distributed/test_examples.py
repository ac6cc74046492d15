"""The example scripts for several devices, by torchrun on two processes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

long = pytest.mark.skipif(os.environ.get("TORCH_TPU_TEST_MORE", "0") == "0", reason="long: with TORCH_TPU_TEST_MORE=1")
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def torchrun(*args, size=2, timeout=300, module="torch.distributed.run"):
    command = [sys.executable, "-m", module, "--standalone", f"--nproc-per-node={size}", *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def losses(out):
    return {int(s): float(x) for s, x in re.findall(r"step (\d+): loss ([0-9.]+)", out)}


SMALL = ("--hidden", 16, "--layers", 1, "--length", 16, "--rows", 2)


def test_training_with_fsdp():
    found = losses(torchrun(EXAMPLES / "train_fsdp.py", *SMALL, "--steps", 12))
    assert found[11] < found[0] - 0.01, found


@long
def test_going_on_from_a_checkpoint(tmp_path):
    script, small = EXAMPLES / "train_fsdp.py", SMALL
    whole = losses(torchrun(script, *small, "--steps", 12))
    first = losses(torchrun(script, *small, "--steps", 6, "--checkpoint", tmp_path / "saved"))
    rest = losses(torchrun(script, *small, "--steps", 12, "--checkpoint", tmp_path / "saved"))
    assert first[0] == whole[0] and rest == {k: v for k, v in whole.items() if k >= 6}, (whole, first, rest)


@long
def test_serving_with_tensor_parallelism(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    prompt = torch.tensor([[5, 17, 3, 9]])
    wanted = model.generate(prompt, max_new_tokens=5, do_sample=False)[0, 4:].tolist()
    out = torchrun(EXAMPLES / "serve_tp.py", "--model", tmp_path, "--max-new-tokens", 5, "5 17 3 9")
    assert f"5 17 3 9\n  {' '.join(map(str, wanted))}" in out, (out, wanted)
