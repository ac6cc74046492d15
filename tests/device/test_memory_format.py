"""Images and volumes that are channels_last stay so, forward and backward, as on CPU."""

import copy

import pytest
import torch
from torch import nn

IMAGE, VOLUME = (2, 4, 6, 6), (1, 4, 5, 5, 5)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
LAYERS = {
    "conv": (lambda: nn.Conv2d(4, 8, 3, padding=1), IMAGE),
    "conv of one": (lambda: nn.Conv2d(4, 6, 1), IMAGE),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), IMAGE),
    "transposed": (lambda: nn.ConvTranspose2d(4, 2, 3, stride=2), IMAGE),
    "volume": (lambda: nn.Conv3d(4, 2, 3, groups=2), VOLUME),  # not in groups, CPU has another algorithm for so few
    "norm": (lambda: nn.BatchNorm2d(4), IMAGE),
    "pool": (lambda: nn.MaxPool2d(2), IMAGE),
    "shuffle": (lambda: nn.PixelShuffle(2), IMAGE),
    "reflection": (lambda: nn.ReflectionPad2d(1), IMAGE),
    "all": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 3)), IMAGE),
}


def results(layer: nn.Module, x: torch.Tensor, device: str) -> list[torch.Tensor]:
    layer, x = copy.deepcopy(layer).to(device), x.to(device).detach().requires_grad_()
    y = layer(x)
    (y * y).sum().backward()
    return [t for t in (y.detach(), x.grad, *(p.grad for p in layer.parameters())) if t is not None]


@pytest.mark.parametrize("of", ["input", "weight"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_keep_the_format(name, of):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    last = LAST[len(shape)]
    if of == "input":
        x = x.to(memory_format=last)
    else:
        layer = layer.to(memory_format=last)
    expected, got = results(layer, x, "cpu"), results(layer, x, "tpu")
    assert got[0].stride() == expected[0].stride()
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
