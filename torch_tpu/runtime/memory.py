"""Bytes held by device buffers: now, at the peak, and counts, for each device.

Counting is exact and cheap: every change is appended to a queue (atomic under the GIL, so it may come from any
thread or from a finalizer) and folded in order when somebody asks. What is counted are the buffers that tensors
own, at their size; what the platform itself reports (programs, scratch) is in ``platform_stats``.
"""

from __future__ import annotations

import collections
import os
import threading
from typing import Any

from torch_tpu.runtime import platform

FOLD_AT = 8192


class Account:
    """One device's counters, in bytes."""

    def __init__(self) -> None:
        self.changes: collections.deque[int] = collections.deque()
        self._lock = threading.RLock()
        self.allocated = 0
        self.peak = 0
        self.allocations = 0
        self.frees = 0
        self.allocated_total = 0
        self.freed_total = 0

    def add(self, nbytes: int) -> None:
        """Record ``nbytes`` more (or, negative, fewer) bytes held."""
        self.changes.append(nbytes)
        if len(self.changes) > FOLD_AT:
            self.fold()

    def fold(self) -> None:
        with self._lock:
            while self.changes:
                try:
                    change = self.changes.popleft()
                except IndexError:  # a finalizer folded meanwhile
                    break
                self.allocated += change
                if change >= 0:
                    self.allocations += 1
                    self.allocated_total += change
                    self.peak = max(self.peak, self.allocated)
                else:
                    self.frees += 1
                    self.freed_total -= change

    def reset_peak(self) -> None:
        self.fold()
        with self._lock:
            self.peak = self.allocated

    def reset_accumulated(self) -> None:
        self.fold()
        with self._lock:
            self.allocations = self.frees = self.allocated_total = self.freed_total = 0


_accounts: dict[int, Account] = {}


def account(index: int) -> Account:
    found = _accounts.get(index)
    return found if found is not None else _accounts.setdefault(index, Account())


def platform_stats(index: int) -> dict[str, Any]:
    """What the platform says of its own memory; empty where it says nothing (XLA:CPU)."""
    return dict(platform.device(index).memory_stats() or {})


def capacity(index: int) -> tuple[int, int]:
    """(free, total) bytes of the device's memory; on XLA:CPU the host's."""
    stats = platform_stats(index)
    if "bytes_limit" in stats:
        total = int(stats["bytes_limit"])
        return total - int(stats.get("bytes_in_use", 0)), total
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def stats(index: int) -> dict[str, int]:
    """Counters by the names of ``torch.accelerator.memory_stats``; bytes and counts."""
    a = account(index)
    a.fold()
    native = platform_stats(index)
    reserved = int(native.get("bytes_in_use", a.allocated))
    out: dict[str, int] = {"num_alloc_retries": 0, "num_ooms": ooms.get(index, 0)}
    for stat, current, peak in (
        ("allocated_bytes", a.allocated, a.peak),
        ("active_bytes", a.allocated, a.peak),
        ("requested_bytes", a.allocated, a.peak),
        ("reserved_bytes", reserved, int(native.get("peak_bytes_in_use", a.peak))),
    ):
        out[f"{stat}.all.current"] = current
        out[f"{stat}.all.peak"] = peak
        out[f"{stat}.all.allocated"] = a.allocated_total
        out[f"{stat}.all.freed"] = a.freed_total
    out["allocation.all.current"] = a.allocations - a.frees
    out["allocation.all.allocated"] = a.allocations
    out["allocation.all.freed"] = a.frees
    return out


ooms: dict[int, int] = {}
