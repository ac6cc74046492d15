"""Grouped matrix products on TPUs; README.md says when they are used and what they cost."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from torch_tpu.ops import chips
from torch_tpu.ops.grouped_matmul import sizes

_TYPES = (np.dtype(jnp.bfloat16), np.dtype(np.float32))


def takes(dtype: Any, shape: tuple[Any, ...]) -> bool:
    """Whether programs traced now are for a TPU, and the kernels have this type. A kernel's sizes are numbers."""
    return chips.current() is not None and np.dtype(dtype) in _TYPES and all(isinstance(n, int) for n in shape)


def rows(x: Any, weights: Any, ends: Any, *, transposed: bool, out_dtype: Any) -> Any:
    """``kernel.grouped_rows`` with the chip's tiles, and PyTorch's float32 precision."""
    (m, k), groups, n = x.shape, weights.shape[0], weights.shape[1 if transposed else 2]
    from torch_tpu.ops.grouped_matmul import kernel  # Pallas takes half a second to import

    tiles = sizes.row_tiles(m, k, n, groups, x.dtype.itemsize, chips.current() or "v6e")
    return kernel.grouped_rows(
        x, weights, ends, tiles=tiles, transposed=transposed, out_dtype=out_dtype, passes=_passes()
    )


def total(a: Any, b: Any, ends: Any, *, out_dtype: Any) -> Any:
    """``kernel.grouped_sum`` with the chip's tiles, and PyTorch's float32 precision."""
    from torch_tpu.ops.grouped_matmul import kernel

    tiles = sizes.sum_tiles(
        a.shape[0], a.shape[1], b.shape[1], ends.shape[0], a.dtype.itemsize, chips.current() or "v6e"
    )
    return kernel.grouped_sum(a, b, ends, tiles=tiles, out_dtype=out_dtype, passes=_passes())


def _passes() -> Any:
    return torch.get_float32_matmul_precision()
