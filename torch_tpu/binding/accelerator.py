"""``torch.accelerator`` for tpu. Its functions ask C++ hooks that a Python backend cannot provide, so the hooks'
Python bindings are replaced; on a process whose accelerator is tpu they answer from here."""  # fmt: skip

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.binding import device, memory, streams


def _empty_cache() -> None:
    memory.empty_cache()


def _bindings() -> dict[str, Any]:
    return {
        "_accelerator_getDeviceIndex": device.current_device,
        "_accelerator_setDeviceIndex": device.set_device,
        "_accelerator_exchangeDevice": device.exchange_device,
        "_accelerator_maybeExchangeDevice": device.exchange_device,
        "_accelerator_getDeviceCapability": device.get_device_capability,
        "_accelerator_synchronizeDevice": device.synchronize,
        "_accelerator_getStream": streams.current_stream,
        "_accelerator_setStream": streams.set_stream,
        "_accelerator_isAllocatorInitialized": device.is_initialized,
        "_accelerator_emptyCache": _empty_cache,
        "_accelerator_emptyHostCache": _empty_cache,
        "_accelerator_getDeviceStats": memory.memory_stats,
        "_accelerator_resetAccumulatedStats": memory.reset_accumulated_memory_stats,
        "_accelerator_resetPeakStats": memory.reset_peak_memory_stats,
        "_accelerator_getMemoryInfo": memory.mem_get_info,
    }


def install() -> None:
    for name, function in _bindings().items():
        if not hasattr(torch._C, name):
            raise RuntimeError(f"this PyTorch has no torch._C.{name}, which torch.accelerator needs")
        setattr(torch._C, name, function)
