"""Transformers' and Diffusers' own ways to many devices, under the launcher's variables."""

import os

import pytest

from .harness import run

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"
long = pytest.mark.skipif(not MORE, reason="long: with TORCH_TPU_TEST_MORE=1")


def test_compiled_tensor_parallel_decoding(tmp_path):
    run("on_ranks_models", "everything", str(tmp_path), "decode", timeout=300)


@long
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("part", ["llama_training", "experts", "experts_in_parts", "images"])
def test_models_over_ranks_equal_one_process(part, size, tmp_path):
    run("on_ranks_models", "everything", str(tmp_path), part, size=size, timeout=900)


@long
def test_compiled_tensor_parallel_decoding_on_four_ranks(tmp_path):
    run("on_ranks_models", "everything", str(tmp_path), "decode", size=4, timeout=600)
