"""What results look like under FakeTensor where PyTorch's own rule for an operator knows other devices only."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_impls import register_op_impl

from torch_tpu.lowering.grouped_matmul import refused_types

_aten = torch.ops.aten


def _on_tpu(tensors: tuple[Any, ...]) -> bool:
    return any(isinstance(t, torch.Tensor) and t.device.type == "tpu" for t in tensors)


@register_op_impl(_aten._grouped_mm.default)  # pyright: ignore[reportArgumentType]
def _grouped_mm(
    fake_mode: Any, func: Any, self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """PyTorch's rule takes bfloat16 alone, and wants the alignment of CUDA kernels."""
    if not _on_tpu((self, mat2)):
        return NotImplemented
    refused = refused_types(self.dtype, mat2.dtype, out_dtype)
    if refused is not None:
        raise RuntimeError(refused)
    shape = _grouped_shape(self, mat2, offs)
    if shape is None or bias is not None:
        return NotImplemented  # PyTorch's rule says what is wrong
    with fake_mode:
        return torch.empty(shape, dtype=self.dtype, device=self.device)


def _grouped_shape(self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor | None) -> tuple[Any, ...] | None:
    """Of the result; None for operands that do not fit."""
    if self.dim() not in (2, 3) or mat2.dim() not in (2, 3) or self.dtype != mat2.dtype:
        return None
    if (self.dim() == mat2.dim() == 3) != (offs is None) or self.shape[-1] != mat2.shape[-2]:
        return None
    if offs is None:
        return (self.shape[0], self.shape[1], mat2.shape[2])
    if self.dim() == mat2.dim() == 2:
        return (offs.shape[0], self.shape[0], mat2.shape[1])
    return (self.shape[0] if self.dim() == 2 else self.shape[1], mat2.shape[-1])
