"""Options and guards for all tests."""

from __future__ import annotations

import os
import sys
import tempfile

# Tests start with an empty program cache of their own, unless one is named (TORCH_TPU_TEST_CACHE keeps it warm).
if "TORCH_TPU_CACHE_DIR" not in os.environ:
    kept = os.environ.get("TORCH_TPU_TEST_CACHE")
    os.environ["TORCH_TPU_CACHE_DIR"] = kept or tempfile.mkdtemp(prefix="torch-tpu-test-")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lowering"))

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; left out unless --long is given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    left_out = [i for i in items if i.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [i for i in items if not i.get_closest_marker("long")]
