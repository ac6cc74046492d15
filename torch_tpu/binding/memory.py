"""Memory functions of ``torch.tpu``, named and meant as those of ``torch.cuda``; all figures are in bytes."""

from __future__ import annotations

import collections
import gc
from typing import Any

from torch_tpu.binding.device import index_of


def _started(device: Any) -> int:
    return index_of(device)


def memory_stats(device: Any = None) -> collections.OrderedDict[str, Any]:
    """Counters of the device's memory, by the names of ``torch.accelerator.memory_stats``."""
    from torch_tpu.runtime import memory

    return collections.OrderedDict(sorted(memory.stats(_started(device)).items()))


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors hold."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors held since the start or ``reset_peak_memory_stats``."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes that the platform holds for this process: tensors, programs and scratch on a TPU."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    return memory_stats(device)["reserved_bytes.all.peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    from torch_tpu.runtime import memory

    memory.account(_started(device)).reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    from torch_tpu.runtime import memory

    memory.account(_started(device)).reset_accumulated()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device's memory; on XLA:CPU the host's."""
    from torch_tpu.runtime import memory

    return memory.capacity(_started(device))


def empty_cache() -> None:
    """Free what nothing refers to any more. XLA's allocator returns memory by itself."""
    gc.collect()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the device's memory counters."""
    from torch_tpu.binding.device import get_device_name

    index = _started(device)
    stats, (free, total) = memory_stats(index), mem_get_info(index)
    rows = [("free", free), ("total", total)]
    rows += [
        (f"{what} {when}", stats[f"{key}.all.{when}"])
        for what, key in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"))
        for when in (("current", "peak") if abbreviated else ("current", "peak", "allocated", "freed"))
    ]
    lines = [f"tpu:{index} ({get_device_name(index)})", *(f"  {n:<22}{v / 2**20:>14.2f} MiB" for n, v in rows)]
    lines.append(f"  {'tensors':<22}{stats['allocation.all.current']:>14}")
    return "\n".join(lines)
