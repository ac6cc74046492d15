"""Helpers of the device tests: comparing tpu with cpu, and running code in a process of its own."""

import os
import subprocess
import sys
import textwrap

import torch


def both(*shape, seed=0, dtype=torch.float32, grad=False):
    """The same random values on cpu and on tpu."""
    g = torch.Generator().manual_seed(seed)
    t = torch.randn(*shape, generator=g).to(dtype)
    on_tpu = t.to("tpu")
    return t.requires_grad_(grad), on_tpu.requires_grad_(grad)


def check(got, expected, rtol=1e-5, atol=1e-5):
    """Both are alike: structure, device types aside; shape, dtype, strides, values."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(got, torch.Tensor), type(got)
        assert got.device.type == "tpu", got.device
        assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
        assert got.shape == expected.shape, (got.shape, expected.shape)
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=rtol, atol=atol, equal_nan=True)
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for g, e in zip(got, expected):
            check(g, e, rtol, atol)
    elif isinstance(expected, dict):
        assert set(got) == set(expected)
        for k in expected:
            check(got[k], expected[k], rtol, atol)
    else:
        assert got == expected


def on(x, device):
    """Tensors of a nested structure on the device."""
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {k: on(v, device) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(on(v, device) for v in x)
    return x


def run(code, *, fails=False, **environment):
    """Run Python code in a new process; (stdout, stderr). Fails if the process does not end as ``fails`` says."""
    env = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == (1 if fails else 0), (
        f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return done.stdout, done.stderr
