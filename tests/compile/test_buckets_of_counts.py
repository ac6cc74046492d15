"""Operators that look at how many elements there are: the real number counts, not the bucket's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F


def attend(q: torch.Tensor, k: torch.Tensor, **options: object) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k, **options)  # type: ignore[arg-type]


def attend_split(x: torch.Tensor) -> torch.Tensor:
    q = x.view(2, -1, 3, 4).transpose(1, 2)
    return attend(q, q, is_causal=True)


def repeat_keys(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    n, (b, h, length, size) = q.shape[1] // k.shape[1], k.shape
    return attend(q, k[:, :, None].expand(-1, -1, n, -1, -1).reshape(b, h * n, length, size), scale=0.5)


HEADS = [((2, q, 5, 8), (2, k, 8, 8)) for q, k in ((4, 2), (6, 3), (6, 2), (8, 4))]
CASES: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[tuple[int, ...], ...]]]] = {
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), [((2, 4, n),) for n in (5, 6, 9)]),
    "rms_norm": (lambda x: F.rms_norm(x, x.shape[-1:]), [((2, 4, n),) for n in (5, 6, 9)]),
    "group_norm": (lambda x: F.group_norm(x, 2), [((2, 4, n, n),) for n in (5, 6, 9)]),
    "default scale": (lambda x: attend(x, x), [((1, 1, 5, n),) for n in (4, 5, 12)]),
    "heads of a view": (attend_split, [((2, n, 12),) for n in (5, 6, 9)]),
    "groups of heads": (lambda q, k: attend(q, k, enable_gqa=True, scale=0.5), HEADS),
    "repeated keys": (repeat_keys, [HEADS[1], HEADS[0], HEADS[3]]),
}


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, dynamic):
    torch._dynamo.reset()
    fn, sizes = CASES[name]
    compiled = torch.compile(fn, backend="tpu", dynamic=dynamic)
    for shapes in sizes:
        on_cpu = [torch.randn(s).requires_grad_() for s in shapes]
        on_tpu = [x.detach().to("tpu").requires_grad_() for x in on_cpu]
        expected, got = fn(*on_cpu), compiled(*on_tpu)
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
        weights = torch.randn_like(expected)
        (expected * weights).sum().backward()
        (got * weights.to("tpu")).sum().backward()
        for x, y in zip(on_tpu, on_cpu, strict=True):
            assert x.grad is not None and y.grad is not None
            torch.testing.assert_close(x.grad.cpu(), y.grad, rtol=1e-5, atol=1e-5)
