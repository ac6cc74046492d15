"""Assertions on values: raised when the device is next waited for, without the host, eager and compiled alike."""

import pytest
import torch


def told(x):
    torch._assert_async(x.sum() == 0, "the sum of {x} is zero")
    return x + 1


@pytest.mark.parametrize("run", [told, torch.compile(told, fullgraph=True)], ids=["eager", "compiled"])
def test_a_false_value_raises_at_the_next_synchronization(run):
    before = torch.tpu.fallback_counts()
    run(torch.zeros(3, device="tpu"))
    torch.tpu.synchronize()
    run(torch.ones(3, device="tpu"))
    with pytest.raises(RuntimeError, match=r"the sum of \{x\} is zero"):
        torch.tpu.synchronize()
    assert torch.tpu.fallback_counts() == before


def test_a_graph_that_only_asserts():
    @torch.compile(fullgraph=True)
    def only(x):
        torch._assert_async(x.sum() == 0, "nothing else")  # PyTorch drops one without a message

    only(torch.ones(3, device="tpu"))
    with pytest.raises(RuntimeError, match="nothing else"):
        torch.tpu.synchronize()


def test_more_than_one_value_is_ambiguous():
    with pytest.raises(RuntimeError, match="ambiguous"):
        torch._assert_async(torch.ones(3, device="tpu"))


def test_aminmax_of_old_name():
    x = torch.randn(3, 4)
    for args in ((), (0,), (1, True)):
        for got, expected in zip(torch._aminmax(x.to("tpu"), *args), torch._aminmax(x, *args), strict=True):
            torch.testing.assert_close(got.cpu(), expected)
