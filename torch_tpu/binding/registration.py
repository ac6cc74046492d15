"""Registering kernels with PyTorch's dispatcher."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

KEY = "PrivateUse1"
_libraries: dict[str, torch.library.Library] = {}


def _library(namespace: str) -> torch.library.Library:
    found = _libraries.get(namespace)
    if found is None:
        found = _libraries[namespace] = torch.library.Library(namespace, "IMPL")
    return found


def leave_alone(kernel: Callable[..., Any]) -> None:
    """Keep Dynamo out of a kernel and of what it calls: where a graph breaks, operators run between its parts."""
    code = getattr(kernel, "__code__", None)
    if code is not None:
        dynamo = torch._C._dynamo.eval_frame  # pyright: ignore[reportAttributeAccessIssue]
        skip = dynamo._FrameExecStrategy(dynamo._FrameAction.SKIP, dynamo._FrameAction.SKIP)
        dynamo.set_code_exec_strategy(code, skip)


def register(name: str, kernel: Callable[..., Any], *, key: str = KEY, with_keys: bool = False) -> None:
    """Make ``kernel`` what the dispatcher calls for ``"ns::op.overload"`` on device tensors.

    Args:
      with_keys: the kernel takes the dispatch key set first.
    """
    leave_alone(kernel)
    namespace, _, op = name.partition("::")
    # Library.impl would check and record more, at ten times the cost for each of two thousand operators.
    library = _library(namespace).m
    assert library is not None
    library.impl(op, key, kernel, with_keys)


_fallbacks: list[torch.library.Library] = []


def register_fallback(kernel: Callable[..., Any], key: str) -> None:
    """Make ``kernel`` what the dispatcher calls under ``key`` for operators without a kernel there."""
    leave_alone(kernel)
    library = torch.library.Library("_", "IMPL")
    library.fallback(kernel, key)
    _fallbacks.append(library)


@contextlib.contextmanager
def overriding() -> Iterator[None]:
    """Register over kernels that exist: PyTorch warns of the first such registration in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
