"""A fixed, representative part of the operator database on device tpu; ``sweep.py`` runs all of it.

Every entry is run forward in float32 and in one more of its dtypes (a different one from entry to entry), in place,
with ``out=``, with non-contiguous operands, with wrong inputs, backward and twice backward, each on a few samples
spread over those that the database has. A part of the entries is run under torch.compile too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
import torch
from checks import CHECKS, Skipped
from entries import DTYPES, ENTRIES
from gaps import gap

pytestmark = pytest.mark.filterwarnings("ignore")
_SAMPLES = {"forward": 3, "errors": None}
_OTHERWISE = 2
_COMPILED_EACH = 12  # one entry in so many is run under torch.compile


def _dtype_of(title: str, check: str, supported: set[torch.dtype]) -> Iterator[torch.dtype]:
    ordered = [d for d in DTYPES if d in supported]
    if check == "errors":
        yield torch.float32
    elif ordered:
        yield ordered[0]
        if check == "forward" and len(ordered) > 1:
            yield ordered[1 + zlib.crc32(title.encode()) % (len(ordered) - 1)]


def _cases() -> list[object]:
    cases = []
    for title, entry in ENTRIES.items():
        for check in CHECKS:
            if check.startswith("compiled") and zlib.crc32(title.encode()) % _COMPILED_EACH:
                continue
            backward = "backward" in check or check == "second_order"
            of = entry.supported_backward_dtypes if backward else entry.supported_dtypes
            for dtype in _dtype_of(title, check, of("cpu")):
                if check == "second_order":
                    dtype = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(dtype, dtype)
                name = str(dtype).removeprefix("torch.")
                cases.append(pytest.param(title, check, dtype, id=f"{title}-{check}-{name}"))
    return cases


@pytest.mark.parametrize(("title", "check", "dtype"), _cases())
def test_op_db(title: str, check: str, dtype: torch.dtype) -> None:
    known = gap(title, check, str(dtype).removeprefix("torch."))
    if known is not None:
        pytest.xfail(known.reason)
    torch.tpu.compiler.clear_cache()
    try:
        CHECKS[check](ENTRIES[title], dtype, _SAMPLES.get(check, _OTHERWISE), [])
    except Skipped as e:
        pytest.skip(str(e))
