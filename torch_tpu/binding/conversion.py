"""Converting modules between host and device: ties and identity of parameters survive, as they do for CUDA.

Host and device tensors are not shallow-copy compatible, so ``Module.to`` would make new ``Parameter`` objects: tied
weights come apart, and an optimizer built before trains tensors that the module no longer has. PyTorch's swapping
conversion keeps the objects; it is switched on for conversions that cross between tpu and another device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def _swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _crosses(module: torch.nn.Module, target: str) -> bool:
    """Whether a conversion to the device type moves a parameter or buffer to or from tpu."""
    for t in (*module.parameters(), *module.buffers()):
        here = t.device.type
        if here != target and "tpu" in (here, target) and "meta" not in (here, target):
            return True
    return False


def _target_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    device = torch._C._nn._parse_to(*args, **kwargs)[0]
    return None if device is None else device.type


def _wrap(original: Callable[..., Any], target_of: Callable[..., str | None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        target = target_of(args, kwargs)
        if target is None or not _crosses(self, target):
            return original(self, *args, **kwargs)
        with _swapping():
            return original(self, *args, **kwargs)

    return convert


def install() -> None:
    module = torch.nn.Module
    module.to = _wrap(module.to, _target_of)  # type: ignore[method-assign]
    module.cpu = _wrap(module.cpu, lambda args, kwargs: "cpu")  # type: ignore[method-assign]
    module.tpu = _wrap(module.tpu, lambda args, kwargs: "tpu")  # type: ignore[attr-defined]
