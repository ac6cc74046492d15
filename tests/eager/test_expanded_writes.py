"""In place on expanded tensors: what CPU writes, the device writes; what CPU refuses, it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

MASK = torch.eye(4, 3).bool()
PLACES, NEW = torch.tensor([[0, 1], [1, 2]]), torch.tensor([7.0, 8])

WRITTEN: dict[str, Callable[[torch.Tensor], object]] = {
    "fill_": lambda x: x.fill_(5),
    "zero_": lambda x: x.zero_(),
    "fill_ of a transposed view": lambda x: x.t().fill_(3),
    "masked_fill_": lambda x: x.masked_fill_(MASK.to(x.device), 9),
    "masked_fill_ by a tensor": lambda x: x.masked_fill_(MASK.to(x.device), torch.tensor(9.0)),
    "masked_fill_ with NaN": lambda x: x.masked_fill_(MASK.to(x.device), float("nan")),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1, 3]).to(x.device), 4),
    "index_put_": lambda x: x.index_put_((PLACES[0].to(x.device), PLACES[1].to(x.device)), NEW.to(x.device)),
    "assignment by a mask": lambda x: x.__setitem__(MASK.to(x.device), 3.0),
    "full(out=)": lambda x: torch.full((4, 3), 2.0, out=x),
    "_foreach_zero_": lambda x: torch.ops.aten._foreach_zero_([x]),
}  # fmt: skip
REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "add_": lambda x: x.add_(1),
    "copy_": lambda x: x.copy_(torch.ones(4, 3)),
    "normal_": lambda x: x.normal_(),
    "scatter_": lambda x: x.scatter_(1, torch.zeros(4, 1, dtype=torch.int64).to(x.device), 5.0),
    "add(out=)": lambda x: torch.add(torch.ones(4, 3).to(x.device), 1, out=x),
}


def expanded(device: str, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.arange(4.0 + offset).to(device)
    return base, base[offset:].reshape(4, 1).expand(4, 3)


@pytest.mark.parametrize("offset", [0, 2])  # the whole base, and a part of it
@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.filterwarnings("ignore:Use of")
def test_written_like_on_cpu(write, offset):
    base, x = expanded("cpu", offset)
    write(x)
    on_tpu, y = expanded("tpu", offset)
    write(y)
    torch.testing.assert_close(on_tpu.cpu(), base, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("write", REFUSED.values(), ids=REFUSED)
def test_refused_like_on_cpu(write):
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            write(expanded(device)[1])


def test_large_ones_go_through_a_program():
    x = torch.arange(9000.0, device="tpu")
    x.reshape(-1, 1).expand(-1, 2)[:8999].fill_(1)
    assert x.sum().item() == 8999 + 8999
