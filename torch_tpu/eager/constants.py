"""Small tensors filled with one number: their values are made on the host, and put there, in place of a program.

A program for them takes some 30 us to run and 25 ms to compile; the put takes 5 us. Larger ones are made by the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_tpu.eager.spec import Spec, overload_name
from torch_tpu.runtime import transfer
from torch_tpu.runtime.buffers import Layout

SMALL = 16384  # bytes
_NUMBER = {"aten::full": "fill_value", "aten::full_like": "fill_value", "aten::scalar_tensor": "s",
           "aten::fill.Scalar": "value", "aten::zero": None}  # fmt: skip


class Constant:
    """What an operator fills a tensor with; the values are kept for the number that came last."""

    __slots__ = ("dtype", "layout", "number", "values")

    def __init__(self, layout: Layout, dtype: torch.dtype, number: Any):
        self.layout, self.dtype, self.number = layout, dtype, number  # None: comes with each call
        self.values: tuple[str, np.ndarray] = ("", np.empty(0))

    def put(self, numbers: Sequence[Any], device: int) -> Any:
        """A new array; ``numbers`` are the operands of the call."""
        number = numbers[0] if numbers else self.number
        said = repr(number)  # tells 0.0 from -0.0, and 1 from True
        if self.values[0] != said:
            one = torch.full((1,), number, dtype=self.dtype)  # the conversion is CPU's own
            self.values = said, np.full(self.layout.shape, transfer.numpy_view(one, self.layout.dtype)[0])
        return transfer.put(self.values[1].copy(), device)


def of(spec: Spec, bound: dict[str, Any], layout: Layout, dtype: torch.dtype) -> Constant | None:
    """The constant that an operator comes to, if it is one of those and small.

    Args:
      spec: the operator.
      bound: its arguments by name, without the numbers that are operands of a call.
      layout: of the buffer that is made, or written from end to end.
      dtype: of the tensor.
    """
    name = overload_name(spec.twin)
    if name not in _NUMBER or layout.nbytes > SMALL:
        return None
    param = _NUMBER[name]
    number = 0 if param is None else bound[param]
    return Constant(layout, dtype, number if isinstance(number, (bool, int, float, complex)) else None)
