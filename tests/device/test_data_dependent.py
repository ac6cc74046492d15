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


# Symptom: `nonzero`, `masked_select`, `unique(dim=)`, `x[:, :, mask]`, `a[mask] = b`, `repeat_interleave(tensor)`.
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


MASKS = {
    "rows": lambda x, m: x[m[:, 0, 0]], "middle": lambda x, m: x[:, m[0, :, 0]], "last": lambda x, m: x[:, :, m[0, 0]],
    "all": lambda x, m: x[m], "two dimensions": lambda x, m: x[m[..., 0]], "last two": lambda x, m: x[:, m[0]],
    "mask and number": lambda x, m: x[1, m[0, :, 0]], "mask and slice": lambda x, m: x[m[:, 0, 0], 1:],
    "mask, None": lambda x, m: x[m[:, 0, 0], None], "ellipsis": lambda x, m: x[..., m[0, 0]],
    "mask and index": lambda x, m: x[m[:, 0, 0].nonzero()[:, 0][:1], torch.tensor([1], device=x.device)],
    "transposed": lambda x, m: x.transpose(0, 2)[m.transpose(0, 2)], "nothing": lambda x, m: x[m & ~m],
    "everything": lambda x, m: x[m | ~m], "select": lambda x, m: x.masked_select(m[0, 0]),
    "select broadcast": lambda x, m: x[:1].masked_select(m), "where": lambda x, m: torch.where(m), "compress":
    lambda x, m: torch.take(x, m.reshape(-1).nonzero()),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, dtype):
    x = torch.arange(24).view(2, 3, 4).to(dtype)
    mask = torch.arange(24).view(2, 3, 4) % 3 != 1
    expected, got = MASKS[name](x, mask), MASKS[name](x.to("tpu"), mask.to("tpu"))
    for e, g in zip(*((r if isinstance(r, tuple) else (r,)) for r in (expected, got)), strict=True):
        assert g.dtype == e.dtype and torch.equal(g.cpu(), e)


WRITES = {
    "number": lambda x, m: x.__setitem__(m, 5), "values": lambda x, m: x.__setitem__(m, x[m] * 2),
    "one value": lambda x, m: x.__setitem__(m, x[0, 0, :1]),
    "rows": lambda x, m: x.__setitem__(m[:, 0, 0], x[1].clone()),
    "last": lambda x, m: x.__setitem__((slice(None), slice(None), m[0, 0]), 3),
    "middle": lambda x, m: x.__setitem__((slice(None), m[0, :, 0]), x[:, :1].clone()),
    "transposed": lambda x, m: x.transpose(0, 2).__setitem__(m.transpose(0, 2), 7),
    "a view": lambda x, m: x[:, 1:].__setitem__(m[:, 1:], 9), "every second": lambda x, m: x[..., ::2].__setitem__(
        m[..., ::2], 2), "add": lambda x, m: x[0].__setitem__(m[0], x[0][m[0]] + 1),
    "nothing": lambda x, m: x.__setitem__(m & ~m, 1), "accumulated": lambda x, m: x.index_put_(
        (m[:, 0, 0],), x[:1].clone(), accumulate=True), "masked_scatter_": lambda x, m: x.masked_scatter_(m, x.flip(0)),
    "masked_fill_": lambda x, m: x.masked_fill_(m[0], 4),
    "a 0-d value": lambda x, m: x.__setitem__(m, x[1, 1, 1].clone()),
    "a host number": lambda x, m: x.__setitem__(m, torch.tensor(6)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WRITES)
def test_writing_where_a_mask_says(name, dtype):
    x = torch.arange(24).view(2, 3, 4).to(dtype)
    mask = torch.arange(24).view(2, 3, 4) % 3 != 1
    there = x.to("tpu")
    WRITES[name](there, mask.to("tpu"))
    WRITES[name](x, mask)
    assert torch.equal(there.cpu(), x)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_along_a_dimension(dim):
    x = torch.randint(0, 2, (4, 3, 4))
    x = torch.cat([x, x.flip(dim)], dim)
    for options in ({}, {"return_inverse": True}, {"return_inverse": True, "return_counts": True}, {"sorted": False}):
        expected, got = torch.unique(x, dim=dim, **options), torch.unique(x.to("tpu"), dim=dim, **options)
        for e, g in zip(*((r if isinstance(r, tuple) else (r,)) for r in (expected, got)), strict=True):
            assert torch.equal(g.cpu(), e)
    for e, g in zip(
        torch.unique_consecutive(x, return_counts=True, dim=dim),
        torch.unique_consecutive(x.to("tpu"), return_counts=True, dim=dim), strict=True,
    ):  # fmt: skip
        assert torch.equal(g.cpu(), e)
