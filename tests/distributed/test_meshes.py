"""Meshes of two dimensions, checkpoints, pipelines, long contexts, parameters on the host."""

import os

import pytest

from .harness import run

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"


def test_two_ranks(tmp_path):
    parts = "checkpoint", "pipeline", "attention", "context", "offload"
    run("on_ranks_meshes", "everything", str(tmp_path), *parts, timeout=400)


@pytest.mark.skipif(not MORE, reason="four processes: with TORCH_TPU_TEST_MORE=1")
def test_four_ranks(tmp_path):
    parts = "redistribute", "two_dimensions", "two_groups_in_one_program", "pipeline", "checkpoint"
    run("on_ranks_meshes", "everything", str(tmp_path), *parts, size=4, timeout=600)
