"""Random operators on the device: they follow the seed, differ from call to call, and write what a view shows."""

import pytest
import torch
from torch.nn import functional as F

N = 4000


def ones(*shape, **k):
    return torch.ones(*shape, device="tpu", **k)


# Each gives N numbers whose values vary.
DRAWS = {
    "bernoulli.p": lambda: torch.bernoulli(ones(N), 0.4),
    "bernoulli_.Tensor": lambda: ones(N).bernoulli_(torch.full((N,), 0.4, device="tpu")),
    "binomial": lambda: torch.binomial(ones(N) * 9, ones(N) * 0.5),
    "cauchy_": lambda: ones(N).cauchy_().clamp(-5, 5),
    "complex uniform_": lambda: ones(N, dtype=torch.complex64).uniform_(-1, 1).imag,
    "complex normal_": lambda: ones(N, dtype=torch.complex64).normal_().imag,
    "dirichlet": lambda: torch._sample_dirichlet(ones(N, 2))[:, 0],
    "dropout": lambda: F.dropout(ones(N), 0.5),
    "alpha_dropout": lambda: F.alpha_dropout(ones(N), 0.5, training=True),
    "feature_dropout": lambda: F.dropout1d(ones(N, 1), 0.5).flatten(),
    "fused_dropout": lambda: torch.ops.aten._fused_dropout(ones(N), 0.5)[0],
    "exponential_": lambda: ones(N).exponential_(),
    "gamma": lambda: torch._standard_gamma(ones(N)),
    "geometric_": lambda: ones(N).geometric_(0.3),
    "log_normal_": lambda: ones(N).log_normal_(0.0, 0.5),
    "multinomial": lambda: torch.multinomial(ones(50), N, True).float(),
    "normal.Tensor": lambda: torch.normal(ones(N), ones(N)),
    "poisson": lambda: torch.poisson(ones(N) * 4),
    "rand_like": lambda: torch.rand_like(ones(N, dtype=torch.bfloat16)).float(),
    "randn_like": lambda: torch.randn_like(ones(N)),
    "randint_like": lambda: torch.randint_like(ones(N), 3, 90),
    "random_": lambda: ones(N).random_(0, 90),
    "randperm": lambda: torch.randperm(N, device="tpu").float(),
    "rrelu": lambda: F.rrelu(-ones(N), 0.1, 0.9, training=True),
    "rrelu_": lambda: F.rrelu_(-ones(N), 0.1, 0.9, training=True),
    "uniform_": lambda: ones(N).uniform_(),
}


def correlation(a, b):
    return torch.corrcoef(torch.stack([a.double().cpu(), b.double().cpu()]))[0, 1].abs().item()


@pytest.mark.parametrize("name", DRAWS)
def test_draws_follow_the_seed_and_are_independent(name):
    draw = DRAWS[name]
    before = torch.tpu.fallback_counts()
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    state = torch.tpu.get_rng_state()
    assert torch.equal(draw(), second)
    torch.tpu.set_rng_state(state)
    assert torch.equal(draw(), second)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        third = draw()
    assert torch.equal(draw(), third)
    # 0 within five standard deviations; between neighbours as between calls.
    limit = 5 / N**0.5
    for a, b in ((first, second), (second, third), (first[1:], first[:-1]), (first[1:], second[:-1])):
        assert correlation(a, b) < limit
    assert torch.tpu.fallback_counts() == before


WRITES = {
    "uniform_": lambda x: x.uniform_(2, 3), "normal_": lambda x: x.normal_(50, 1),
    "bernoulli_": lambda x: x.bernoulli_(0.5), "exponential_": lambda x: x.exponential_(),
    "cauchy_": lambda x: x.cauchy_(), "log_normal_": lambda x: x.log_normal_(),
    "geometric_": lambda x: x.geometric_(0.5), "random_": lambda x: x.random_(2, 90),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("view", [
    lambda t: t[1:3], lambda t: t[:, ::2], lambda t: t.t()[2], lambda t: t[3, 3], lambda t: t.view(-1)[5:20],
], ids=["rows", "columns", "column", "element", "flat"])  # fmt: skip
def test_a_view_is_written_and_nothing_else(name, view):
    base = torch.full((6, 8), -7.0, device="tpu")
    shown = view(base)
    assert WRITES[name](shown) is shown
    marks = torch.zeros(6, 8, dtype=torch.bool)
    view(marks).fill_(True)
    assert torch.equal((base != -7).cpu(), marks)
    torch.manual_seed(5)
    WRITES[name](shown)
    torch.manual_seed(5)
    alone = torch.empty(shown.shape, device="tpu")
    torch.testing.assert_close(shown.clone(), WRITES[name](alone), rtol=0, atol=0)


def test_both_parts_of_a_complex_uniform():
    x = torch.zeros(N, 2, dtype=torch.complex64, device="tpu")
    x[:, 1].uniform_(-3, 5)
    drawn = torch.view_as_real(x[:, 1]).cpu()
    assert (drawn >= -3).all() and (drawn < 5).all() and not x[:, 0].any()
    assert (drawn.mean(0) - 1).abs().max() < 0.2 and correlation(drawn[:, 0], drawn[:, 1]) < 5 / N**0.5
