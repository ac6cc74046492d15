"""Eager modes, and when an index out of range is reported."""

import traceback

import pytest
import torch

from device.support import run

# Symptom: an index out of range raises IndexError (at the latest at the next synchronization).
BAD = {
    "gather": lambda t: torch.gather(t, 0, torch.tensor([9], device="tpu")),
    "index": lambda t: t[torch.tensor([9], device="tpu")],
    "index_select": lambda t: t.index_select(0, torch.tensor([9], device="tpu")),
    "embedding": lambda t: torch.nn.functional.embedding(torch.tensor([9], device="tpu"), t[:, None]),
    "scatter_": lambda t: t.scatter_(0, torch.tensor([9], device="tpu"), 1.0),
    "index_put_": lambda t: t.index_put_((torch.tensor([-9], device="tpu"),), torch.ones(1, device="tpu")),
    "take": lambda t: t.take(torch.tensor([9], device="tpu")),
}


def mode(name):
    return torch.tpu.set_eager_mode(torch.tpu.EagerMode[name])


@pytest.mark.parametrize("name", BAD)
def test_reported_by_the_next_synchronization(name):
    for wait in (torch.tpu.synchronize, torch.accelerator.synchronize, lambda: torch.ones(1, device="tpu").item(),
                 lambda: torch.ones(1, device="tpu").cpu(), lambda: repr(torch.ones(1, device="tpu"))):  # fmt: skip
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
            BAD[name](torch.zeros(4, device="tpu"))
            wait()
        torch.tpu.synchronize()  # reported once
    assert torch.ones(2, device="tpu").tolist() == [1, 1]


@pytest.mark.parametrize("name", BAD)
def test_reported_at_the_line_when_blocking(name):
    with mode("DEFER_NEVER_AND_LAUNCH_BLOCKING"), pytest.raises((IndexError, RuntimeError), match="out of") as e:
        BAD[name](torch.zeros(4, device="tpu"))
    lines = [f.line for f in traceback.extract_tb(e.value.__traceback__) if f.filename == __file__]
    assert len(lines) == 2  # this line, and the one in the table


def test_negative_and_good_indices_are_no_error():
    t = torch.arange(4.0, device="tpu")
    with mode("DEFER_NEVER_AND_LAUNCH_BLOCKING"):
        assert t[torch.tensor([-1, 3, 0], device="tpu")].tolist() == [3, 3, 0]
        assert (t + 1).tolist() == [1, 2, 3, 4]


def test_selecting_a_mode():
    before = torch.tpu.eager_mode()
    with torch.tpu.set_eager_mode("DEFER_NEVER_AND_LAUNCH_BLOCKING"):
        assert torch.tpu.eager_mode() is torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
    assert torch.tpu.eager_mode() is before
    with pytest.raises(KeyError):
        torch.tpu.set_eager_mode("NONSENSE")
    assert torch.tpu.eager_mode() is before


def test_the_environment_selects_it():
    run(
        """
        import torch
        assert torch.tpu.eager_mode() is torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
        try:
            torch.zeros(3, device="tpu")[torch.tensor([5], device="tpu")]
        except IndexError as e:
            assert "out of" in str(e)
        else:
            raise SystemExit("no error at the line")
        """,
        TORCH_TPU_LAUNCH_BLOCKING="1",
    )


@pytest.mark.parametrize("name", ["highest", "high", "medium"])
def test_precision(name):
    before = torch.get_float32_matmul_precision()
    with torch.tpu.precision(name):
        assert torch.get_float32_matmul_precision() == name
    with torch.tpu.precision(torch.tpu.Precision.HIGH):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before == "highest"
