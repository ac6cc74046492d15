"""What CPU refuses is refused in its words: types, shapes, and memory that is read and written at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

Call = Callable[[Callable[..., torch.Tensor]], Any]


def same_refusal(call: Call) -> Exception:
    """The exception that ``call`` raises on the device: the same as on CPU, in type and words."""
    raised = []
    for device in ("cpu", "tpu"):
        made = lambda *size, dtype=torch.float32, d=device: torch.ones(size, device=d).to(dtype)  # noqa: E731
        with pytest.raises(Exception) as e:  # which one it is, CPU says
            call(made)
            torch.tpu.synchronize()
        raised.append(e.value)
    assert type(raised[1]) is type(raised[0])
    assert str(raised[1]) == str(raised[0])
    return raised[1]


C, I, B = torch.complex64, torch.int64, torch.bool  # noqa: E741


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t(3, dtype=C) > t(3, dtype=C),
        lambda t: t(3, dtype=C).sort(),
        lambda t: t(3, dtype=C).clamp(1),
        lambda t: t(3, dtype=C).clamp(t(3, dtype=C)),
        lambda t: t(3, dtype=C).floor(),
        lambda t: t(3, dtype=C).sign(),
        lambda t: t(3, dtype=C).relu(),
        lambda t: t(3, dtype=C).unique(),
        lambda t: F.threshold(t(3, dtype=C), 1j, 2j),
        lambda t: torch.gcd(t(3, dtype=C), t(3, dtype=C)),
        lambda t: F.max_pool2d(t(1, 4, 4, dtype=C), 2),
        lambda t: F.nll_loss(t(2, 3), t(2, dtype=torch.int32)),
        lambda t: F.nll_loss(t(2, 3, dtype=I), t(2, dtype=I)),
        lambda t: F.adaptive_avg_pool2d(t(1, 4, 4, dtype=I), 2),
        lambda t: F.pad(t(1, 4, 4, dtype=B), (1, 1), "reflect"),
        lambda t: t(5, 10, 5, dtype=B).topk(3),
        lambda t: t(3, dtype=I).sigmoid_(),
        lambda t: F.hardshrink(t(1, 0, 3, dtype=C)),
        lambda t: F.multi_margin_loss(t(dtype=I), t(dtype=I) * 0),
        lambda t: F.nll_loss(t(2, 3, dtype=I), t(2, dtype=I), weight=t(3, dtype=I)),
        lambda t: torch.complex(t(3), t(3, dtype=torch.float64)),
        lambda t: torch.index_reduce(t(2, dtype=C), 0, t(1, dtype=I), t(1, dtype=C), "amax"),
        lambda t: torch.arange(0, 2, dtype=B, device=t(1).device),
    ],
)
def test_types(call: Call):
    same_refusal(call)


def test_types_of_large_operands():
    same_refusal(lambda t: t(300, 300, dtype=C).sort())
    same_refusal(lambda t: torch.mm(t(300, 300, dtype=B), t(300, 300, dtype=B)))


_MIXED = {
    "nll_loss": lambda x, w: F.nll_loss(x, torch.zeros(2, dtype=torch.long, device=x.device), w),
    "layer_norm": lambda x, w: F.layer_norm(x, (3,), w, w),
    "batch_norm": lambda x, w: F.batch_norm(x, w, w),
    "linear": lambda x, w: F.linear(x, w.expand(4, 3)),
    "lerp": lambda x, w: torch.lerp(x, x, w),
    "index_add": lambda x, w: torch.index_add(x, 0, torch.tensor([1], device=x.device), w[None]),
    "mse_loss": lambda x, w: F.mse_loss(x, w.expand(2, 3)),
    "where": lambda x, w: torch.where(x > 0, x, w),
}


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("run", _MIXED.values(), ids=_MIXED)
def test_half_and_float(run, half):
    """CPU takes some mixtures; one that it refuses, though it takes each of the types alone, is refused."""
    for types in ((torch.float32, half), (half, torch.float32)):
        said = []
        for device in ("cpu", "tpu"):
            x, w = torch.ones(2, 3, dtype=types[0], device=device), torch.ones(3, dtype=types[1], device=device)
            try:
                said.append(run(x, w).dtype)
            except RuntimeError as e:
                said.append(str(e))
        assert said[0] == said[1]


def test_half_types_are_not_asked_about():
    assert torch.ones(3, dtype=torch.float8_e4m3fn, device="tpu").to(torch.float32).sum().item() == 3
    target = torch.zeros(3, dtype=I, device="tpu")
    assert F.multi_margin_loss(torch.ones(3, 3, dtype=torch.float16, device="tpu"), target).dtype == torch.float16


@pytest.mark.parametrize(
    "call",
    [
        lambda t: torch.amax(t(2, 2), 0, out=t(2, dtype=torch.int32)),
        lambda t: torch.aminmax(t(5, 0, 5)),
        lambda t: torch.cat([t(4, 0), t(5, 0, 19, 20)], 1),
        lambda t: torch.hstack([t(5), t(5, 5)]),
        lambda t: F.conv2d(t(1, 1, 4, 4), t(1, 1, 2, 3), stride=-1),
        lambda t: F.multi_margin_loss(t(5, 0), t(5)),
        lambda t: t(10, 5).narrow_copy(3, 0, 0),
        lambda t: torch.index_add(t(3, 2), 0, torch.zeros(3, dtype=I, device=t(1).device), t(2)),
        lambda t: torch.multinomial(t(1, 2, 3), 2),
        lambda t: F.embedding(torch.zeros(2, dtype=I, device=t(1).device), t()),
        lambda t: torch.mean(t(3, dtype=I)),
        lambda t: torch.complex(t(3), t(3, dtype=torch.int32)),
        lambda t: torch.linalg.lstsq(t(), t()),
        lambda t: torch.bucketize(t(5), t(5, 5)),
        lambda t: F.conv3d(t(1, 1, 4, 4, 4), t(1, 1, 2, 2, 2), padding=-1),
        lambda t: torch.multinomial(t(2), 2, out=t(2)),
        lambda t: torch.multinomial(t(2), 3),
        lambda t: torch.masked_select(t(2), t(2) > 0, out=t(2, dtype=torch.float64)),
        lambda t: torch.nonzero(t(2), out=t(2)),
    ],
)
def test_shapes_and_results(call: Call):
    same_refusal(call)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t(3).uniform_(3, 1),
        lambda t: t(3).log_normal_(1, 0),
        lambda t: t(3).normal_(0, -1),
        lambda t: t(3).exponential_(-1),
        lambda t: t(3).geometric_(1.5),
        lambda t: t(3).cauchy_(0, -1),
        lambda t: t(3).bernoulli_(2),
        lambda t: t(3).random_(3, 2),
        lambda t: torch.randint(5, 2, (3,), device=t(1).device),
        lambda t: torch.randint_like(t(3, dtype=B), 10),
    ],
)
def test_parameters_of_distributions(call: Call):
    same_refusal(call)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        call(lambda *size, dtype=torch.float32: torch.ones(size, device="tpu").to(dtype))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_index_out_of_range_is_of_either_kind():
    """CPU raises IndexError for some operators, RuntimeError for others."""
    for kind in (IndexError, RuntimeError):
        with pytest.raises(kind, match="index 7 is out of bounds for dimension 0 with size 3"):
            torch.ones(3, device="tpu").gather(0, torch.tensor([7], device="tpu")).tolist()


def test_results_given_as_out():
    x = torch.tensor([0.0, 1.0, 2.0], device="tpu")
    out = torch.empty(0, device="tpu")
    assert torch.masked_select(x, x > 0, out=out) is out
    assert out.tolist() == [1.0, 2.0]
    assert torch.nonzero(x, out=torch.empty(0, dtype=I, device="tpu")).tolist() == [[1], [2]]
    assert torch.matmul(x, torch.ones(3, 2, device="tpu"), out=torch.empty(0, device="tpu")).tolist() == [3.0, 3.0]
    matrix = torch.eye(3, device="tpu") * 2
    for made in (torch.linalg.inv(matrix, out=torch.empty(0, device="tpu")), torch.linalg.cholesky(matrix)):
        assert made.shape == (3, 3)
    assert torch.linalg.det(matrix, out=torch.empty((), device="tpu")).item() == 8.0
    assert torch.linalg.solve(matrix, x, out=torch.empty(0, device="tpu")).tolist() == [0.0, 0.5, 1.0]


def test_lists_given_as_out():
    x = torch.arange(6.0, device="tpu").view(3, 2)
    out = [torch.empty(0, device="tpu") for _ in range(3)]
    torch.unbind_copy(x, out=out)
    assert [t.tolist() for t in out] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_strides_over_the_storage():
    results = []
    for device in ("cpu", "tpu"):
        x = torch.arange(12.0, device=device).view(3, 4).t()
        got = [torch.as_strided_copy(x, (2, 3), (5, 1), 1), torch.as_strided_copy(x[1:], (2,), (3,))]
        got.append(torch.as_strided_scatter(x, torch.ones(2, 2, device=device), (2, 2), (5, 1), 1))
        results.append([(t.tolist(), t.stride()) for t in got])
    assert results[0] == results[1]


def test_memory_that_is_read_and_written():
    def within(write: Callable[[torch.Tensor], Any]) -> None:
        assert "unsupported operation" in str(same_refusal(lambda t: write(t(6))))

    within(lambda x: x[1:].add_(x[:-1]))
    within(lambda x: x[1:].copy_(x[:-1]))
    within(lambda x: torch.mul(x[1:], 2, out=x[:-1]))
    within(lambda x: torch.index_select(x, 0, torch.zeros(6, dtype=I, device=x.device), out=x))
    within(lambda x: torch.masked_select(x, x > 0, out=x))
    within(lambda x: torch.take(x, torch.zeros(6, dtype=I, device=x.device), out=x))
    x = torch.arange(6.0, device="tpu")
    x[:3].add_(x[3:])
    x[::2].mul_(x[1::2])  # CPU does not look into strides
    assert torch.add(x, 1, out=x) is x
    assert x.tolist() == [(0 + 3) * (1 + 4) + 1, 1 + 4 + 1, (2 + 5) * 3 + 1, 4, 4 * 5 + 1, 6]
