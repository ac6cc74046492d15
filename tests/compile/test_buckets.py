"""Graphs of symbolic sizes: a program a bucket, results as without padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torch_tpu.compile.padded import bucket_of

SIZES = (2, 3, 7, 8, 9, 13)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def rows(n: int, *rest: int) -> torch.Tensor:
    return torch.randn(n, *rest)


CASES = {
    "pointwise": lambda x: (x * 2 + 1).relu() / (x.abs() + 1),
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(0),
    "mean": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(0, keepdim=True),
    "prod": lambda x: (x * 0.1 + 1).prod(0),
    "amax": lambda x: x.amax(0),
    "max": lambda x: torch.cat([v.to(x.dtype) for v in x.max(0)]),
    "argmin": lambda x: x.argmin(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "softmax along": lambda x: x.softmax(0),
    "log_softmax across": lambda x: x.log_softmax(-1),
    "all": lambda x: (x > -100).all(),
    "any": lambda x: (x > 100).any(),
    "cumsum": lambda x: x.cumsum(0),
    "transpose": lambda x: x.t().contiguous(),
    "product along": lambda x: x.t() @ x,
    "product across": lambda x: x @ x.t(),
    "product of what overflows": lambda x: (1 / (x * 0)).nan_to_num(0, 0, 0).t() @ x,
    "flatten": lambda x: x.reshape(-1) * 2,
    "split": lambda x: torch.cat(x.split(3, dim=1), 1),
    "merged and back": lambda x: (x.t().reshape(-1) + 1).reshape(x.shape[1], x.shape[0]).sum(1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "cat": lambda x: torch.cat([x, x * 2, x[:1]]),
    "cat then index": lambda x: torch.cat([x, x * 2])[-1],
    "last row": lambda x: x[-1] + x[0],
    "all but the first columns": lambda x: x[:, 2:].sum(0),
    "arange": lambda x: x * torch.arange(x.shape[0], device=x.device)[:, None],
    "zeros": lambda x: torch.zeros(x.shape[0], 3, device=x.device) + x[:, :3],
    "size as a number": lambda x: x / x.shape[0],
    "where": lambda x: torch.where(x > 0, x, torch.full_like(x, float("nan"))).nansum(0),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "pairwise": lambda x: (x[:, None] - x[None]).square().sum(-1),
    "variance across": lambda x: x.var(1),
    "expand": lambda x: x[:, None, :].expand(-1, 4, -1).sum(1),
    "tril": lambda x: (x @ x.t()).masked_fill(torch.ones(x.shape[0], x.shape[0], device=x.device).tril() == 0, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_every_size_of_a_bucket_is_right(name):
    fn = CASES[name]
    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for n in SIZES:
        x = rows(n, 6)
        expected = fn(x)
        got = compiled(x.to("tpu"))
        torch.testing.assert_close(got.cpu(), expected, equal_nan=True, rtol=1e-5, atol=1e-5)
        assert got.is_contiguous() or not expected.is_contiguous()


@pytest.mark.parametrize(
    "name", ["sum of rows", "softmax along", "product along", "mean", "cat", "last row", "layer_norm"]
)
def test_gradients(name):
    fn = CASES[name]
    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for n in SIZES:
        x = rows(n, 6)
        a, b = x.clone().requires_grad_(), x.to("tpu").requires_grad_()
        fn(a).sin().sum().backward()
        compiled(b).sin().sum().backward()
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-5, atol=1e-5)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.out = nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        logits = self.out(self.layer(self.embedding(tokens), src_mask=causal))
        return F.cross_entropy(logits.view(-1, 50), targets.view(-1))


def test_a_transformer_trains_by_buckets_of_batch_and_length():
    model = Model()
    device = Model()
    device.load_state_dict(model.state_dict())
    device.to("tpu")
    compiled = torch.compile(device, dynamic=True, fullgraph=True)
    before = None
    for b, n in ((2, 5), (3, 7), (5, 8), (4, 3), (2, 12), (7, 13)):
        tokens, targets = torch.randint(0, 50, (2, b, n)).unbind()
        model.zero_grad()
        device.zero_grad()
        expected = model(tokens, targets)
        expected.backward()
        got = compiled(tokens.to("tpu"), targets.to("tpu"))
        got.backward()
        torch.testing.assert_close(got.cpu(), expected)
        for p, q in zip(model.parameters(), device.parameters(), strict=True):
            torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)
        made = torch.tpu.compiler.stats()["compiled"] + torch.tpu.compiler.stats()["loaded"]
        if (b, n) in ((5, 8), (4, 3), (7, 13)):
            assert made == before, torch.tpu.compiler.explain()[-2000:]
        before = made


def test_dropout_draws_anew_and_scales():
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), dynamic=True, fullgraph=True)
    for n in (1000, 1010):
        x = torch.ones(n, 8, device="tpu")
        one, two = compiled(x), compiled(x)
        assert not torch.equal(one, two)
        assert set(one.unique().tolist()) == {0.0, 2.0}
        assert abs(one.mean().item() - 1) < 0.1


def test_an_index_into_the_padding_is_an_error():
    compiled = torch.compile(lambda x, i: x[i] * 1, dynamic=True, fullgraph=True)
    for n in (5, 6):
        x = torch.randn(n, 3)
        i = torch.tensor([0, n - 1, -1])
        torch.testing.assert_close(compiled(x.to("tpu"), i.to("tpu")).cpu(), x[i])
        with pytest.raises(IndexError):
            compiled(x.to("tpu"), torch.tensor([0, n, 1], device="tpu"))
            torch.tpu.synchronize()


def test_what_has_no_rule_is_compiled_for_each_size():
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.flip(0).cumsum(0)

    compiled = torch.compile(fn, dynamic=True, fullgraph=True)
    for n in SIZES:
        x = rows(n, 4)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), fn(x))


def test_a_size_that_changes_is_compiled_by_bucket_from_then_on():
    compiled = torch.compile(lambda x: (x @ x.t()).softmax(-1), fullgraph=True)
    counts = []
    for n in (5, 6, 7, 8, 4, 3):
        x = rows(n, 4)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), (x @ x.t()).softmax(-1))
        counts.append(torch.tpu.compiler.stats()["compiled"] + torch.tpu.compiler.stats()["loaded"])
    assert counts[1] == counts[-1], torch.tpu.compiler.explain()[-2000:]


def test_buckets():
    sizes = [bucket_of(n) for n in range(1, 3000)]
    assert all(b >= n for n, b in enumerate(sizes, 1))
    assert all(b <= max(8, n * 1.25 + 8) for n, b in enumerate(sizes, 1))
    assert len(set(sizes)) < 50
    assert [bucket_of(n) for n in (1, 8, 9, 65, 128)] == [8, 8, 16, 80, 128]
