"""Every collective x dtype x sync or async x group, and DTensor's moves between all placements, on 2 and 4 ranks."""

import os

import pytest

from .harness import run

MORE = os.environ.get("TORCH_TPU_TEST_MORE", "0") != "0"
long = pytest.mark.skipif(not MORE, reason="long: with TORCH_TPU_TEST_MORE=1")


def test_what_is_quick():
    run("on_ranks_matrix", "everything", "coalesced", "values_of_floats", "refused")


def test_placements():
    run("on_ranks_placements", "everything", "one_dimension", timeout=300)


@long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "part",
    [
        "rooted", "gathers", "exchanges", "reductions_of_floats", "reductions_of_halves", "reductions_of_integers",
        "reductions_of_others", "point_to_point",
    ],
)  # fmt: skip
def test_collectives(part, size):
    run("on_ranks_matrix", "everything", part, size=size, timeout=800)


@long
def test_what_is_quick_on_four_ranks():
    run("on_ranks_matrix", "everything", "coalesced", "values_of_floats", "refused", size=4, timeout=400)


@long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [2, 4])
def test_all_placements(size):
    run("on_ranks_placements", "everything", size=size, timeout=1500)
