"""Run-time checks of values, made inside programs.

XLA clamps an index that is out of range; PyTorch raises. A lowering that indexes calls ``index_in_range``, and
whoever traces it collects the checks as further results of the program (two int64: how many are bad, and a
bad value) and raises ``IndexError`` when it next looks at them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp


class Check(NamedTuple):
    """``report`` is int64[2]: the number of bad values and one of them. ``message`` has a ``{value}`` field."""

    report: Any
    message: str
    error: type[Exception]


class IndexOutOfRange(IndexError, RuntimeError):
    """PyTorch's CPU kernels raise IndexError for an index out of range in some operators, RuntimeError in others."""


class _Collectors(threading.local):
    def __init__(self) -> None:
        self.stack: list[list[Check]] = []


_collectors = _Collectors()


@contextlib.contextmanager
def collect() -> Iterator[list[Check]]:
    """Checks made by lowerings traced inside the block, in order."""
    found: list[Check] = []
    _collectors.stack.append(found)
    try:
        yield found
    finally:
        _collectors.stack.pop()


def require_elements(x: Any, dim: int, what: str) -> None:
    """Ask that a dimension to choose an element from has any."""
    if x.shape[dim] == 0:
        raise IndexError(f"{what}(): Expected reduction dim {dim % x.ndim} to have non-zero size.")


def require(bad: Any, values: Any, message: str, error: type[Exception] = IndexError) -> None:
    """Ask that no element of ``bad`` (bool array) is True; ``values`` are what the message's ``{value}`` shows."""
    if not _collectors.stack or bad.size == 0:
        return
    count = jnp.sum(bad, dtype=jnp.int64)
    shown = jnp.ravel(values)[jnp.argmax(jnp.ravel(bad))].astype(jnp.int64)
    _collectors.stack[-1].append(Check(jnp.stack([count, shown]), message, error))


def again(report: Any, message: str, error: type[Exception]) -> None:
    """Hand on a check made inside a loop or a branch: ``report`` is what the loop gives for it."""
    if _collectors.stack:
        _collectors.stack[-1].append(Check(report, message, error))


def index_in_range(index: Any, size: int, what: str, *, dim: int = 0, negative: bool = True) -> Any:
    """``index`` with negative values counted from the end, checked against ``size``.

    Args:
      what: the operator, for the message.
      negative: whether -size..-1 are allowed (indexing: yes; gather, scatter, embedding: no).
    """
    low = -size if negative else 0
    require(
        (index < low) | (index >= size),
        index,
        f"{what}: index {{value}} is out of bounds for dimension {dim} with size {size}",
        IndexOutOfRange,
    )
    return jnp.where(index < 0, index + size, index) if negative else index
