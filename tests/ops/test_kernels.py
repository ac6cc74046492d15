"""Kernels against their float64 references, interpreted; and what libtpu says of them."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_tpu.aot.compiler import CompilerError
from torch_tpu.ops import checking
from torch_tpu.ops.flash_attention import sizes as flash_sizes
from torch_tpu.ops.flash_attention import validate as flash
from torch_tpu.ops.grouped_matmul import kernel, sizes
from torch_tpu.ops.grouped_matmul import validate as grouped
from torch_tpu.ops.paged_cache import validate as paged

MORE = bool(os.environ.get("TORCH_TPU_TEST_MORE"))


@pytest.mark.parametrize("case", list(grouped.cases(60 if MORE else 6)), ids=str)
def test_grouped_products(case):
    found = grouped.check(case, "simulate" if MORE or case.seed % 2 else "plain")
    assert max(found.values()) < grouped.TOLERANCE[case.dtype], found


FLASH = [
    flash.Case(2, 1, 70, 200, 64, "float32", is_causal=True),
    flash.Case(2, 2, 130, 130, 32, "bfloat16", window=40, soft_cap=4.0),
    flash.Case(2, 1, 70, 150, 64, "float32", masks=(1, 1)),
    flash.Case(2, 2, 130, 130, 32, "bfloat16", is_causal=True, masks=(2, 2)),
]


@pytest.mark.parametrize("case", [*FLASH, *(flash.cases(24) if MORE else ())], ids=str)
def test_attention_and_its_gradients(case):
    found = flash.check(case, "plain")
    assert max(found.values()) < flash.TOLERANCE[case.dtype], found


def test_attention_over_a_mesh_and_its_gradients():
    """Each device has its heads and its part of the batch: the same as one device, with masks of every form."""
    worker = pathlib.Path(__file__).with_name("on_mesh.py")
    environment = {**os.environ, "TORCH_TPU_NUM_CPU_DEVICES": "4"}
    done = subprocess.run([sys.executable, worker], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]


def test_attention_to_pages():
    """The ragged kernel reads its pages through reshaped and bitcast references."""
    found = paged.check(paged.Case(2, 8, 1, 2, 16, seed=3))
    assert max(found.values()) < paged.TOLERANCE, found


@pytest.mark.parametrize("passes", ["highest", "high", "medium"])
def test_passes_of_float32(passes):
    """torch.set_float32_matmul_precision decides: what the unit is asked for, and three passes' 16 bits."""
    rng = np.random.default_rng(1)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((16, 64), (2, 64, 32)))
    ends, tiles = jnp.asarray([3, 16], jnp.int32), sizes.RowTiles(16, 64, 32, 16 << 20, 8)

    def call(x, w, e):
        return kernel.grouped_rows(x, w, e, tiles=tiles, passes=passes)

    text = str(jax.make_jaxpr(call)(x, w, ends))
    assert ("Precision.HIGHEST" in text, text.count("dot_general")) == {
        "highest": (True, 1), "high": (False, 3), "medium": (False, 1)
    }[passes]  # fmt: skip
    wide = [np.asarray(v, np.float64) for v in (x, w)]
    want = np.concatenate([wide[0][:3] @ wide[1][0], wide[0][3:] @ wide[1][1]])
    found = checking.error(checking.interpreted(call, x, w, ends, mode="plain"), want)
    assert found < 2e-5 and (found > 1e-7 or passes != "high")


def test_nothing_of_neighbours_rows_is_read():
    """A NaN in one group's rows stays there."""
    x = jnp.ones((24, 32), jnp.float32).at[5].set(jnp.nan)
    b = jnp.ones((24, 16), jnp.float32)
    tiles = sizes.SumTiles(16, 32, 16, 16 << 20)
    got = checking.interpreted(
        lambda a, b, e: kernel.grouped_sum(a, b, e, tiles=tiles), x, b, jnp.asarray([4, 7, 24], jnp.int32)
    )
    assert np.isfinite(np.asarray(got)[[0, 2]]).all() and np.isnan(np.asarray(got)[1]).all()


@pytest.mark.parametrize("chip", checking.CHIPS)
def test_tiles_fit(chip):
    """What the kernels hold is within the limit that they ask for, and that within the chip's VMEM."""
    vmem = {"v5e": 128 << 20, "v5p": 64 << 20, "v6e": 128 << 20}[chip]
    for rows in (1, 8, 513, 8192, 131072):
        for k, n, groups in ((64, 64, 1), (2048, 1536, 128), (14336, 4096, 8), (5000, 7000, 3), (65536, 128, 4)):
            for size in (2, 4):
                t = sizes.row_tiles(rows, k, n, groups, size, chip)
                assert 2 * size * (t.rows * t.k + t.k * t.n + t.rows * t.n) + 4 * t.rows * t.n <= t.vmem <= vmem
                s = sizes.sum_tiles(rows, k, n, groups, size, chip)
                assert 2 * size * (s.rows * (s.m + s.n) + s.m * s.n) + 4 * s.m * s.n <= s.vmem <= vmem
                assert t.k == k or t.k % 128 == 0
                assert t.n == n or t.n % 128 == 0


def test_padding_of_rows_is_a_quarter_at_most():
    """Of a prefill: what is multiplied beyond the rows there are, in tiles that two groups share."""
    for rows, groups in ((32768, 128), (8192, 8), (65536, 64)):
        assert rows + groups * sizes.row_part(rows, groups, 2) <= 1.3 * rows


def test_where_flash_attention_pays():
    assert not flash_sizes.pays(32, 512, 512, 64, "v6e") and flash_sizes.pays(32, 1024, 1024, 64, "v6e")
    assert not flash_sizes.pays(4096, 1, 8192, 128, "v6e")


@pytest.mark.parametrize("chip", checking.CHIPS if MORE else ["v6e"])
@pytest.mark.parametrize("name", grouped.REALISTIC if MORE else ["Qwen3-30B-A3B decode, 64"])
def test_grouped_products_compile(chip, name):
    rows, k, n, groups, dtype, _ = grouped.REALISTIC[name]
    for c in grouped.compile_for(chip, name):
        assert c.flops < 1.01 * 2 * rows * k * n
        # The weights are not copied: as work memory they would be gigabytes.
        assert c.temp_bytes < groups * k * n * jnp.dtype(dtype).itemsize / 50 + (4 << 20)


@pytest.mark.skipif(not MORE, reason="minutes of compilation")
@pytest.mark.parametrize("chip", checking.CHIPS)
def test_attention_compiles(chip):
    for name in flash.REALISTIC:
        flash.compile_for(chip, name)
    for name in paged.REALISTIC:
        paged.compile_for(chip, name)


def test_tiles_that_do_not_fit_are_refused():
    tiles = sizes.RowTiles(512, 8192, 8192, 16 << 20, 512)

    def call(x, w, e):
        return kernel.grouped_rows(x, w, e, tiles=tiles)

    shapes = [((512, 8192), jnp.bfloat16), ((2, 8192, 8192), jnp.bfloat16), ((2,), jnp.int32)]
    with pytest.raises(CompilerError, match=r"would exceed memory.*vmem"):
        checking.compiled(call, shapes, "v6e")


def test_programs_without_kernels_are_traced_as_ever():
    """On XLA:CPU nothing of Pallas is in the program."""
    from torch_tpu.lowering.grouped_matmul import grouped_rows

    with jax.enable_x64(True):
        text = str(jax.make_jaxpr(grouped_rows)(jnp.ones((8, 16)), jnp.ones((3, 16, 8)), jnp.asarray([1, 2, 8])))
    assert "pallas_call" not in text and "while" in text
