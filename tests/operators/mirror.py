"""A sample's arguments, as they lie in memory, on another device or in wider types."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import SampleInput

WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}  # fmt: skip


def mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    """``change`` applied to every leaf of lists, tuples and dicts."""
    if isinstance(x, (list, tuple)):
        items = [mapped(e, change) for e in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if isinstance(x, dict):
        return {k: mapped(v, change) for k, v in x.items()}
    return change(x)


class Mirror:
    """Copies tensors with their storage: strides, offsets, shared storages and lazy bits are kept.

    Args:
      device: where to.
      wide: floating tensors become float64, complex ones complex128.
    """

    def __init__(self, device: str, *, wide: bool = False):
        self.device, self.wide = device, wide
        self._storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id; with what is to keep the id its own

    def __call__(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in self._made:
                self._made[id(x)] = (x, self.tensor(x))
            return self._made[id(x)][1]
        if isinstance(x, torch.dtype):
            return self.dtype(x)
        if isinstance(x, torch.device) or (isinstance(x, str) and x == "cpu"):
            return torch.device(self.device)
        return x

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        return WIDE.get(dtype, dtype) if self.wide else dtype

    def tensor(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "cpu":
            return t
        if t.layout != torch.strided:
            made = t.detach().to(self.device, self.dtype(t.dtype), copy=True)
        else:
            made = self._plain(t.detach())
        return made.requires_grad_(t.requires_grad)

    def _plain(self, t: torch.Tensor) -> torch.Tensor:
        if t.is_conj():
            return self._plain(t.conj()).conj()
        if t.is_neg():
            return torch._neg_view(self._plain(torch._neg_view(t)))
        storage, dtype = t.untyped_storage(), self.dtype(t.dtype)
        if t.numel() == 0 or self.device == "meta":
            return torch.empty_strided(t.shape, t.stride(), dtype=dtype, device=self.device)
        if storage.nbytes() % t.itemsize:
            return t.to(self.device, dtype, copy=True)
        at = (storage.data_ptr(), t.dtype)
        if at not in self._storages:
            flat = torch.empty(0, dtype=t.dtype).set_(storage, 0, (storage.nbytes() // t.itemsize,))
            self._storages[at] = flat.to(self.device, dtype, copy=True)
        base = self._storages[at]
        if storage.nbytes() == t.numel() * t.itemsize and t.is_contiguous():
            return base.view(t.shape) if t.ndim else base[0]
        return base.as_strided(t.shape, t.stride(), t.storage_offset())


def transformed(sample: SampleInput, change: Callable[[Any], Any]) -> SampleInput:
    made = SampleInput(
        mapped(sample.input, change), args=mapped(tuple(sample.args), change), kwargs=mapped(sample.kwargs, change),
        broadcasts_input=sample.broadcasts_input, name=sample.name,
    )  # fmt: skip
    made.output_process_fn_grad = sample.output_process_fn_grad
    return made


def on(device: str, sample: SampleInput) -> SampleInput:
    return transformed(sample, Mirror(device))


def copied(sample: SampleInput) -> SampleInput:
    """With copies in place of tensors: for calls that write."""
    return on("cpu", sample)


def widened(sample: SampleInput) -> SampleInput:
    """In float64 and complex128: what a result is judged against."""
    return transformed(sample, Mirror("cpu", wide=True))


@contextlib.contextmanager
def wide_default() -> Iterator[None]:
    """float64 is also what integers become where they have to be real numbers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [t for e in x for t in tensors(e)] if isinstance(x, (list, tuple)) else []


def inputs(sample: SampleInput) -> list[torch.Tensor]:
    return tensors((sample.input, tuple(sample.args), sample.kwargs))
