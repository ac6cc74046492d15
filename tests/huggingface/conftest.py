"""Tests marked ``more`` run with TORCH_TPU_TEST_MORE=1: the rest of what is checked, too long for every run.

TORCH_TPU_TEST_MORE=1 python -m pytest tests/huggingface
"""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "more: runs with TORCH_TPU_TEST_MORE=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("TORCH_TPU_TEST_MORE") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("more")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("more")]
