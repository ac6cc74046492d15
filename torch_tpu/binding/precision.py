"""The precision of float32 matrix products, in PyTorch's own setting."""

from __future__ import annotations

import enum

import torch


class Precision(enum.Enum):
    """How float32 products are computed on a TPU."""

    HIGHEST = "highest"
    """As float32 (six bf16 passes); PyTorch's default."""
    HIGH = "high"
    """Three bf16 passes."""
    DEFAULT = "medium"
    """One bf16 pass."""


class precision:
    """Context manager: float32 products are computed in ``mode`` inside.

    Args:
      mode: a ``Precision``, or "highest", "high", "medium" as in ``torch.set_float32_matmul_precision``.
    """

    def __init__(self, mode: Precision | str):
        self.mode = Precision(mode.lower()) if isinstance(mode, str) else mode

    def __enter__(self) -> None:
        self._before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.mode.value)

    def __exit__(self, *exc: object) -> None:
        torch.set_float32_matmul_precision(self._before)
