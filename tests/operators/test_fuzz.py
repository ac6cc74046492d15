"""A fixed part of the fuzzing of ``fuzz.py``, drawn by hypothesis: the same programs in every run."""

from __future__ import annotations

import random
import warnings

import torch
from fuzz import check
from fuzz_programs import draw
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


@settings(max_examples=200, derandomize=True, deadline=None, database=None, suppress_health_check=_SLOW)
@given(st.randoms(use_true_random=False))
def test_programs(rng: random.Random) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        lines = draw(rng)
    check(lines)
