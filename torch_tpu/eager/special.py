"""Operators whose results have shapes that depend on values, or that do what their schema does not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

KERNELS: dict[str, Callable[..., Any]] = {}


def special(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the kernel of the named aten overloads."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in KERNELS:
                raise ValueError(f"aten::{name}: a special kernel is registered already")
            KERNELS[name] = fn
        return fn

    return declare


@special("equal")
def equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    if self.shape != other.shape:
        return False
    return bool(torch.eq(self, other).all())


@special("is_set_to")
def is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    return (
        self.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and self.storage_offset() == tensor.storage_offset()
        and self.shape == tensor.shape
        and self.stride() == tensor.stride()
    )
