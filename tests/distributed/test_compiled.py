"""Collectives in compiled graphs are XLA's, inside the one program that all ranks run."""

import os

import pytest

from .harness import run

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"


def test_collectives_and_training_in_compiled_graphs():
    names = "collectives", "numbers_of_a_rank", "gradients", "tensor_parallel"
    run("on_ranks_compiled", "everything", *names, timeout=400)


@pytest.mark.skipif(not MORE, reason="long: with TORCH_TPU_TEST_MORE=1")
def test_parameters_in_parts():
    run("on_ranks_compiled", "everything", "parameters_gathered_in_the_graph", "fsdp", "ddp", timeout=400)
