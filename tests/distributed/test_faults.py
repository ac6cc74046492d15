"""A rank that fails, is killed, comes late or does something else: the others end soon, with a message that says it."""

import os

import pytest

from .harness import start

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"
long = pytest.mark.skipif(not MORE, reason="long: with TORCH_TPU_TEST_MORE=1")

_SECONDS = 30  # in which the others end after the rank that does wrong, on a busy machine


def ends(function, *words, timeout=90, size=2, last=None):
    """All ranks but the last fail, and say ``words``."""
    ranks = start("on_ranks_faults", function, timeout=timeout, size=size)
    everything = "\n".join(f"--- rank {i} ended with {r.code}\n{r.out[-4000:]}" for i, r in enumerate(ranks))
    for r in ranks[:-1]:
        assert r.code is not None, f"had to be killed:\n{everything}"
        assert r.code > 0, everything
        for word in words:
            assert word in r.out, f"{word!r} is not in:\n{everything}"
    assert max(r.seconds for r in ranks[:-1]) - ranks[-1].seconds < _SECONDS, everything
    assert last is None or ranks[-1].code == last, everything
    return ranks


def test_killed_rank():
    ends("killed", "all_reduce(sum) of float32[4]", "no answer from rank 1", last=-9)


def test_exception_is_told_to_the_others():
    ends("raises", "rank 1: ValueError: the data set is empty", last=1)


def test_exception_in_backward():
    ends("raises_in_backward", "rank 1: ZeroDivisionError", last=1)


def test_timeout_names_the_collective_and_the_missing_rank():
    ends("late", "all_reduce(max) of float32[4]", "timed out after 4 s", "Missing: rank 1")


def test_graphs_that_differ():
    """Every rank says which program it is and where it first differs."""
    ranks = ends(
        "other_graph", "ranks disagree on program", "rank 0: %1 = aten::relu(%0)", "rank 1: %1 = aten::sigmoid"
    )
    assert ranks[-1].code == 1 and "rank 0: %1 = aten::relu(%0)" in ranks[-1].out, ranks


@long
def test_compiled_programs_that_differ():
    ranks = ends("other_compiled_program", "tpu_dist: ", "program graph")
    assert ranks[-1].code not in (0, None), ranks


@pytest.mark.parametrize(
    ("function", "words"),
    [
        pytest.param("killed_in_init", "waited in init_process_group; the process of rank 1 has ended", marks=long),
        ("killed_while_compiling", "the agreement on program"),
        ("killed_in_a_program", "no answer from rank 1"),
        pytest.param("killed_in_backward", "all_reduce(sum)", marks=long),
    ],
)
def test_killed_in_each_phase(function, words):
    ends(function, words, last=-9)


def test_late_rank_in_time():
    ranks = start("on_ranks_faults", "slow")
    assert [r.code for r in ranks] == [0, 0], ranks


def test_shapes_that_differ():
    ranks = ends("other_shape", "ranks disagree", "all_reduce(max) of float32[4]", "all_reduce(max) of float32[5]")
    assert ranks[-1].code == 1, ranks
