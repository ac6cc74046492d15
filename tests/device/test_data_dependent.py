"""Operators whose results have shapes that depend on values: CPU's results, and no program for each new count."""

from __future__ import annotations

import pytest
import torch

from torch_tpu.runtime import programs


def _inputs():
    g = torch.Generator().manual_seed(0)
    yield torch.randint(0, 5, (20,), generator=g)
    yield torch.randint(-3, 3, (4, 5), generator=g).float()
    yield torch.tensor([1.0, float("nan"), 1.0, float("nan"), -0.0, 0.0])
    yield torch.rand(3, 4, generator=g) > 0.5
    yield torch.empty(0)
    yield torch.tensor(3)


OPERATORS = {
    "unique": lambda x: torch.unique(x),
    "unique with inverse and counts": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "nonzero": lambda x: x.nonzero(),
    "nonzero as tuple": lambda x: torch.nonzero(x, as_tuple=True),
    "masked_select": lambda x: x.masked_select(x != 0),
    "mask": lambda x: x[x != 0],
    "argwhere": torch.argwhere,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_equals_cpu(name):
    f = OPERATORS[name]
    for x in _inputs():
        expected, got = f(x), f(x.to("tpu"))
        if isinstance(expected, torch.Tensor):
            expected, got = (expected,), (got,)
        assert len(expected) == len(got)
        for e, g in zip(expected, got, strict=True):
            assert g.shape == e.shape and g.dtype == e.dtype
            torch.testing.assert_close(g.cpu(), e, equal_nan=True)


def test_bincount():
    x = torch.tensor([1, 3, 3, 0, 7])
    w = torch.rand(5)
    for kwargs in ({}, {"minlength": 12}, {"weights": w}, {"weights": w.double()}):
        on_tpu = {k: v.to("tpu") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        torch.testing.assert_close(torch.bincount(x.to("tpu"), **on_tpu).cpu(), torch.bincount(x, **kwargs))
    assert torch.bincount(torch.empty(0, dtype=torch.int64, device="tpu"), minlength=3).tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device="tpu"))


@pytest.mark.parametrize("name", ["unique", "nonzero", "mask"])
def test_a_new_count_compiles_nothing(name):
    f = OPERATORS[name]
    counts = [17, 18, 20, 25, 30]  # of 32: one power of two
    inputs = [torch.cat([torch.arange(1, n + 1), torch.zeros(32 - n)]).to("tpu") for n in counts]
    f(inputs[0])
    with programs.counting() as made:
        for x in inputs[1:]:
            f(x)
    assert made() == 0 if name != "nonzero" else made() <= len(counts)
