"""Which values between two products are rounded before memory, and that they are rounded as eager rounds them."""

import pytest
import torch
from torch import nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tpu.compile import rounding

F = nn.functional


def marked(f, *args: torch.Tensor) -> list[str]:
    graph = make_fx(f, tracing_mode="fake")(*args)
    rounding.mark(graph)
    found = [n for n in graph.graph.nodes if rounding._MARK in n.meta]
    return [n.target.overloadpacket.__name__ for n in found if isinstance(n, Node)]  # type: ignore[union-attr]


BF16 = torch.bfloat16
X, W, B = torch.ones(2, 4, 8, dtype=BF16), torch.ones(8, 8, dtype=BF16), torch.ones(8, dtype=BF16)


def gated(x, w, b):
    value, gate = F.linear(x, w, b).chunk(2, -1)
    return (value * F.tanh(gate)) @ w[:4]


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x, w, b: F.linear(F.relu(F.linear(x, w, b)), w), ["addmm"]),
        (lambda x, w, b: F.linear(F.gelu(F.linear(x, w, b)), w), ["addmm"]),
        (lambda x, w, b: F.linear(F.linear(x, w, b), w, b), ["addmm"]),
        (gated, ["addmm"]),
        (lambda x, w, b: F.linear(x + F.linear(x, w, b), w), []),
        (lambda x, w, b: F.linear(F.relu(F.linear(x, w)), w, b), []),  # no bias: the product itself is rounded
        (lambda x, w, b: F.linear(F.layer_norm(F.linear(x, w, b), (8,)), w, b), []),
        (lambda x, w, b: F.linear(F.relu(F.linear(x.float(), w.float(), b.float())), w.float(), b.float()), []),
    ],
)
def test_what_is_marked(f, expected):
    assert marked(f, X, W, B) == expected


@pytest.mark.parametrize(
    ("activation", "features", "fused"),
    [
        (F.gelu, 768, True), (F.gelu, 2048, True), (F.gelu, 1152, False), (F.gelu, 4096, False),
        (lambda x: F.gelu(x, approximate="tanh"), 768, True), (lambda x: F.gelu(x, approximate="tanh"), 2048, False),
        (F.silu, 512, True), (F.relu, 768, False),
    ],
)  # fmt: skip
def test_products_that_are_one_fusion_are_not_marked(activation, features, fused):
    with torch.device("meta"):
        x, w, b = torch.empty(2, features, dtype=BF16), torch.empty(8, features, dtype=BF16), torch.empty(8, dtype=BF16)
    assert marked(lambda x, w, b: activation(F.linear(x, w, b)) @ w, x, w, b) == ([] if fused else ["addmm"])


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.relu(self.up(x)))


def test_values_and_gradients():
    torch.manual_seed(0)
    model, x = Feed().to("tpu", BF16), torch.randn(32, 64, dtype=BF16).to("tpu")
    results = []
    for run in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        y = run(x)
        y.float().square().mean().backward()
        results.append((y.detach(), model.up.weight.grad, model.down.bias.grad))
    assert torch.equal(results[0][0].cpu(), results[1][0].cpu())
    torch.testing.assert_close(results[1][1:], results[0][1:])
