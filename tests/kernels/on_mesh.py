"""Run by ``test_mesh``: a mesh of four devices of one process, or of two ranks."""

import os
import sys

import jax
import torch
import torch.distributed as dist
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from torch_tpu.pallas import get_pallas_mesh, jax_op


def total(v: jax.Array, factor: float = 1.0) -> jax.Array:
    assert v.shape == (2, 128), v.shape  # its part
    return jax.lax.psum(v, "x") * factor


def _to_the_right(x_ref, out_ref, sent, received) -> None:
    me, n = jax.lax.axis_index("x"), jax.lax.axis_size("x")
    copy = pltpu.make_async_remote_copy(
        src_ref=x_ref, dst_ref=out_ref, send_sem=sent, recv_sem=received, device_id=(jax.lax.rem(me + 1, n),),
        device_id_type=pl.DeviceIdType.MESH,
    )  # fmt: skip
    copy.start()
    copy.wait()


def shifted(v: jax.Array) -> jax.Array:
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        _to_the_right, out_shape=jax.ShapeDtypeStruct(v.shape, v.dtype), in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )(v)  # fmt: skip


def one_process() -> None:
    mesh = get_pallas_mesh({"x": 4})
    summed = jax_op("on_mesh::total", total, mesh=mesh, input_partition_specs=P("x"), output_partition_specs=P())
    x = torch.randn(8, 128, device="tpu:1")
    made = summed(x, 2.0)
    assert made.device == x.device and summed(x.to("meta")).shape == (2, 128)
    torch.testing.assert_close(made, x.reshape(4, 2, 128).sum(0) * 2)
    torch.testing.assert_close(summed(x.t().contiguous().t(), 2.0), made)
    # A kernel with remote copies, over four simulated chips.
    shift = jax_op("on_mesh::shifted", shifted, mesh=mesh, input_partition_specs=P("x"), output_partition_specs=P("x"))
    x = torch.randn(32, 128, device="tpu")
    torch.testing.assert_close(shift(x), x.roll(8, 0))
    try:
        torch.compile(summed, fullgraph=True)(x[:8])
    except NotImplementedError as e:
        assert "cannot be part of a compiled graph; let the graph break there" in str(e), e
    else:
        raise AssertionError("an operator over a mesh was compiled")


def over_ranks() -> None:
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("tpu", (size,), mesh_dim_names=("x",))
    summed = jax_op("on_mesh::total", total, mesh=mesh, input_partition_specs=P("x"), output_partition_specs=P())
    x = torch.full((2, 128), float(rank + 1), device="tpu")  # this rank's part
    made = summed(x)
    assert made.shape == (2, 128) and summed(x.to("meta")).shape == (2, 128)
    dist.all_reduce(x)
    torch.testing.assert_close(made, x)
    shift = jax_op("on_mesh::shifted", shifted, mesh=mesh, input_partition_specs=P("x"), output_partition_specs=P("x"))
    try:
        shift(torch.ones(8, 128, device="tpu"))
    except NotImplementedError as e:
        assert f"run it in one process with TORCH_TPU_NUM_CPU_DEVICES={size}" in str(e), e
    else:
        raise AssertionError("a kernel was interpreted over several processes")
    dist.destroy_process_group()


if __name__ == "__main__":
    over_ranks() if "RANK" in os.environ else one_process()
    sys.stdout.write("done\n")
