"""CTC loss and its gradient, against PyTorch on CPU.

ATen leaves the part of ``log_alpha`` beyond a sequence's end uninitialized, so only the rest is compared.
"""

import jax
import jax.numpy as jnp
import pytest
import torch
from harness import run, to_array, to_tensor

from torch_tpu.lowering import ctc, registry

INPUT_LENGTHS, TARGET_LENGTHS = [12, 9, 7, 12], [4, 3, 0, 5]
CLASSES = 6


def case(dtype, kind, blank, lengths=(INPUT_LENGTHS, TARGET_LENGTHS)):
    frames, labels = lengths
    log_probs = torch.randn(12, len(frames), CLASSES, dtype=dtype).log_softmax(2)
    targets = torch.randint(0, CLASSES - 1, (len(frames), max(labels)))
    targets = torch.where(targets >= blank, targets + 1, targets)
    targets[0, 1] = targets[0, 0]  # a repeated label needs a blank between
    if kind == "concatenated":
        targets = torch.cat([t[:n] for t, n in zip(targets, labels, strict=True)])
    return log_probs, targets, frames, labels, blank


def compare(got, expected, dtype):
    tolerance = 2e-5 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["padded", "concatenated"])
@pytest.mark.parametrize("blank", [0, 2, CLASSES - 1])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc(dtype, kind, blank, zero_infinity):
    args = case(dtype, kind, blank)
    loss, alpha = torch.ops.aten._ctc_loss(*args, zero_infinity)
    got_loss, got_alpha = run("aten::_ctc_loss", *args, zero_infinity)
    compare(got_loss, loss, dtype)
    for n, (frames, labels) in enumerate(zip(INPUT_LENGTHS, TARGET_LENGTHS, strict=True)):
        compare(got_alpha[n, :frames, : 2 * labels + 1], alpha[n, :frames, : 2 * labels + 1], dtype)
    grad = torch.randn(4, dtype=dtype)
    rest = (*args[:4], loss, alpha, blank, zero_infinity)
    compare(run("aten::_ctc_loss_backward", grad, *rest)[0], torch.ops.aten._ctc_loss_backward(grad, *rest), dtype)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_target_longer_than_input(zero_infinity):
    log_probs, targets, frames, labels, blank = case(torch.float64, "padded", 0, ([3, 12], [5, 2]))
    loss, alpha = torch.ops.aten._ctc_loss(log_probs, targets, frames, labels, blank, zero_infinity)
    assert loss[0] == float("inf")
    got = run("aten::_ctc_loss", log_probs, targets, frames, labels, blank, zero_infinity)[0]
    compare(got, loss, torch.float64)
    rest = (torch.ones(2).double(), log_probs, targets, frames, labels, loss, alpha, blank, zero_infinity)
    expected = torch.ops.aten._ctc_loss_backward(*rest)
    compare(run("aten::_ctc_loss_backward", *rest)[0], expected, torch.float64)


def test_lengths_as_tensors():
    log_probs, targets, frames, labels, blank = case(torch.float64, "padded", 0)
    frames, labels = torch.tensor(frames), torch.tensor(labels)
    loss, alpha = torch.ops.aten._ctc_loss.Tensor(log_probs, targets, frames, labels, blank)
    compare(run("aten::_ctc_loss.Tensor", log_probs, targets, frames, labels, blank)[0], loss, torch.float64)
    rest = (torch.ones(4).double(), log_probs, targets, frames, labels, loss, alpha, blank)
    expected = torch.ops.aten._ctc_loss_backward.Tensor(*rest)
    compare(run("aten::_ctc_loss_backward.Tensor", *rest)[0], expected, torch.float64)


def test_other_lengths_are_the_same_program():
    log_probs, targets, frames, labels, blank = case(torch.float64, "padded", 0)
    traces = []

    def loss(log_probs, targets, frames, labels):
        traces.append(1)
        meta = (registry.Meta((4,), torch.float64), registry.Meta((4, 12, 11), torch.float64))
        return ctc.ctc_loss(log_probs, targets, frames, labels, blank, meta=meta)[0]

    with jax.enable_x64(True):
        program = jax.jit(loss)
        for f, t in ((frames, labels), ([10, 11, 12, 8], [5, 2, 3, 1])):
            expected = torch.ops.aten._ctc_loss(log_probs, targets, f, t, blank)[0]
            numbers = [[jnp.asarray(v, jnp.int64) for v in lengths] for lengths in (f, t)]
            compare(to_tensor(program(to_array(log_probs), to_array(targets), *numbers)), expected, torch.float64)
    assert len(traces) == 1
