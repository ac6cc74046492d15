"""Results whose shapes depend on values: as on CPU, without the host, and one program for a range of counts."""

import pytest
import torch

from device.support import check


def both(f):
    """What f finds on tpu is what it finds on CPU."""
    expected, got = (f(lambda *a, d=d, **k: torch.tensor(*a, device=d, **k)) for d in ("cpu", "tpu"))
    check(got, expected)


REPEATS = {
    "rows": lambda t: t([[1.0, 2], [3, 4]]).repeat_interleave(t([1, 2]), 0),
    "one for all": lambda t: t([[1.0, 2], [3, 4]]).repeat_interleave(t([3]), 1),
    "int32": lambda t: t([1, 2, 3]).repeat_interleave(t([3, 0, 2], dtype=torch.int32)),
    "positions": lambda t: torch.repeat_interleave(t([3, 0, 2], dtype=torch.int32)),
    "output_size": lambda t: torch.repeat_interleave(t([3, 0, 2]), output_size=5),
    "none": lambda t: t([[1.0, 2], [3, 4]]).repeat_interleave(t([0, 0]), 0),
    "of nothing": lambda t: torch.repeat_interleave(t([], dtype=torch.int64)),
}


@pytest.mark.parametrize("f", REPEATS.values(), ids=REPEATS)
def test_repeat_interleave(f):
    both(f)


@pytest.mark.parametrize("repeats", [[1, -2], [[1, 2]], [1.0, 2.0]], ids=["negative", "two dimensions", "float"])
def test_repeats_that_are_refused(repeats):
    with pytest.raises(RuntimeError, match="repeat"):
        torch.repeat_interleave(torch.tensor(repeats, device="tpu"))


def test_gradient_of_repeat_interleave():
    def grad(t):
        x = t([[1.0, 2], [3, 4]], requires_grad=True)
        x.repeat_interleave(t([3, 1]), 0).pow(2).sum().backward()
        return x.grad

    both(grad)


def test_counts_share_programs():
    torch.repeat_interleave(torch.tensor([3, 5, 8], device="tpu"))
    made = torch.tpu.compiler.stats()["programs"]
    for k in range(1, 8):
        torch.repeat_interleave(torch.tensor([3 + k, 5, 1], device="tpu"))
    assert torch.tpu.compiler.stats()["programs"] == made
