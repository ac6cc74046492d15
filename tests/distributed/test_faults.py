"""A rank that fails, is killed, comes late or does something else: the others end soon, with a message that says it."""

import os

import pytest

from .harness import start

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"
long = pytest.mark.skipif(not MORE, reason="long: with TORCH_TPU_TEST_MORE=1")

_SECONDS = 30  # in which the others end after the rank that does wrong, on a busy machine


def ends(function, *words, timeout=90, size=2, victim=-1, last=None):
    """All ranks but the one that does wrong fail, and say ``words``; nothing is left running (the harness looks)."""
    victim %= size
    ranks = start("on_ranks_faults", function, timeout=timeout, size=size, env={"TEST_VICTIM": str(victim)})
    everything = "\n".join(f"--- rank {i} ended with {r.code}\n{r.out[-4000:]}" for i, r in enumerate(ranks))
    others = [r for i, r in enumerate(ranks) if i != victim]
    for r in others:
        assert r.code is not None, f"had to be killed:\n{everything}"
        assert r.code > 0, everything
        for word in words:
            assert word in r.out, f"{word!r} is not in:\n{everything}"
    assert max(r.seconds for r in others) - ranks[victim].seconds < _SECONDS, everything
    assert last is None or ranks[victim].code == last, everything
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


_OTHER_SUM = ("ranks disagree on operation", "all_reduce(sum) of float32[4]", "all_reduce(max) of float32[4]")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("other_known_reduction", _OTHER_SUM),
        pytest.param("other_known_root", ("broadcast of rank 0 of", "broadcast of rank 1 of"), marks=long),
        ("other_known_graph", ("ranks disagree on operation", "program graph")),
        pytest.param("other_known_graph_not_awaited", ("ranks disagree on operation", "program graph"), marks=long),
    ],
)
def test_known_programs_that_fit_each_other(function, words):
    ranks = ends(function, *words)
    assert ranks[-1].code == 1 and all(w in ranks[-1].out for w in words), ranks


_PHASES = {
    "killed_in_init": "waited in init_process_group; the process of rank",
    "killed_while_compiling": "the agreement on program",
    "killed": "all_reduce(sum) of float32[4]",
    "killed_in_a_program": "program graph",
    "killed_in_backward": "all_reduce(sum)",
}


@pytest.mark.parametrize(
    "function", ["killed_while_compiling", "killed_in_a_program"] + [pytest.param(f, marks=long) for f in _PHASES]
)
def test_killed_in_each_phase(function):
    ends(function, _PHASES[function], last=-9)


@long
@pytest.mark.parametrize(("size", "victim"), [(2, 0), (4, 0), (4, 2)])
@pytest.mark.parametrize("function", list(_PHASES))
def test_each_rank_killed_in_each_phase(function, size, victim):
    """Rank 0 holds the store, where nobody launches the ranks: what others say then is not as good, but they end."""
    words = (_PHASES[function], f"rank {victim}") if victim else ()
    ends(function, *words, size=size, victim=victim, last=-9)


@long
def test_killed_with_the_service_started():
    ends("killed_with_the_service_started", victim=0, last=-9)


@long
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_before_it_joins(victim):
    """Nobody knows that it was there: the group's timeout (8 s) says who did not come."""
    ends("killed_before_init", victim=victim, last=-9)


def test_late_rank_in_time():
    ranks = start("on_ranks_faults", "slow")
    assert [r.code for r in ranks] == [0, 0], ranks


def test_shapes_that_differ():
    ranks = ends("other_shape", "ranks disagree", "all_reduce(max) of float32[4]", "all_reduce(max) of float32[5]")
    assert ranks[-1].code == 1, ranks
