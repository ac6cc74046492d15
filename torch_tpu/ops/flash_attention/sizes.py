"""Tiles of attention, and where it pays to have no matrix of scores."""

from __future__ import annotations

import dataclasses

_LANES = 128
# Larger tiles have fewer steps, but more of what a causal mask hides is computed.
_MOST = {"v4": 512, "v5e": 512, "v5p": 512, "v6e": 1024, "v7x": 1024}


@dataclasses.dataclass(frozen=True)
class Tiles:
    queries: int
    keys: int


def padded(length: int, tile: int) -> int:
    return -(-length // tile) * tile


def tiles(length: int, keys: int, size: int, itemsize: int, chip: str) -> Tiles:
    """For queries and keys of these lengths: the largest tile that is not mostly padding."""
    most = _MOST[chip] // (2 if itemsize == 4 or size > 128 else 1)

    def of(n: int) -> int:
        # What a tile pads may be an eighth of the length.
        choices = [t for t in (1024, 512, 256, 128) if t <= most]
        return next((t for t in choices if padded(n, t) * 8 <= padded(n, _LANES) * 9), _LANES)

    return Tiles(of(length), of(keys))


_ON_CHIP = {"v4": 64 << 20, "v5e": 64 << 20, "v5p": 32 << 20, "v6e": 64 << 20, "v7x": 32 << 20}


def pays(heads: int, length: int, keys: int, size: int, chip: str) -> bool:
    """Where XLA's attention writes its float32 scores to HBM, because half of VMEM does not hold them.

    By libtpu's own numbers for v6e (32 heads of 64, causal): 512 tokens 5 MB of traffic, as this kernel; 1024 tokens
    413 MB against 12; 2048 tokens 1632 MB against 23, and 537 MB of work memory against 1. Short
    queries (decode) read the cache and little else either way.
    """
    return heads * length * keys * 4 > _ON_CHIP[chip] and length >= 256 and keys >= 128 and size <= 256
