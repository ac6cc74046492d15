"""The grouped products against their reference, interpreted; and compiled by libtpu at realistic sizes.

python -m torch_tpu.ops.grouped_matmul.validate [--cases 40] [--chips v5e,v5p,v6e]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_tpu.ops import checking
from torch_tpu.ops.grouped_matmul import kernel, reference, sizes

# The largest difference by the largest value: float32 sums of products, and one rounding of the result.
TOLERANCE = {"float32": 2e-6, "bfloat16": 4e-3}


@dataclasses.dataclass(frozen=True)
class Case:
    rows: int
    k: int
    n: int
    ends: tuple[int, ...]
    dtype: str
    transposed: bool
    tiles: tuple[int, int, int] | None  # None: those of the chip
    seed: int


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Sizes that are no multiples of a tile, empty groups, one group, all rows in the last one, ends past the rows."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        rows, k, n = (int(rng.integers(1, most)) for most in (70, 300, 300))
        groups = int(rng.integers(1, 7))
        ends = np.sort(rng.integers(0, rows + 1, groups))
        kind = i % 6
        if kind == 1:
            ends = np.array([rows])
        elif kind == 2:
            ends[:-1], ends[-1] = 0, rows
        elif kind == 3:
            ends[:] = rows
        elif kind == 4:
            ends[-1] = rows + 9
        tiles = None if i % 2 else (int(rng.choice([16, 32])), 128, 128)
        dtype = "bfloat16" if rng.integers(2) else "float32"
        yield Case(rows, k, n, tuple(map(int, ends)), dtype, bool(rng.integers(2)), tiles, i)


def check(case: Case, mode: str = "simulate") -> dict[str, float]:
    """Errors of both kernels, by the largest value."""
    rng = np.random.default_rng(case.seed)
    groups, size = len(case.ends), 2 if case.dtype == "bfloat16" else 4
    x, w, b = (
        jnp.asarray(rng.standard_normal(s), case.dtype)
        for s in ((case.rows, case.k), (groups, case.k, case.n), (case.rows, case.n))
    )
    ends = jnp.asarray(case.ends, jnp.int32)
    tiles = sizes.row_tiles(case.rows, case.k, case.n, groups, size, "v6e")
    sums = sizes.sum_tiles(case.rows, case.k, case.n, groups, size, "v6e")
    if case.tiles is not None:
        tiles, sums = sizes.RowTiles(*case.tiles, tiles.vmem, 16), sizes.SumTiles(*case.tiles, sums.vmem)
    dtype = jnp.dtype(case.dtype)

    def rows(x: Any, w: Any, ends: Any) -> Any:
        return kernel.grouped_rows(x, w, ends, tiles=tiles, transposed=case.transposed, out_dtype=dtype)

    def total(a: Any, b: Any, ends: Any) -> Any:
        return kernel.grouped_sum(a, b, ends, tiles=sums, out_dtype=dtype)

    stored = jnp.swapaxes(w, 1, 2) if case.transposed else w
    got = checking.interpreted(rows, x, stored, ends, mode=mode)
    summed = checking.interpreted(total, x, b, ends, mode=mode)
    wide = [np.asarray(v, np.float64) for v in (x, w, b)]
    return {
        "rows": checking.error(got, reference.grouped_rows(wide[0], wide[1], np.asarray(ends))),
        "sum": checking.error(summed, reference.grouped_sum(wide[0], wide[2], np.asarray(ends))),
    }


# name -> rows, k, n, groups, dtype, whether weights lie transposed
REALISTIC: dict[str, tuple[int, int, int, int, str, bool]] = {
    "Qwen3-30B-A3B decode, 1": (8, 2048, 1536, 128, "bfloat16", True),
    "Qwen3-30B-A3B decode, 64": (512, 2048, 1536, 128, "bfloat16", True),
    "Qwen3-30B-A3B prefill, 4096": (32768, 768, 2048, 128, "bfloat16", True),
    "Mixtral-8x7B decode, 8": (16, 4096, 28672, 8, "bfloat16", True),
    "Mixtral-8x7B prefill, 4096": (8192, 14336, 4096, 8, "bfloat16", True),
    "float32, 512 rows": (512, 2048, 1536, 64, "float32", False),
    "sizes that fit no tile": (1000, 1000, 1100, 7, "bfloat16", False),
}


def compile_for(chip: str, name: str) -> list[Any]:
    """libtpu's verdict on both kernels. Raises CompilerError where it refuses."""
    rows, k, n, groups, dtype, transposed = REALISTIC[name]
    size, kind = jnp.dtype(dtype).itemsize, jnp.dtype(dtype)
    tiles = sizes.row_tiles(rows, k, n, groups, size, chip)
    sums = sizes.sum_tiles(rows, k, n, groups, size, chip)
    stored = (groups, n, k) if transposed else (groups, k, n)

    def by_rows(x: Any, w: Any, e: Any) -> Any:
        return kernel.grouped_rows(x, w, e, tiles=tiles, transposed=transposed, out_dtype=kind)

    def total(a: Any, b: Any, e: Any) -> Any:
        return kernel.grouped_sum(a, b, e, tiles=sums, out_dtype=kind)

    ends = ((groups,), jnp.int32)
    return [
        checking.compiled(by_rows, [((rows, k), kind), (stored, kind), ends], chip),
        checking.compiled(total, [((rows, k), kind), ((rows, n), kind), ends], chip),
    ]


def main() -> int:
    return checking.main(cases, 40, check, lambda case: TOLERANCE[case.dtype], REALISTIC, compile_for, ("rows", "sum"))


if __name__ == "__main__":
    raise SystemExit(main())
