"""``torch.tpu.ops``: operators with kernels of their own on TPUs. docs/moe.md says what they cost.

======================  ==========================================================================================
``grouped_matmul``      products of experts, which ``F.grouped_mm`` takes by itself
``flash_attention``     attention without a matrix of scores, which SDPA takes by itself where it pays
``paged_cache``         attention over a cache in pages
``functions``           what users call
``chips``               the chip that a program is for
======================  ==========================================================================================

A kernel's folder has ``kernel.py``, ``reference.py`` (the same in float64), ``sizes.py`` (tiles for each chip),
``validate.py`` (kernel against reference, and libtpu's verdict for each chip) and README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn.functional import max_pool1d, max_pool2d, max_pool3d

    from torch_tpu.ops.functions import (
        optimization_barrier,
        paged_attention,
        ragged_dot,
        ragged_dot_weight_grad,
        ragged_paged_attention,
        splash_sdpa,
    )

__all__ = [
    "max_pool1d", "max_pool2d", "max_pool3d", "optimization_barrier", "paged_attention", "ragged_dot",
    "ragged_dot_weight_grad", "ragged_paged_attention", "splash_sdpa",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'torch_tpu.ops' has no attribute {name!r}")
    import importlib

    # PyTorch's own pooling is one XLA operation on the device.
    module = "torch.nn.functional" if name.startswith("max_pool") else "torch_tpu.ops.functions"
    found = globals()[name] = getattr(importlib.import_module(module), name)
    return found
