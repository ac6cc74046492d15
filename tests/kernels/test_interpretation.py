"""Pallas TPU kernels on a machine without a TPU: interpreted, checked, and told what is wrong with them."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from torch_tpu.pallas import KernelError, KernelIndexError, KernelRaceError, interpret, jax_op
from torch_tpu.runtime import interpretation

ROWS, COLUMNS = 8, 128
_BLOCK = pl.BlockSpec((ROWS, COLUMNS), lambda i: (i, 0))
_ANY = pl.BlockSpec(memory_space=pl.ANY)


def _double(x_ref, out_ref) -> None:
    out_ref[...] = x_ref[...] * 2


@jax_op("test_interpretation::doubled")
def doubled(x: jax.Array) -> jax.Array:
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(_double, out_shape=like, grid=(x.shape[0] // ROWS,), in_specs=[_BLOCK], out_specs=_BLOCK)(x)


def _write_at(start_ref, x_ref, out_ref) -> None:
    out_ref[...] = x_ref[...]
    out_ref[pl.ds(start_ref[0], ROWS), :] = x_ref[...] * 2  # THE WRITE


@jax_op("test_interpretation::written")
def written(start: jax.Array, x: jax.Array) -> jax.Array:
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    scalar = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(
        _write_at, out_shape=like, grid=(x.shape[0] // ROWS,), in_specs=[scalar, _BLOCK], out_specs=_BLOCK
    )(start, x)


def _read_at(start_ref, x_ref, out_ref) -> None:
    out_ref[...] = x_ref[pl.ds(start_ref[0], ROWS), :]  # THE READ


@jax_op("test_interpretation::read")
def read(start: jax.Array, x: jax.Array) -> jax.Array:
    like = jax.ShapeDtypeStruct((ROWS, COLUMNS), x.dtype)
    return pl.pallas_call(_read_at, out_shape=like, in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.no_block_spec])(
        start, x
    )


def _viewed(x_ref, bits_ref, out_ref) -> None:
    flat = x_ref.reshape(4 * ROWS, COLUMNS)
    out_ref[0] = flat[1::4, :]
    bits_ref[...] = x_ref.at[1].bitcast(jnp.uint32)[...]
    rows = jax.lax.broadcasted_iota(jnp.int32, (2, ROWS, COLUMNS), 1)
    pltpu.store(out_ref, jnp.ones((2, ROWS, COLUMNS), out_ref.dtype), mask=rows >= 6)


@jax_op("test_interpretation::viewed")
def viewed(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    bits = jax.ShapeDtypeStruct((ROWS // 2, COLUMNS), jnp.uint32)
    out = jax.ShapeDtypeStruct((2, ROWS, COLUMNS), x.dtype)
    return pl.pallas_call(_viewed, out_shape=(bits, out))(x)


def test_views_of_references_and_masked_stores():
    """JAX's own interpreter has neither reshaped nor bitcast references, and takes no masks of several dimensions."""
    x = torch.randn(4, ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).bfloat16()
    bits, out = (t.cpu() for t in viewed(x.to("tpu")))
    pairs = x[1].view(torch.uint16).to(torch.int64).reshape(ROWS // 2, 2, COLUMNS)
    assert torch.equal(bits.to(torch.int64), pairs[:, 0] | pairs[:, 1] << 16)
    assert torch.equal(out[0, :6], x.reshape(-1, COLUMNS)[1::4][:6])
    assert bool((out[:, 6:] == 1).all()) and bool(out[1, :6].isnan().all())  # the rest was not written


@jax_op("test_interpretation::doubled_in_order")
def doubled_in_order(x: jax.Array) -> jax.Array:
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(
        _double, out_shape=like, grid=(x.shape[0] // ROWS,), in_specs=[_BLOCK], out_specs=_BLOCK,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(x)  # fmt: skip


def test_a_batch_of_a_kernel_that_names_its_dimensions():
    x = torch.arange(3 * 2 * ROWS * COLUMNS, dtype=torch.float32).reshape(3, 2 * ROWS, COLUMNS)
    assert torch.equal(torch.vmap(doubled_in_order)(x.to("tpu")).cpu(), 2 * x)


def _copied(x_ref, out_ref, scratch, semaphore, *, wait_first: bool) -> None:
    copy = pltpu.make_async_copy(x_ref, scratch, semaphore)
    copy.start()
    if wait_first:
        copy.wait()
    out_ref[...] = scratch[...] + 1
    if not wait_first:
        copy.wait()


def _copy(x, wait_first: bool):
    return pl.pallas_call(
        lambda *refs: _copied(*refs, wait_first=wait_first), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_ANY], scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x)  # fmt: skip


@jax_op("test_interpretation::copied")
def copied(x: jax.Array, wait_first: bool = True) -> jax.Array:
    return _copy(x, wait_first)


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3 * ROWS, COLUMNS, device="tpu")


def _line(mark: str) -> int:
    with open(__file__) as f:
        return next(n for n, line in enumerate(f, 1) if f"# {mark}" in line)


def test_a_kernel_eager_compiled_and_batched(x: torch.Tensor) -> None:
    torch.testing.assert_close(doubled(x), x * 2)
    function = torch.compile(lambda x: doubled(x + 1) + doubled(x), fullgraph=True)
    torch.testing.assert_close(function(x), (x + 1) * 2 + x * 2)
    torch.testing.assert_close(torch.vmap(doubled)(torch.stack([x, -x])), torch.stack([x, -x]) * 2)


def test_symbolic_rows(x: torch.Tensor) -> None:
    function = torch.compile(lambda x: doubled(x) + 1, fullgraph=True, dynamic=True)
    for rows in (ROWS, 2 * ROWS):
        torch.testing.assert_close(function(x[:rows]), x[:rows] * 2 + 1)


def test_dma_and_semaphores(x: torch.Tensor) -> None:
    torch.testing.assert_close(copied(x), x + 1)
    with interpret(dma="eager"):
        torch.testing.assert_close(copied(x, wait_first=False), x + 1)
    assert copied(x, wait_first=False).isnan().all()  # as late as can be: what is read was never written


def test_plain_mode(x: torch.Tensor) -> None:
    torch.testing.assert_close(doubled(x), x * 2)
    with interpret(mode="plain"):
        torch.testing.assert_close(doubled(x), x * 2)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_write_outside_is_caught_at_its_line(compiled: bool, x: torch.Tensor) -> None:
    function = torch.compile(written, fullgraph=True) if compiled else written
    torch.testing.assert_close(function(torch.tensor([0], device="tpu"), x), x * 2)
    place = (
        rf"out-of-bounds access: \[4:12, 0:128\] of a buffer of shape \(8, 128\)(.|\n)*{__file__}:{_line('THE WRITE')}:"
    )
    with pytest.raises(KernelIndexError, match=place):
        function(torch.tensor([4], device="tpu"), x)
    torch.testing.assert_close(doubled(x), x * 2)  # the next kernel starts afresh


def test_a_read_outside_is_caught_at_its_line(x: torch.Tensor, capfd: pytest.CaptureFixture[str]) -> None:
    start = torch.tensor([20], device="tpu")
    with pytest.raises(
        IndexError, match=rf"Out-of-bounds read(.|\n)*in the Pallas kernel at {__file__}:{_line('THE READ')}:"
    ):
        read(start, x)
    assert capfd.readouterr().err == ""  # JAX would log the callback's traceback too
    with interpret(out_of_bounds_reads="uninitialized"):
        made = read(start, x)
    torch.testing.assert_close(made[:4], x[20:24])
    assert made[4:].isnan().all()


def test_a_race_is_found_on_request(x: torch.Tensor) -> None:
    copied(x, wait_first=False)
    with interpret(detect_races=True):
        torch.testing.assert_close(copied(x), x + 1)
        with pytest.raises(KernelRaceError, match=r"RACE DETECTED(.|\n)*test_interpretation\.py"):
            copied(x, wait_first=False)
        torch.testing.assert_close(copied(x), x + 1)


def test_errors_are_one_kind() -> None:
    assert issubclass(KernelIndexError, KernelError) and issubclass(KernelRaceError, KernelError)
    assert issubclass(KernelError, RuntimeError)


@pytest.mark.parametrize("option", ["mode", "out_of_bounds_reads", "bounds", "dma", "uninitialized"])
def test_unknown_options(option: str) -> None:
    with (
        pytest.raises(ValueError, match=f"interpret: {option}='never'; expected one of '"),
        interpret(**{option: "never"}),
    ):  # type: ignore[arg-type]
        pass


def test_what_chip_a_kernel_finds(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []

    @jax_op("test_interpretation::asks")
    def asks(x: jax.Array) -> jax.Array:
        found.extend((pltpu.get_tpu_info().chip_version, jax.extend.backend.get_default_device().platform))
        return x

    asks(x)
    assert found == [pltpu.ChipVersion.TPU_V6E, "tpu"]
    assert jax.extend.backend.get_default_device().platform == "cpu"
    monkeypatch.setenv(interpretation.CHIP_VARIABLE, "v5e")
    assert interpretation.simulated_chip.__wrapped__() == "v5e"
    monkeypatch.setenv(interpretation.CHIP_VARIABLE, "v9")
    with pytest.raises(ValueError, match="'v9': unknown chip; use one of v4, v5e, v5p, v6e, v7x"):
        interpretation.simulated_chip.__wrapped__()


def test_the_users_own_jax_code_is_as_it_was(x: torch.Tensor) -> None:
    torch.testing.assert_close(doubled(x), x * 2)
    like = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32)
    with pytest.raises(ValueError, match="Only interpret mode is supported on CPU"):
        pl.pallas_call(_double, out_shape=like)(jnp.ones((ROWS, COLUMNS)))
    assert (
        pl.pallas_call(_double, out_shape=like, interpret=True)(jnp.ones((ROWS, COLUMNS))).sum() == 2 * ROWS * COLUMNS
    )


def test_kernels_under_derivatives_and_loops(x: torch.Tensor) -> None:
    """What is rewritten is the finished program: kernels inside loops, branches, custom derivatives, checkpoints."""

    @jax.custom_vjp
    def twice(x):
        return pl.pallas_call(
            _double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(x.shape[0] // ROWS,), in_specs=[_BLOCK],
            out_specs=_BLOCK,
        )(x)  # fmt: skip

    twice.defvjp(lambda x: (twice(x), None), lambda _, g: (twice(g),), optimize_remat=True)

    @jax_op("test_interpretation::looped", differentiable=True)
    def looped(x: jax.Array) -> jax.Array:
        x = jax.lax.scan(lambda carry, _: (jax.checkpoint(twice)(carry), None), x, length=3)[0]
        return jax.lax.cond(x[0, 0] > 1e9, lambda x: x, twice, x)

    x = x[:ROWS].clone().requires_grad_()
    made = looped(x)
    torch.testing.assert_close(made, x * 16)
    (grad,) = torch.autograd.grad(made.sum(), x)
    torch.testing.assert_close(grad, torch.full_like(x, 16))


def test_an_artifact_for_cpu_has_no_callbacks(x: torch.Tensor, tmp_path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(x) + 1

    program = torch.export.export(Model(), (x,))
    assert "tpu_custom_call" in torch.tpu.export.exported_to_mlir(program)
    torch.tpu.export.save(program, tmp_path / "model.tpu")
    torch.testing.assert_close(torch.tpu.export.load(tmp_path / "model.tpu")(x), x * 2 + 1)
