"""Products of flattened operands are computed in the operand's own dimensions; values, gradients and aliases stay."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tpu.compile import products

F = nn.functional
X, W, B = torch.ones(2, 3, 5, 8), torch.ones(8, 8), torch.ones(8)


def left_dims(f, *args: torch.Tensor, mode: str = "fake") -> list[int]:
    """How many dimensions the left operand of each product has."""
    graph = make_fx(f, tracing_mode=mode)(*args)
    products.unflatten(graph)
    graph.graph.lint()
    found = [(n, products._LEFT[n.target]) for n in graph.graph.nodes if n.target in products._LEFT]
    return [n.args[at].meta["val"].dim() for n, at in found]


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x, w, b: F.linear(x, w, b), [4]),
        (lambda x, w, b: F.linear(F.relu(F.linear(x, w)), w, b), [4, 4]),
        (lambda x, w, b: F.linear(x[0, 0], w, b), [2]),  # was a matrix
        (lambda x, w, b: x.view(30, 8) @ w, [4]),
        (lambda x, w, b: x.view(15, 16) @ w.view(4, 16).t(), [2]),  # other features: no flattening
        (lambda x, w, b: torch.addmm(x.view(30, 8), x.view(30, 8), w), [2]),  # its bias belongs to the rows
        (lambda x, w, b: torch.addmm(b[:1], x.view(30, 8), w, beta=2, alpha=3), [4]),
        (lambda x, w, b: F.linear(x[:0], w, b), [2]),  # nothing to multiply
    ],
)
def test_which_are_rewritten(f, expected):
    assert left_dims(f, X, W, B) == expected


def test_sizes_that_are_not_known_are_left():
    assert left_dims(lambda x, w: F.linear(x, w), X, W, mode="symbolic") == [2]


def test_a_backward_graph_keeps_whole_tiles_as_matrices():
    for length, dims in ((5, 3), (16, 2)):
        graph = make_fx(lambda x, w: F.linear(x, w), tracing_mode="fake")(torch.ones(2, length, 8), W)
        products.unflatten(graph, backward=True)
        assert [n.args[0].meta["val"].dim() for n in graph.graph.nodes if n.target in products._LEFT] == [dims]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.up(x)
        return self.down(F.gelu(h)), h.flatten(0, -2)  # the flattened product is a result itself


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(2, 5, 8), (2, 1, 5, 8), (1, 1, 8)])
def test_values_and_gradients(dtype, shape):
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, x = Net().to(dtype), torch.randn(shape, dtype=dtype)
    results = []
    for device, wrap in (("cpu", lambda m: m), ("tpu", lambda m: torch.compile(m, fullgraph=True))):
        model = Net().to(dtype)
        model.load_state_dict(net.state_dict())
        model.to(device)
        given = x.detach().to(device).requires_grad_()
        y, flat = wrap(model)(given)
        assert y.shape == shape and flat.shape == (x.numel() // 8, 16) and flat.is_contiguous()
        (y.float().square().sum() + flat.float().sin().sum()).backward()
        results.append([t.detach().cpu() for t in (y, flat, given.grad, model.up.weight.grad, model.down.weight.grad)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_integers_have_their_products_too():
    x, w = torch.randint(-9, 9, (2, 3, 4)), torch.randint(-9, 9, (4, 5))
    f = torch.compile(lambda x, w: (x.view(6, 4) @ w).view(2, 3, 5), fullgraph=True)
    assert torch.equal(f(x.to("tpu"), w.to("tpu")).cpu(), x @ w)
