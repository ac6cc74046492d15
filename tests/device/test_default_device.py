"""``torch.set_default_device("tpu")``: what makes host tensors inside must say so."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def default_device():
    torch.set_default_device("tpu")
    yield
    torch.set_default_device(None)


def test_factories_modules_and_random_operators_follow_it():
    layer = torch.nn.Linear(3, 3)
    layer(torch.randn(2, 3)).sum().backward()
    assert {layer.weight.device.type, layer.weight.grad.device.type} == {"tpu"}
    assert torch.randperm(5).sort()[0].tolist() == [0, 1, 2, 3, 4]
    assert torch.multinomial(torch.ones(4), 2).device.type == "tpu"


def test_reading_goes_to_the_host():
    x = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    assert x.cpu().device.type == "cpu"
    assert x.tolist() == [[1.0, -2.0], [3.0, 4.0]]
    assert x[x > 0].shape == (3,)
    assert "4." in repr(x)
    assert x.sum().item() == 6.0


def test_saving_and_loading(tmp_path):
    x = torch.tensor([1.0, 2.0])
    torch.save({"x": x, "tail": x[1:]}, tmp_path / "f.pt")
    found = torch.load(tmp_path / "f.pt")
    assert found["x"].device.type == "tpu" and found["tail"].tolist() == [2.0]
    assert torch.load(tmp_path / "f.pt", map_location="cpu")["x"].device.type == "cpu"
