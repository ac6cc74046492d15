"""What the tests of torch.compile share: a function compiled for tpu against the same function on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(fn, backend="tpu", **{"fullgraph": True, **options})


def on(device: str, x: Any) -> Any:
    """Copies of the tensors in ``x``, on a device; what requires gradients does so there."""

    def moved(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return t.detach().clone().to(device).requires_grad_(t.requires_grad)

    return pytree.tree_map(moved, x)


def close(got: Any, expected: Any, **tolerance: Any) -> None:
    """Structure, devices, dtypes, shapes and values."""
    flat, spec = pytree.tree_flatten(got)
    wanted, its = pytree.tree_flatten(expected)
    assert spec == its
    for g, e in zip(flat, wanted, strict=True):
        if isinstance(e, torch.Tensor):
            assert g.device.type == "tpu"
            torch.testing.assert_close(g.cpu(), e, **tolerance)
        else:
            assert g == e and type(g) is type(e)


def check(fn: Callable[..., Any], *args: Any, backward: bool = False, **tolerance: Any) -> Any:
    """``fn`` compiled, on copies on the device, against eager on the CPU: results, gradients, and what is written."""
    theirs, ours = on("cpu", args), on("tpu", args)
    expected, got = fn(*theirs), compiled(fn)(*ours)
    close(got, expected, **tolerance)
    if backward:
        for result in (expected, got):
            torch.manual_seed(1)
            leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
            sum((t * torch.randn(t.shape).to(t.device)).sum() for t in leaves).backward()
    for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), **tolerance)
            assert (a.grad is None) == (b.grad is None)
            if b.grad is not None:
                torch.testing.assert_close(a.grad.cpu(), b.grad, **tolerance)
    return got


def compilations() -> int:
    stats = torch.tpu.compiler.stats()
    return stats["compiled"] + stats["loaded"]
