"""Tile sizes of the grouped products, for each chip.

A kernel's buffers have to fit in VMEM: two of each operand and of the result, since the next tile is fetched while one
is worked on, and the float32 sum. ``VMEM`` is what a kernel may take of a chip's; Mosaic itself takes some more for
values between instructions, so it is well below what the chip has (128 MiB on v5e and v6e, 64 MiB a core on v5p).
"""

from __future__ import annotations

import dataclasses
import math

MIB = 1 << 20
VMEM = {"v4": 12 * MIB, "v5e": 48 * MIB, "v5p": 40 * MIB, "v6e": 64 * MIB, "v7x": 40 * MIB}
_LANES = 128
# Large enough that the 0.35 us of a grid step hides behind the 2.5 us that HBM takes for it (v6e).
_WEIGHT_TILE = 4 * MIB
_MOST_ROWS = 512
# A group in two tiles is two steps, and while the first one multiplies nothing is fetched for the second one.
_LEAST_ROWS = 128


@dataclasses.dataclass(frozen=True)
class RowTiles:
    """Of ``grouped_rows``: rows, the summed dimension, columns; ``vmem`` is the limit in bytes for the compiler.

    ``part`` rows are multiplied at a time; the parts of a tile that a group has no rows in are not.
    """

    rows: int
    k: int
    n: int
    vmem: int
    part: int


@dataclasses.dataclass(frozen=True)
class SumTiles:
    """Of ``grouped_sum``: rows, and both dimensions of the result."""

    rows: int
    m: int
    n: int
    vmem: int


def _power_of_two(n: int) -> int:
    return 1 << max(n, 1).bit_length() - 1


def _split(size: int, most: int) -> int:
    """The whole dimension, or the multiple of 128 up to ``most`` that leaves least over (the largest of equals)."""
    if size <= most:
        return size
    choices = range(_LANES, max(most, _LANES) + 1, _LANES)
    return min(choices, key=lambda t: (math.ceil(size / t) * t - size + size // 16 * (t < most // 2), -t))


def row_part(rows: int, groups: int, size: int) -> int:
    """Rows that are multiplied at a time. A group's first and last part are not full: with a quarter of the mean group,
    what is multiplied is 1.25 times the rows there are. Fewer than the rows of a register (8 of 32 bits) cost the same.
    """
    least = 32 // size
    return min(max(_power_of_two(rows // max(4 * groups, 1)), least), _MOST_ROWS if size == 2 else 128)


def row_tiles(rows: int, k: int, n: int, groups: int, size: int, chip: str) -> RowTiles:
    """Tiles for (rows, k) by (groups, k, n) of ``size`` bytes an element."""
    limit = VMEM[chip]
    part = row_part(rows, groups, size)
    tm = max(part, min(_LEAST_ROWS, part * _power_of_two(math.ceil(rows / part))))
    tile = _WEIGHT_TILE
    tn = _columns(n, k, size, tile)
    # The rows are read once for each tile of columns: where that is more than the weights, tiles are larger.
    # Not those of float32, whose six passes take longer than the rows (and minutes to compile for large tiles).
    while size == 2 and math.ceil(n / tn) * rows * 2 > groups * n and tn < n and tile * 2 <= limit // 4:
        tile *= 2
        tn = _columns(n, k, size, tile)
    tk = _split(k, max(tile // (size * tn) // _LANES * _LANES, _LANES))

    def held(tm: int, tk: int) -> int:
        # The sum, what is stored and the masks are float32 values of a tile's shape.
        return 2 * size * (tm * tk + tk * tn + tm * tn) + 16 * tm * tn + (8 * tk * tn + 8 * tm * tk) * (size == 4)

    while held(tm, tk) > limit and tk > _LANES:
        tk = _split(k, max(tk // 2 // _LANES * _LANES, _LANES))
    while held(tm, tk) > limit and tm > 32 // size:
        tm //= 2
    return RowTiles(tm, tk, tn, _asked(held(tm, tk), limit), min(part, tm))


def _columns(n: int, k: int, size: int, tile: int) -> int:
    return _split(n, max(tile // (size * k) // _LANES * _LANES, _LANES))


def sum_tiles(rows: int, m: int, n: int, groups: int, size: int, chip: str) -> SumTiles:
    """Tiles for the sum over (rows, m) and (rows, n) of ``size`` bytes an element."""
    limit = VMEM[chip]
    tr = min(max(_power_of_two(rows // max(groups, 1)), 128), _MOST_ROWS if size == 2 else 128)
    most = 1024 if size == 2 else 512
    tm, tn = _split(m, most), _split(n, most)

    def held(tr: int) -> int:
        return 2 * size * (tr * (tm + tn) + tm * tn) + 8 * tm * tn + 8 * tr * (tm + tn)

    while held(tr) > limit and tr > 128:
        tr //= 2
    return SumTiles(tr, tm, tn, _asked(held(tr), limit))


def _asked(held: int, limit: int) -> int:
    """A limit for the compiler: what the tiles hold and a half more, 16 MiB at least, which it has by itself."""
    return min(max(held * 3 // 2, 16 * MIB), 2 * limit)
