"""Modules and optimizers under torch.compile."""

import copy

import pytest
import torch
from device.test_optimizers import OPTIMIZERS

from compile.support import compilations, compiled


def model(bias=True):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8, bias=bias), torch.nn.Tanh(), torch.nn.Linear(8, 2, bias=bias))


def train(net, optimizer, step, x, y, count):
    losses = []
    for _ in range(count):

        def closure():
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            return loss

        losses.append(closure().item())
        step(closure)
    return losses


@pytest.mark.parametrize("name", [n for n, options in OPTIMIZERS.items() if options is not None and n != "LBFGS"])
def test_a_compiled_step(name):
    x, y = torch.randn(16, 6), torch.randn(16, 2)
    bias = name != "Muon"  # which takes matrices alone
    theirs, ours = model(bias), model(bias).to("tpu")
    make = getattr(torch.optim, name)
    options = OPTIMIZERS[name]
    expected_opt, opt = make(theirs.parameters(), **options), make(ours.parameters(), **options)
    expected = train(theirs, expected_opt, lambda c: expected_opt.step(), x, y, 5)
    step = compiled(lambda: opt.step(), fullgraph=False)
    got = train(ours, opt, lambda c: step(), x.to("tpu"), y.to("tpu"), 5)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_a_schedule_of_the_learning_rate_compiles_nothing():
    net = model().to("tpu")
    opt = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.1))
    step = compiled(lambda: opt.step(), fullgraph=False)
    x, y = torch.randn(16, 6, device="tpu"), torch.randn(16, 2, device="tpu")
    train(net, opt, lambda c: step(), x, y, 3)
    before = compilations()
    for lr in (0.05, 0.02):
        opt.param_groups[0]["lr"].fill_(lr)
        train(net, opt, lambda c: step(), x, y, 1)
    assert compilations() == before


def test_a_compiled_training_step():
    x, y = torch.randn(16, 6), torch.randn(16, 2)
    theirs, ours = model(), model().to("tpu")
    fast = compiled(ours)
    for net, a, b in ((theirs, x, y), (fast, x.to("tpu"), y.to("tpu"))):
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            opt.zero_grad(set_to_none=True)
            (net(a) - b).square().mean().backward()
            opt.step()
    for p, q in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-5, atol=1e-5)


def test_buffers_of_batch_norm():
    theirs = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    ours = copy.deepcopy(theirs).to("tpu")
    run, x = compiled(ours), torch.randn(5, 3, 8, 8)
    for training in (True, True, False):
        theirs.train(training), ours.train(training)
        expected, got = theirs(x), run(x.to("tpu"))
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        for name, buffer in theirs.named_buffers():
            torch.testing.assert_close(ours.get_buffer(name).cpu(), buffer, rtol=1e-4, atol=1e-5)
    expected.sum().backward(), got.sum().backward()
    torch.testing.assert_close(ours[0].weight.grad.cpu(), theirs[0].weight.grad, rtol=1e-3, atol=1e-4)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


def test_tied_weights():
    torch.manual_seed(0)
    theirs = Tied()
    ours = copy.deepcopy(theirs).to("tpu")
    tokens = torch.randint(0, 11, (3, 5))
    theirs(tokens).square().sum().backward()
    compiled(ours)(tokens.to("tpu")).square().sum().backward()
    assert ours.head.weight is ours.embedding.weight
    torch.testing.assert_close(ours.head.weight.grad.cpu(), theirs.head.weight.grad, rtol=1e-4, atol=1e-5)


def test_a_frozen_module():
    net = model().to("tpu").eval().requires_grad_(False)
    run, x = compiled(net), torch.randn(3, 6, device="tpu")
    torch.testing.assert_close(run(x), net(x))
    with torch.no_grad():
        net[0].weight.mul_(2)
    torch.testing.assert_close(run(x), net(x))


def test_a_static_cache_is_updated_in_place():
    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(8, 4))

        def forward(self, x, at):
            self.cache.index_copy_(0, at, x[None])
            return self.cache.sum(0)

    net = Cached().to("tpu")
    run = compiled(net)
    place = net.cache.data_ptr()
    with torch.no_grad():
        for i in range(5):
            total = run(torch.full((4,), float(i), device="tpu"), torch.tensor([i], device="tpu"))
            if i == 1:
                before = compilations()
    assert total.tolist() == [10.0] * 4 and net.cache[:, 0].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert net.cache.data_ptr() == place and compilations() == before
