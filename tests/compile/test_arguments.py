"""Arguments of compiled functions that are no plain tensors: nested tensors and generators."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from compile.support import compilations

RNG = torch.Generator().manual_seed(0)
COMPONENTS = [torch.randn(3, 4, generator=RNG), torch.randn(5, 4, generator=RNG)]


def jagged(device: str, components: list[torch.Tensor] = COMPONENTS, **how: bool) -> torch.Tensor:
    return torch.nested.nested_tensor(components, layout=torch.jagged, **how).to(device)


def dense(x: torch.Tensor) -> torch.Tensor:
    return (x.values() if x.is_nested else x).cpu()


LINEAR = nn.Linear(4, 4)
JAGGED = {
    "pointwise": lambda x, layer: (x * 2).relu() + x,
    "linear": lambda x, layer: layer(x),
    "last dimension": lambda x, layer: x.softmax(-1).sum(-1),
    "ragged dimension": lambda x, layer: x.sum(1),
    "padded": lambda x, layer: torch.nested.to_padded_tensor(x, -1.0),
    "values": lambda x, layer: x.values().mean(0),
}


@pytest.mark.parametrize("what", JAGGED)
def test_a_jagged_tensor(what):
    torch._dynamo.reset()
    expected = JAGGED[what](jagged("cpu"), LINEAR.cpu())
    got = torch.compile(JAGGED[what], fullgraph=True)(jagged("tpu"), LINEAR.to("tpu"))
    assert got.device.type == "tpu" and got.is_nested == expected.is_nested
    torch.testing.assert_close(dense(got), dense(expected))


def test_the_same_program_for_another_jagged_tensor():
    """Each has a size of its own, which is no number."""
    counted = CompileCounterWithBackend("tpu")
    f = torch.compile(lambda x: x.relu() * 3, backend=counted, dynamic=True)
    f(jagged("tpu"))
    before = compilations()
    for components in (COMPONENTS[::-1], [torch.ones(6, 4), torch.ones(2, 4)]):
        got = f(jagged("tpu", components))
        torch.testing.assert_close(dense(got), dense(jagged("cpu", components).relu() * 3))
    assert compilations() == before and counted.frame_count == 1


def test_the_gradient_of_a_jagged_tensor():
    def step(x, layer):
        return layer(x).values().square().sum()

    grads = []
    for device, run in (("cpu", step), ("tpu", torch.compile(step, fullgraph=True))):
        x, layer = jagged(device).detach().requires_grad_(), LINEAR.to(device)
        layer.zero_grad()
        run(x, layer).backward()
        assert x.grad is not None and layer.weight.grad is not None
        grads.append((dense(x.grad), dense(layer.weight.grad)))
    torch.testing.assert_close(grads[1], grads[0])


def noisy(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (x * 2 + torch.randn(4, generator=generator, device=x.device)).sin()


def with_a_seed(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    generator.manual_seed(7)
    return torch.empty_like(x).uniform_(generator=generator) + x


def made_inside(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return noisy(x, torch.Generator("tpu").manual_seed(3))


@pytest.mark.parametrize("backend", ["tpu", "eager"])
@pytest.mark.parametrize("f", [noisy, with_a_seed, made_inside])
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_generator_ends_the_graph(f, backend):
    torch._dynamo.reset()
    x, generator = torch.ones(4, device="tpu"), torch.Generator("tpu").manual_seed(5)
    expected = [f(x, generator) for _ in range(2)]
    generator.manual_seed(5)
    compiled = torch.compile(f, backend=backend)
    torch.testing.assert_close([compiled(x, generator) for _ in range(2)], expected)


def test_a_generator_in_one_graph_is_refused_with_the_line():
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(?s)Generator.*test_arguments.py.*torch.randn"):
        torch.compile(noisy, fullgraph=True)(torch.ones(4, device="tpu"), torch.Generator("tpu"))
