"""About forty modules of torch.nn: result, gradients of inputs and of parameters as on CPU."""

import copy

import pytest
import torch
from torch import nn

from device.support import check, on


def r(*shape):
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(1))


CASES = {
    "Linear": (lambda: nn.Linear(5, 3), [r(4, 5)]),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 2), [r(5, 3), r(5, 4)]),
    "Identity": (nn.Identity, [r(3)]),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), [r(2, 3, 8)]),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), [r(2, 4, 8, 8)]),
    "Conv2d dilated": (lambda: nn.Conv2d(2, 3, 3, dilation=2, padding="same", padding_mode="reflect"), [r(1, 2, 8, 8)]),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), [r(1, 2, 4, 4, 4)]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 2, 3, 2, 1, 1), [r(1, 3, 5, 5)]),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), [r(6, 4)]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), [r(2, 3, 4, 4)]),
    "BatchNorm2d eval": (lambda: nn.BatchNorm2d(3).eval(), [r(2, 3, 4, 4)]),
    "LayerNorm": (lambda: nn.LayerNorm([4, 5]), [r(3, 4, 5)]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [r(2, 4, 5)]),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), [r(2, 3, 4, 4)]),
    "RMSNorm": (lambda: nn.RMSNorm(5), [r(3, 5)]),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), [r(1, 4, 3, 3)]),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=1), [lambda: torch.tensor([[0, 1], [6, 2]])]),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(7, 3, mode="mean"), [lambda: torch.tensor([[0, 1], [6, 2]])]),
    "RNN": (lambda: nn.RNN(3, 4, 2), [r(5, 2, 3)]),
    "LSTM": (lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), [r(2, 5, 3)]),
    "GRU": (lambda: nn.GRU(3, 4), [r(5, 2, 3)]),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), [r(2, 3)]),
    "GRUCell": (lambda: nn.GRUCell(3, 4), [r(2, 3)]),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), [r(2, 5, 8)] * 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), [r(2, 5, 8)]),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0), [r(5, 2, 8), r(4, 2, 8)]),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1), [r(1, 2, 7, 7)]),
    "MaxPool2d indices": (lambda: nn.MaxPool2d(2, return_indices=True), [r(1, 2, 6, 6)]),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), [r(1, 2, 6)]),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), [r(1, 2, 7, 7)]),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((2, 3)), [r(1, 2, 7, 7)]),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), [r(1, 2, 7)]),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), [r(1, 2, 6, 6)]),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), [r(1, 2, 3, 3)]),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), [r(1, 8, 3, 3)]),
    "Unfold": (lambda: nn.Unfold(2), [r(1, 2, 4, 4)]),
    "Fold": (lambda: nn.Fold((4, 4), 2), [r(1, 8, 9)]),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(1), [r(1, 2, 4, 4)]),
    "ReplicationPad1d": (lambda: nn.ReplicationPad1d(2), [r(1, 2, 4)]),
    "ZeroPad2d": (lambda: nn.ZeroPad2d((1, 2, 0, 1)), [r(1, 2, 3, 3)]),
    "Flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 6))), [r(3, 3, 4)]),
    "Softmax": (lambda: nn.Softmax(-1), [r(3, 4)]),
    "GLU": (lambda: nn.GLU(), [r(3, 4)]),
    "PReLU": (lambda: nn.PReLU(4), [r(3, 4)]),
    "activations": (
        lambda: nn.Sequential(
            nn.GELU(), nn.SiLU(), nn.Mish(), nn.ELU(), nn.SELU(), nn.Softplus(), nn.Hardswish(),
            nn.LeakyReLU(), nn.Tanh(),
            nn.Hardtanh(), nn.Softsign(), nn.LogSigmoid(), nn.CELU(), nn.ReLU6(), nn.Hardshrink(0.01), nn.Tanhshrink(),
        ), [r(6, 5)],
    ),
    "AdaptiveLogSoftmax": (lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 10, [3, 6]),
    [r(4, 6), lambda: torch.tensor([0, 4, 7, 9])]),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(), [r(3, 4), lambda: torch.ones(3, 4)]),
    "PairwiseDistance": (lambda: nn.PairwiseDistance(), [r(3, 4), lambda: torch.ones(3, 4)]),
}  # fmt: skip


