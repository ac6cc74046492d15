"""Values that CPU's kernels refuse, and types that only its meta kernels do not take."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

BYTES = torch.tensor([0, 1, 1, 0], dtype=torch.uint8)
SCORES = torch.linspace(-1, 1, 12).reshape(4, 3)


def on(device: str, *values: object, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).to(device)


def bags(device: str, *offsets: int) -> torch.Tensor:
    return F.embedding_bag(on(device, 0, 1, 2), torch.ones(4, 2).to(device), on(device, *offsets))


REFUSED = {
    "celu without alpha": (lambda d: F.celu(on(d, 1.0, -1.0), alpha=0.0), "alpha cannot be 0"),
    "bags that begin late": (lambda d: bags(d, 1, 2), r"offsets\[0\] has to be 0"),
    "bags beyond the end": (lambda d: bags(d, 0, 5), r"offsets\[-1\] can not be greater than input's length 3"),
    "bags in another order": (lambda d: bags(d, 0, 2, 1), "Expected i < index_size|must not decrease"),
    "sorter": (
        lambda d: torch.searchsorted(on(d, 1.0, 2.0, 3.0), on(d, 2.0), sorter=on(d, 0, 1, 7)),
        "sorter index out of range",
    ),
    "svdvals": (lambda d: torch.linalg.svdvals(torch.full((2, 2), torch.nan).to(d)), "non-finite"),
    "svd of one of two": (lambda d: torch.linalg.svd(on(d, [[1.0]], [[torch.nan]]).expand(2, 2, 2)), "non-finite"),
    "pinv": (lambda d: torch.linalg.pinv(torch.full((2, 3), torch.nan).to(d)), "non-finite"),
    "multilabel": (lambda d: F.multilabel_margin_loss(torch.ones(1, 3).to(d), on(d, [0, 5, -1])), "out of range"),
    "//": (lambda d: on(d, 1, 2) // on(d, 0, 1), "ZeroDivisionError"),
    "%": (lambda d: on(d, 1, 2, dtype=torch.uint8) % on(d, 0, 1, dtype=torch.uint8), "ZeroDivisionError"),
    "% of a number": (lambda d: [on(d, 1, 2) % n for n in (3, 0)], "ZeroDivisionError"),
    "fmod": (lambda d: torch.fmod(on(d, 1, 2), on(d, 0, 1)), "ZeroDivisionError"),
    "div": (lambda d: torch.div(on(d, 1, 2), on(d, 0, 1), rounding_mode="trunc"), "ZeroDivisionError"),
}  # fmt: skip
TAKEN = {
    "where by bytes": lambda d: torch.where(BYTES.to(d), SCORES[:, 0].to(d), SCORES[:, 1].to(d)),
    "where of numbers by bytes": lambda d: torch.where(BYTES.to(d), 1.0, 2.0),
    "nll_loss of bytes": lambda d: F.nll_loss(SCORES.to(d), BYTES.to(d), weight=on(d, 1.0, 2.0, 3.0)),
    "cross_entropy of bytes": lambda d: F.cross_entropy(SCORES.to(d), BYTES.to(d)),
    "bool << number": lambda d: on(d, True, False) << 2,
    "bool >> number": lambda d: on(d, True, False) >> 0,
    "float % 0": lambda d: on(d, 1.0, 2.0) % 0,
    "true division by 0": lambda d: on(d, 1, 2) / on(d, 0, 1),
    "// of a bool": lambda d: on(d, 1.5, 2.0) // True,
    "% of a bool": lambda d: on(d, 5, 2) % True,
    "bool filter of zero": lambda d: on(d, 4, 5) // on(d, True, True),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_refused(device, case):
    call, message = case
    with pytest.raises(RuntimeError, match=message):
        call(device)
        torch.accelerator.synchronize()


@pytest.mark.parametrize("call", TAKEN.values(), ids=TAKEN)
@pytest.mark.filterwarnings("ignore:where received a uint8")
def test_taken(call):
    torch.testing.assert_close(call("tpu").cpu(), call("cpu"), equal_nan=True)


def test_gradient_of_byte_targets():
    grads = []
    for device in ("cpu", "tpu"):
        scores = SCORES.clone().to(device).detach().requires_grad_()
        F.nll_loss(scores, BYTES.to(device)).backward()
        assert scores.grad is not None
        grads.append(scores.grad.cpu())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("lengths", [(5, 5), (4, 6), (6, 4)], ids=str)
@pytest.mark.parametrize("kind", [torch.bool, torch.float32], ids=str)
def test_mask_and_causal_together(lengths, kind):
    gen = torch.Generator().manual_seed(0)
    queries, keys = lengths
    mask = torch.randn(queries, keys, generator=gen)
    if kind == torch.bool:
        mask = mask > 0
        mask[:, 0] = True
    q, k, v = (torch.randn(2, 3, n, 4, generator=gen) for n in (queries, keys, keys))
    on_cpu = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=True)
    q, k, v = (t.to("tpu") for t in (q, k, v))
    on_tpu = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to("tpu"), is_causal=True)
    torch.testing.assert_close(on_tpu.cpu(), on_cpu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_frexp_from_the_smallest_to_the_largest(dtype):
    bounds = torch.finfo(dtype)
    x = torch.tensor([bounds.smallest_normal, bounds.max, bounds.min, 0.0, -0.0, 1.0, -0.75, torch.inf], dtype=dtype)
    below = torch.tensor([1, 2, 3, 100], dtype=torch.int64) * bounds.smallest_normal * bounds.eps  # subnormal
    x = torch.cat([x, below.to(dtype), -below.to(dtype)])
    for got, expected in zip(torch.frexp(x.to("tpu")), torch.frexp(x), strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0)
