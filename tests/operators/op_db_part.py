"""The fixed part of the operator database that the tests run; ``sweep.py`` runs all of it.

Every entry is run forward and with its wrong inputs. For the other checks, hashes of names choose entries and types, as
many as the tests have time for: the same ones in every run. Each is run on a few samples, spread over those there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
import torch
from checks import CHECKS, Skipped
from entries import DTYPES, ENTRIES
from gaps import gap
from torch.testing._internal.opinfo.core import OpInfo

# One entry in so many, and samples of each (None: all).
_PART: dict[str, tuple[int, int | None]] = {
    "forward": (1, 2),
    "forward in another dtype": (2, 2),
    "noncontiguous": (3, 2),
    "inplace": (2, 2),
    "out": (3, 2),
    "errors": (1, None),
    "refused": (2, 2),
    "backward": (2, 2),
    "second_order": (8, 2),
    "compiled": (8, 2),
    "compiled_backward": (8, 2),
}
_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def _turn(*names: str) -> int:
    return zlib.crc32(" ".join(names).encode())


def _exists(entry: OpInfo, check: str) -> bool:
    if check == "inplace":
        return entry.get_inplace() is not None
    if check == "out":
        return entry.supports_out
    if check == "errors":
        return entry.error_inputs_func is not None
    if check == "second_order":
        return entry.supports_gradgrad
    return entry.supports_autograd or "backward" not in check


def _dtype(title: str, check: str) -> torch.dtype | None:
    """float32 where there is such a form of the entry; where there are several of a kind, one by turns."""
    entry = ENTRIES[title]
    supported = entry.supported_dtypes("cpu")
    if check == "refused":
        among = [d for d in (torch.bool, torch.int64, torch.complex64) if d not in supported]
    elif "backward" in check or check == "second_order":
        among = [d for d in (torch.float32, torch.complex64) if d in entry.supported_backward_dtypes("cpu")]
    else:
        among = [d for d in DTYPES if d in supported]
        among = among[1:] if check == "forward in another dtype" else among[:1]
    if not among:
        return None
    chosen = among[_turn(title) % len(among)]
    return _DOUBLE[chosen] if check == "second_order" else chosen


def cases(*checks: str) -> Iterator[object]:
    for check in checks:
        for title, entry in ENTRIES.items():
            dtype = _dtype(title, check)
            if dtype is None or not _exists(entry, check) or _turn(title, check) % _PART[check][0]:
                continue
            yield pytest.param(title, check, dtype, id=f"{title}-{check}-{str(dtype).removeprefix('torch.')}")


def run(title: str, part: str, dtype: torch.dtype) -> None:
    check = part.split()[0]
    known = gap(title, check, str(dtype).removeprefix("torch."))
    if known is not None:
        pytest.xfail(known.reason)
    torch.tpu.compiler.clear_cache()
    try:
        CHECKS[check](ENTRIES[title], dtype, _PART[part][1], [])
    except Skipped as e:
        pytest.skip(str(e))
