"""Scripts written for GPUs that do more than the common ways of training, on 2 ranks."""

import os

import pytest

from .harness import run, start

long = pytest.mark.skipif(os.environ.get("TORCH_TPU_TEST_MORE", "0") == "0", reason="long: with TORCH_TPU_TEST_MORE=1")


def test_what_users_do():
    run("on_ranks_users", "everything", timeout=300)


def test_a_group_made_again_in_one_store(tmp_path):
    run("on_ranks_users", "made_again", str(tmp_path / "store"))


def test_a_member_that_fails_while_a_group_is_made():
    first, second = start("on_ranks_users", "fails_while_a_group_is_made")
    assert second.code == 1
    assert first.code == 1 and "ValueError: before the group" in first.out, first.out
    assert first.seconds < 60


@long
def test_a_rank_later_than_xla_waits():
    run("on_ranks_users", "late", "40", timeout=300)
