"""The view solver against PyTorch's own as_strided, on CPU arrays; needs no device."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_tpu.eager import views
from torch_tpu.runtime import buffers


def storage(shape, dtype=torch.float32):
    n = int(np.prod(shape))
    return torch.arange(n, dtype=dtype).reshape(shape)


def run(base, view):
    """(the solver's view, what it reads, the base after writing negated values through it)."""
    shape = tuple(base.shape)
    layout = buffers.Layout(shape, np.dtype(str(base.dtype).split(".")[1]), 0)
    v = views.solve(layout, tuple(view.shape), view.stride(), view.storage_offset(), layout.dtype)
    array = jnp.asarray(base.numpy())
    starts = views.starts_operand(v.starts, layout)
    read = jax.jit(v.read)(array, starts)
    wrote = jax.jit(v.write)(array, -read - 1, starts)
    return v, np.asarray(read), np.asarray(wrote)


CASES = {
    "whole": ((4, 6), lambda x: x),
    "transpose": ((4, 6), lambda x: x.t()),
    "rows": ((4, 6), lambda x: x[1:3]),
    "columns": ((4, 6), lambda x: x[:, 2:5]),
    "block": ((4, 6), lambda x: x[1:3, 2:5]),
    "row": ((4, 6), lambda x: x[2]),
    "column": ((4, 6), lambda x: x[:, 3]),
    "element": ((4, 6), lambda x: x[2, 3]),
    "every second": ((4, 6), lambda x: x[:, 1::2]),
    "every third of a prime": ((7, 5), lambda x: x.view(-1)[1::3]),
    "flat": ((4, 6), lambda x: x.view(-1)[3:17]),
    "permuted slice": ((2, 3, 4, 5), lambda x: x.permute(3, 0, 2, 1)[1:4, :, 1:, :2]),
    "cache line": ((2, 3, 8, 4), lambda x: x[:, :, 5:6]),
    "diagonal": ((5, 5), lambda x: x.diagonal()),
    "batched diagonal": ((3, 5, 5), lambda x: x.diagonal(1, -2, -1)),
    "split heads": ((2, 4, 6), lambda x: x.view(2, 4, 3, 2).transpose(1, 2)),
    "ones": ((1, 4, 1, 3), lambda x: x.transpose(0, 2)[:, 1:]),
}


@pytest.mark.parametrize("name", CASES)
def test_reads_and_writes(name):
    shape, f = CASES[name]
    base = storage(shape)
    v, read, wrote = run(base, f(base))
    np.testing.assert_array_equal(read, f(base).numpy())
    assert v.kind in ("identity", "digits", "nested"), v
    expected = base.clone()
    f(expected).mul_(-1).sub_(1)
    np.testing.assert_array_equal(wrote, expected.numpy())


def test_overlapping_windows_read_by_gather():
    base = storage((10,))
    view = base.unfold(0, 4, 2)
    v, read, _ = run(base, view)
    assert v.kind == "gather"
    np.testing.assert_array_equal(read, view.numpy())


def test_expanded():
    base = storage((3, 1))
    _, read, _ = run(base, base.expand(3, 4))
    np.testing.assert_array_equal(read, base.expand(3, 4).numpy())


def test_offsets_share_a_key():
    layout = buffers.Layout((6, 4), np.dtype("float32"), 0)
    keys = {views.solve(layout, (2, 4), (4, 1), 4 * i, layout.dtype).key for i in range(1, 5)}
    assert len(keys) == 1


def test_a_slice_of_a_matrix_stays_two_dimensional():
    layout = buffers.Layout((6, 4), np.dtype("float32"), 0)
    assert [d.radix for d in views.solve(layout, (4,), (1,), 8, layout.dtype).digits] == [6, 4]


def test_outside_the_storage_raises():
    layout = buffers.Layout((4,), np.dtype("float32"), 0)
    with pytest.raises(RuntimeError, match="needs 6 elements"):
        views.solve(layout, (4,), (1,), 2, layout.dtype)


@pytest.mark.parametrize("seed", range(60))
def test_random_chains_of_views(seed):
    rng = random.Random(seed)
    base = storage(tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 4))))
    view = base
    for _ in range(rng.randint(1, 5)):
        step = rng.choice(["permute", "slice", "select", "unsqueeze", "stride"])
        if step == "permute" and view.ndim:
            view = view.permute(rng.sample(range(view.ndim), view.ndim))
        elif step == "slice" and view.ndim:
            d = rng.randrange(view.ndim)
            a = rng.randint(0, view.shape[d])
            view = view.narrow(d, a, rng.randint(0, view.shape[d] - a))
        elif step == "select" and view.ndim and view.numel():
            d = rng.randrange(view.ndim)
            view = view.select(d, rng.randrange(view.shape[d]))
        elif step == "stride" and view.ndim:
            view = view[tuple([slice(None)] * rng.randrange(view.ndim) + [slice(None, None, 2)])]
        else:
            view = view.unsqueeze(rng.randint(0, view.ndim))
    _, read, wrote = run(base, view)
    np.testing.assert_array_equal(read, view.numpy())
    expected = base.clone()
    expected.as_strided(view.size(), view.stride(), view.storage_offset()).mul_(-1).sub_(1)
    np.testing.assert_array_equal(wrote, expected.numpy())


@pytest.mark.parametrize("source", [torch.float32, torch.int64, torch.uint8, torch.complex64, torch.bool])
@pytest.mark.parametrize("target", [torch.float32, torch.int16, torch.uint8, torch.complex64, torch.float64])
def test_bitcasts_as_view_dtype(source, target):
    base = (storage((4, 16)) % 2).to(source) if source == torch.bool else storage((4, 16)).to(source)
    view = base.view(target)
    layout = buffers.Layout(tuple(base.shape), np.dtype(str(source).split(".")[1]), 0)
    with jax.enable_x64(True):
        v = views.solve(layout, tuple(view.shape), view.stride(), 0, np.dtype(str(target).split(".")[1]))
        array = jnp.asarray(base.numpy())
        read = jax.jit(v.read)(array, np.zeros(0, np.int32))
        np.testing.assert_array_equal(np.asarray(read), view.numpy())
        back = jax.jit(v.write)(array, read, np.zeros(0, np.int32))
    np.testing.assert_array_equal(np.asarray(back), base.numpy())
