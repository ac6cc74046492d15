"""torch.kaiser_window, whose kernel PyTorch has for CPU and CUDA only."""

import pytest
import torch


@pytest.mark.parametrize("length", [0, 1, 2, 9])
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kaiser_window(length, periodic, dtype):
    for beta in (12.0, 3.0):
        made = torch.kaiser_window(length, periodic, beta, dtype=dtype, device="tpu")
        torch.testing.assert_close(made.cpu(), torch.kaiser_window(length, periodic, beta, dtype=dtype))


def test_its_arguments_are_checked():
    assert torch.kaiser_window(5, device="tpu").device.type == "tpu"
    with pytest.raises(RuntimeError, match="expects floating point dtypes"):
        torch.kaiser_window(5, dtype=torch.int64, device="tpu")
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.kaiser_window(-5, device="tpu")
