"""Meshes of two dimensions, checkpoints, pipelines, long contexts, parameters on the host."""

import os

import pytest

from .harness import run

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"
long = pytest.mark.skipif(not MORE, reason="long: with TORCH_TPU_TEST_MORE=1")


def test_long_contexts(tmp_path):
    run("on_ranks_meshes", "everything", str(tmp_path), "attention", "context", timeout=300)


@long
def test_two_ranks(tmp_path):
    parts = "checkpoint", "pipeline", "offload"
    run("on_ranks_meshes", "everything", str(tmp_path), *parts, timeout=400)


@long
def test_four_ranks(tmp_path):
    parts = "redistribute", "two_dimensions", "two_groups_in_one_program", "pipeline", "checkpoint"
    run("on_ranks_meshes", "everything", str(tmp_path), *parts, size=4, timeout=600)