def outputs(x):
    if isinstance(x, torch.Tensor):
        return [x]
    return [t for v in x for t in outputs(v)] if isinstance(x, (list, tuple)) else []


@pytest.mark.parametrize("name", CASES)
def test_as_on_cpu(name):
    make, inputs = CASES[name]
    torch.manual_seed(0)
    host = make()
    there = copy.deepcopy(host).to("tpu")
    results = []
    for m, device in ((host, "cpu"), (there, "tpu")):
        args = [on(f(), device) for f in inputs]
        leaves = [a.requires_grad_() for a in args if a.is_floating_point()]
        out = outputs(m(*args))
        sum((o * o.detach().cos()).sum() for o in out if o.requires_grad).backward()
        results.append([out, [p.grad for p in m.parameters()], [a.grad for a in leaves], list(m.buffers())])
    check(results[1], results[0], rtol=1e-4, atol=1e-4)


LOSSES = {
    "CrossEntropy": (
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1),
        r(4, 5),
        lambda: torch.tensor([0, 1, 4, 2]),
    ),
    "CrossEntropy soft": (nn.CrossEntropyLoss, r(4, 5), lambda: torch.full((4, 5), 0.2)),
    "NLL": (nn.NLLLoss, r(4, 5), lambda: torch.tensor([0, 1, 4, 2])),
    "MSE": (nn.MSELoss, r(4, 5), lambda: torch.zeros(4, 5)),
    "L1": (nn.L1Loss, r(4, 5), lambda: torch.zeros(4, 5)),
    "SmoothL1": (nn.SmoothL1Loss, r(4, 5), lambda: torch.zeros(4, 5)),
    "Huber": (nn.HuberLoss, r(4, 5), lambda: torch.zeros(4, 5)),
    "BCEWithLogits": (nn.BCEWithLogitsLoss, r(4, 5), lambda: torch.ones(4, 5)),
    "BCE": (nn.BCELoss, lambda: torch.rand(4, 5), lambda: torch.ones(4, 5)),
    "KLDiv": (lambda: nn.KLDivLoss(reduction="batchmean"), r(4, 5), lambda: torch.full((4, 5), 0.2)),
    "PoissonNLL": (nn.PoissonNLLLoss, r(4, 5), lambda: torch.ones(4, 5)),
    "MultiMargin": (nn.MultiMarginLoss, r(4, 5), lambda: torch.tensor([0, 1, 4, 2])),
    "SoftMargin": (nn.SoftMarginLoss, r(4, 5), lambda: torch.ones(4, 5)),
    "HingeEmbedding": (nn.HingeEmbeddingLoss, r(4, 5), lambda: torch.ones(4, 5)),
    "MultiLabelSoftMargin": (nn.MultiLabelSoftMarginLoss, r(4, 5), lambda: torch.ones(4, 5)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    make, x, y = LOSSES[name]
    torch.manual_seed(0)
    x, y = x(), y()
    results = []
    for device in ("cpu", "tpu"):
        leaf = x.detach().clone().to(device).requires_grad_()
        loss = make()(leaf, y.to(device))
        loss.backward()
        results.append([loss, leaf.grad])
    check(results[1], results[0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_transformer_encoder_with_a_padding_mask():
    """Where CPU and CUDA make a nested tensor, and leave zeros at the padding."""
    torch.manual_seed(0)
    m = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2).eval()
    x, mask = r(2, 3, 8)(), torch.tensor([[False, False, True], [False, False, False]])
    expected = m(x, src_key_padding_mask=mask)
    got = m.to("tpu")(x.to("tpu"), src_key_padding_mask=mask.to("tpu")).cpu()
    torch.testing.assert_close(got[~mask], expected[~mask], atol=1e-5, rtol=1e-5)
