"""The environment that all tests run in."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator

# Tests start with an empty program cache of their own, unless one is named (TORCH_TPU_TEST_CACHE keeps it warm).
if "TORCH_TPU_CACHE_DIR" not in os.environ:
    kept = os.environ.get("TORCH_TPU_TEST_CACHE")
    if not kept:
        kept = tempfile.mkdtemp(prefix="torch-tpu-test-")
        atexit.register(shutil.rmtree, kept, ignore_errors=True)  # workers of pytest-xdist find the variable set
    os.environ["TORCH_TPU_CACHE_DIR"] = kept
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lowering"))

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Each test draws the same inputs in every run, and others than its neighbours."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


_LARGE_KB = 3 * 1024 * 1024


@pytest.fixture(autouse=True, scope="module")
def programs_let_go() -> Iterator[None]:
    """Tests compile more programs than any user: a worker that has become large forgets them after each module."""
    yield
    with open("/proc/self/status") as f:
        used = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    if used > _LARGE_KB:
        torch._dynamo.reset()
        torch.tpu.compiler.clear_cache()
        gc.collect()
