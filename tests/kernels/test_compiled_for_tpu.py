"""Kernels compiled by libtpu for chips that are not attached: VMEM, and refusals with the kernel's line."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from torch_tpu.aot import CompilerError
from torch_tpu.pallas import jax_op

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def _double(x_ref, out_ref) -> None:
    out_ref[...] = x_ref[...] * 2


def _flip(x_ref, out_ref) -> None:
    out_ref[...] = jnp.flip(x_ref[...], 1)  # NOT TRANSLATED


def _turn(x_ref, out_ref) -> None:
    out_ref[...] = jnp.swapaxes(x_ref[...].reshape(2, 4, 128), 0, 2).reshape(8, 128)  # NOT COMPILED


@jax_op("test_compiled_for_tpu::doubled")
def doubled(x: jax.Array, rows: int, columns: int) -> jax.Array:
    block = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
    return pl.pallas_call(
        _double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(x.shape[0] // rows, x.shape[1] // columns),
        in_specs=[block], out_specs=block, name="double_it",
        cost_estimate=pl.CostEstimate(flops=x.size, transcendentals=0, bytes_accessed=2 * x.size * x.dtype.itemsize),
    )(x)  # fmt: skip


def _line(mark: str) -> int:
    with open(__file__) as f:
        return next(n for n, line in enumerate(f, 1) if f"# {mark}" in line)


def _empty(*size: int) -> torch.Tensor:
    return torch.empty(*size, device="meta")


def test_vmem_of_a_kernel() -> None:
    report = torch.tpu.aot.compile(lambda x: doubled(x, 256, 512), _empty(8192, 8192), topology="v6e-1")
    (kernel,) = report.programs[0].kernels
    assert kernel.name == "double_it" and kernel.fits and kernel.count == 1
    assert kernel.vmem_bytes == 256 * 512 * 4 * 4  # two blocks in, two blocks out
    assert kernel.vmem_available == 128 * 2**20
    assert kernel.where == f"{__file__}:{_double.__code__.co_firstlineno}"
    assert report.programs[0].hbm_bytes == 2 * 8192 * 8192 * 4
    assert any("kernel double_it" in o.label for o in report.programs[0].largest)
    assert "2.00 MiB of 128.00 MiB  double_it" in str(report)


def test_blocks_that_do_not_fit() -> None:
    report = torch.tpu.aot.compile(lambda x: doubled(x, 4096, 4096), _empty(8192, 8192), topology="v5e-1")
    (kernel,) = report.programs[0].kernels
    assert not report.fits and not kernel.fits
    assert kernel.vmem_bytes == 256 * 2**20 and kernel.vmem_available == 128 * 2**20
    assert "a kernel does NOT fit in VMEM" in str(report)
    assert "double_it" in report.advice[0] and "needs 256.00 MiB of VMEM, of which there are 128.00" in report.advice[0]
    assert "input 0: f32[4096,4096] in 2 buffers" in report.advice[0] and "make its blocks smaller" in report.advice[0]
    # One block that alone is more than there is, the compiler reports in other words.
    report = torch.tpu.aot.compile(lambda x: doubled(x, 4096, 8192), _empty(8192, 8192), topology="v5e-1")
    (kernel,) = report.programs[0].kernels
    assert (kernel.name, kernel.fits, kernel.vmem_bytes) == ("double_it", False, 256 * 2**20)
    assert "input 0: f32[4096,8192] in 2 buffers" in report.advice[0]


@pytest.mark.parametrize(("kernel", "mark", "reason"), [
    (_flip, "NOT TRANSLATED", "Unimplemented primitive in Pallas TPU lowering for tc: rev"),
    (_turn, "NOT COMPILED", "unsupported shape cast"),
])  # fmt: skip
def test_refusals_have_the_kernels_line(kernel, mark: str, reason: str) -> None:
    @jax_op("test_compiled_for_tpu::refused")
    def refused(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(CompilerError, match=rf"{reason}\n  in the Pallas kernel at {__file__}:{_line(mark)}"):
        torch.tpu.aot.compile(refused, _empty(8, 128), topology="v6e-1")


def test_a_kernel_finds_the_chip_that_it_is_compiled_for() -> None:
    found = []

    @jax_op("test_compiled_for_tpu::asks")
    def asks(x: jax.Array) -> jax.Array:
        found.append(pltpu.get_tpu_info().chip_version)
        return x * 2

    torch.tpu.aot.compile(asks, _empty(8, 128), topology="v5e-1")
    assert pltpu.ChipVersion.TPU_V5E in found


def _halves(x_ref, out_ref) -> None:
    out_ref[...] = x_ref[...] * (pl.program_id(0) // 2)  # JAX asks for the chip when it translates this


@jax_op("test_compiled_for_tpu::halves")
def halves(x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(_halves, out_shape=like, grid=(x.shape[0] // 8,), in_specs=[block], out_specs=block)(x)


def test_the_chip_is_known_when_a_kernel_is_translated() -> None:
    assert torch.tpu.aot.compile(halves, _empty(32, 128), topology="v5e-1").fits
