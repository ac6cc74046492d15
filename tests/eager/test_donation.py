"""In-place operators take their operand's memory when nobody else holds it, and leave it alone when somebody does."""

from __future__ import annotations

import pytest
import torch

from torch_tpu.binding.tensor import buffer_of

IN_PLACE = {
    "add_": lambda x: x.add_(1),
    "mul_ by a tensor": lambda x: x.mul_(torch.full_like(x, 2.0)),
    "a row": lambda x: x[1].add_(1),
    "copy_ into a column": lambda x: x[:, 0].copy_(torch.ones(x.shape[0], device="tpu")),
    "index_put_": lambda x: x.index_put_((torch.tensor([0], device="tpu"),), torch.ones(x.shape[1], device="tpu")),
    "out=": lambda x: torch.add(torch.ones(4, device="tpu"), 1, out=x[2]),
    "foreach": lambda x: (torch._foreach_mul_([x], 2.0), x.sum().item()),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_memory_is_taken(name):
    x = torch.ones(4, 4, device="tpu") + 0
    old = []
    buffer = buffer_of(x)
    old.append(buffer.force().unsafe_buffer_pointer())
    IN_PLACE[name](x)
    assert buffer.force().unsafe_buffer_pointer() == old[0]


@pytest.mark.parametrize("name", IN_PLACE)
def test_memory_that_is_held_is_kept(name):
    x = torch.ones(4, 4, device="tpu") + 0
    held = buffer_of(x).force()
    copy = x.clone()  # shares the array
    IN_PLACE[name](x)
    x.cpu()
    assert not held.is_deleted()
    assert copy.tolist() == [[1.0] * 4] * 4


def test_an_operand_that_is_its_own_target():
    x = torch.full((4,), 3.0, device="tpu")
    x.mul_(x)
    x[2:].add_(x[:2])
    assert x.tolist() == [9.0, 9.0, 18.0, 18.0]
