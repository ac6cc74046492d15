"""Operators over a mesh: of devices of one process, where chips are simulated, and of ranks."""

import os
import pathlib
import subprocess
import sys

import jax
import pytest
import torch
from jax.sharding import PartitionSpec as P

from torch_tpu.pallas import get_pallas_mesh, jax_op

WORKER = str(pathlib.Path(__file__).with_name("on_mesh.py"))


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]


def test_devices_of_one_process() -> None:
    _run([sys.executable, WORKER], TORCH_TPU_NUM_CPU_DEVICES="4")


def test_ranks() -> None:
    _run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", WORKER])


def _twice(x: jax.Array) -> jax.Array:
    return x * 2 * jax.lax.axis_size("x")


def test_a_mesh_of_one_device() -> None:
    doubled = jax_op("test_mesh::doubled", _twice, mesh={"x": 1}, input_partition_specs=P("x"))
    x = torch.randn(4, 6, device="tpu")
    torch.testing.assert_close(doubled(x), x * 2)
    with pytest.raises(RuntimeError, match="parameter 'x' is a tensor on cpu"):
        doubled(x.cpu())


def test_what_a_mesh_refuses() -> None:
    count = torch.tpu.device_count()
    with pytest.raises(ValueError, match=rf"this process has {count}; .*TORCH_TPU_NUM_CPU_DEVICES=1000"):
        get_pallas_mesh({"x": 100, "y": 10})
    with pytest.raises(ValueError, match="input_partition_specs has 2 partitions for 1 arrays"):
        jax_op("test_mesh::refused", _twice, mesh={"x": 1}, input_partition_specs=(P("x"), P()))
    with pytest.raises(ValueError, match="output_partition_specs names the axis 'y'; the mesh has x"):
        jax_op("test_mesh::refused", _twice, mesh={"x": 1}, output_partition_specs=P("y"))

    def several(xs: list[jax.Array]) -> jax.Array:
        return xs[0]

    with pytest.raises(TypeError, match="each array is a parameter"):
        jax_op("test_mesh::refused", several, mesh={"x": 1})
