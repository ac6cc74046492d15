"""Printing: the same text as CPU's with the device named, and no program compiled for it."""

import pytest
import torch

VALUES = {
    "float": torch.tensor([1.5, -2.0, 3e10]),
    "nan": torch.tensor([float("nan"), float("inf"), 0.0]),
    "double": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
    "bfloat16": torch.tensor([1.0, 2.5], dtype=torch.bfloat16),
    "half": torch.tensor([1.0, 2.5], dtype=torch.float16),
    "float8": torch.tensor([1.0, 2.5]).to(torch.float8_e4m3fn),
    "int": torch.arange(5),
    "int8": torch.tensor([-1, 100], dtype=torch.int8),
    "uint16": torch.tensor([1, 100], dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j, -3j]),
    "scalar": torch.tensor(3.25),
    "empty": torch.empty(0),
    "empty shape": torch.empty(2, 0),
    "large": torch.arange(5000.0).view(50, 100),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "conjugate": torch.tensor([1 + 2j]).conj(),
}


@pytest.mark.parametrize("name", VALUES)
def test_repr(name):
    t = VALUES[name]
    there = t.to("tpu")
    made = torch.tpu.compiler.stats()["programs"]
    text = repr(there)
    if name not in ("conjugate",):
        assert torch.tpu.compiler.stats()["programs"] == made
    assert "device='tpu:0'" in text
    plain = text.replace("device='tpu:0'", "").replace(" ", "").replace("\n", "").replace(",", "")
    assert plain == repr(t).replace(" ", "").replace("\n", "").replace(",", "")
    assert str(there) == text


def test_autograd_annotations():
    x = torch.ones(2, device="tpu", requires_grad=True)
    assert repr(x) == "tensor([1., 1.], device='tpu:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(x * 2)
    assert repr(torch.nn.Parameter(x.detach())).startswith("Parameter containing:\ntensor([1., 1.], device='tpu:0'")
    assert "Linear(in_features=2" in repr(torch.nn.Linear(2, 2).to("tpu"))


def test_views_print_without_programs():
    t = torch.arange(2000.0, device="tpu").view(20, 100)
    made = torch.tpu.compiler.stats()["programs"]
    for v in (t[3], t[:, 5], t.t(), t[2:4, ::7], t.view(-1)[13:]):
        assert "tpu:0" in repr(v)
    assert torch.tpu.compiler.stats()["programs"] == made


def test_formatting_and_options():
    t = torch.tensor(2.5, device="tpu")
    assert f"{t:.2f}" == "2.50" and f"{t}" == "2.5" and f"{t:.1f}" == "2.5"
    with torch._tensor_str.printoptions(precision=2, sci_mode=False):
        assert "1.23" in repr(torch.tensor([1.2345], device="tpu"))


def test_lists_and_numbers():
    t = torch.arange(3, device="tpu")
    assert [int(x) for x in t] == [0, 1, 2] and t.tolist() == [0, 1, 2]
    assert float(torch.tensor(2.5, device="tpu")) == 2.5 and bool(torch.tensor(1, device="tpu"))
    assert complex(torch.tensor(1 + 2j, device="tpu")) == 1 + 2j
    assert list(range(5))[torch.tensor(2, device="tpu")] == 2  # __index__
    assert torch.tensor(2**53 + 1, device="tpu").item() == 2**53 + 1
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value"):
        bool(torch.ones(2, device="tpu"))
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.ones(2, device="tpu").item()
    assert torch.tensor(3.0, device="tpu").__format__("") == "3.0"
    assert len(torch.ones(4, 2, device="tpu")) == 4 and (1.0 in torch.ones(2, device="tpu"))
