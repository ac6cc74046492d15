"""A native PyTorch backend for Google TPUs: the device "tpu", on XLA through JAX.

``import torch`` is enough: PyTorch loads this package through the entry point group ``torch.backends``, and it is
also ``torch.tpu``. Importing it starts nothing and prints nothing; JAX is imported when the device is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_importing = True


def _autoload() -> None:
    """Entry point: called by PyTorch at the end of ``import torch``."""
    if not _importing:
        _register()


import torch  # noqa: E402

from torch_tpu.binding.device import (  # noqa: E402
    current_device,
    device,
    device_count,
    device_of,
    exchange_device,
    get_device_capability,
    get_device_name,
    get_device_properties,
    is_available,
    is_initialized,
    set_device,
    synchronize,
)
from torch_tpu.binding.device import is_in_bad_fork as _is_in_bad_fork  # noqa: E402, F401 (torch asks for it)
from torch_tpu.binding.generator import (  # noqa: E402
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.binding.loading import load as _load  # noqa: E402
from torch_tpu.binding.loading import register as _register  # noqa: E402
from torch_tpu.binding.memory import (  # noqa: E402
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_tpu.binding.streams import (  # noqa: E402
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__version__ = "0.1.0"

_exchange_device = exchange_device
_maybe_exchange_device = exchange_device

if TYPE_CHECKING:
    from torch_tpu.binding.precision import Precision, precision
    from torch_tpu.eager.fallback import FallbackWarning, fallback_counts, set_fallback
    from torch_tpu.eager.modes import EagerMode, eager_mode, set_eager_mode

# Names whose modules import JAX; found when they are first asked for.
_LAZY = {
    "EagerMode": "torch_tpu.eager.modes",
    "eager_mode": "torch_tpu.eager.modes",
    "set_eager_mode": "torch_tpu.eager.modes",
    "set_fallback": "torch_tpu.eager.fallback",
    "fallback_counts": "torch_tpu.eager.fallback",
    "FallbackWarning": "torch_tpu.eager.fallback",
    "Precision": "torch_tpu.binding.precision",
    "precision": "torch_tpu.binding.precision",
    "compiler": "torch_tpu.compiler",
    "export": "torch_tpu.export",
    "aot": "torch_tpu.aot",
    "distributed": "torch_tpu.distributed",
    "pallas": "torch_tpu.pallas",
    "ops": "torch_tpu.ops",
}

__all__ = [
    "EagerMode", "Event", "FallbackWarning", "Precision", "Stream", "current_device", "current_stream",
    "default_generators", "default_stream", "device", "device_count", "device_of", "eager_mode", "empty_cache",
    "fallback_counts", "get_amp_supported_dtype", "get_device_capability", "get_device_name", "get_device_properties",
    "get_rng_state", "get_rng_state_all", "init", "initial_seed", "is_available", "is_bf16_supported",
    "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_stats", "memory_summary", "precision",
    "reset_accumulated_memory_stats", "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_eager_mode",
    "set_fallback", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize",
]  # fmt: skip


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'torch_tpu' has no attribute {name!r}")
    import importlib

    found = importlib.import_module(module)
    value = found if module == f"torch_tpu.{name}" else getattr(found, name)
    globals()[name] = value
    return value


def init() -> None:
    """Start the device now rather than at its first use."""
    _load()


_lazy_init = init


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that ``torch.autocast("tpu")`` takes."""
    return [torch.bfloat16, torch.float16]


_importing = False
_register()
