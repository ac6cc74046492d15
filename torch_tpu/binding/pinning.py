"""``pin_memory`` where the accelerator is tpu.

Transfers copy from any host memory, so pinning has nothing to speed up; but ``DataLoader(pin_memory=True)`` and
``tensor.pin_memory()`` must work, and ``is_pinned()`` must say what was asked for. A pinned tensor is a copy in host
memory that carries the mark.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_tpu.binding.registration import overriding, register


def _pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    pinned = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="cpu").copy_(self)
    pinned.untyped_storage().tpu_pinned = True  # type: ignore[attr-defined]
    return pinned


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return getattr(self.untyped_storage(), "tpu_pinned", False)


def _save_on_cpu(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        # It would make pinned memory by an allocator that only C++ can provide; ours is a mark without an effect.
        original(self, pin_memory and device_type != "tpu", device_type)

    return init


@functools.cache
def allow_pinned_factories() -> None:
    """Let ``torch.empty(..., pin_memory=True)`` work, which asks an allocator that only C++ can provide.

    Every CPU tensor is made through Python then, so it is for those who need it.
    """
    with overriding():
        for name in ("aten::empty.memory_format", "aten::empty_strided"):
            register(name, _marking(torch.library.get_kernel(name, "CPU").call_boxed), key="CPU", with_keys=True)


def _marking(original: Any) -> Any:
    def make(keys: Any, *args: Any, pin_memory: bool | None = None, **kwargs: Any) -> torch.Tensor:
        made = original(keys, *args, **kwargs)
        if pin_memory:
            made.untyped_storage().tpu_pinned = True
        return made

    return make


def install() -> None:
    saving = torch.autograd.graph.save_on_cpu
    saving.__init__ = _save_on_cpu(saving.__init__)  # type: ignore[method-assign]
    register("aten::_pin_memory", _pin_memory, key="CPU")
    register("aten::is_pinned", _is_pinned, key="CPU")
