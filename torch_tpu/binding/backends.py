"""``torch.backends.tpu``: how the Kernels Hub knows that this PyTorch has the device."""

from __future__ import annotations

import sys
import types

import torch


def install() -> None:
    module = types.ModuleType("torch.backends.tpu", __doc__)
    module.is_available = lambda: torch.tpu.is_available()  # type: ignore[attr-defined]
    module.is_built = lambda: True  # type: ignore[attr-defined]
    sys.modules["torch.backends.tpu"] = module
    torch.backends.tpu = module  # type: ignore[attr-defined]
