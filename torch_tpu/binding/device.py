"""Devices of the process as ``torch.tpu`` and ``torch.accelerator`` see them: counts, the current one, properties."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch


class _Current(threading.local):
    index = 0


_current = _Current()


def is_available() -> bool:
    """Whether device "tpu" can be used in this process; true on any machine unless TORCH_TPU_PLATFORM asks for
    hardware that is not there."""  # fmt: skip
    from torch_tpu.runtime import platform

    try:
        return platform.started() or platform.wanted() != "tpu" or platform.tpu_attached()
    except RuntimeError:
        return False


def device_count() -> int:
    """How many devices this process has: chips on a TPU VM, one on XLA:CPU (or TORCH_TPU_NUM_CPU_DEVICES)."""
    from torch_tpu.runtime import launch, platform

    if not platform.started() and launch.launched():
        return int(is_available())  # one of several processes has one; starting it waits for init_process_group
    return len(platform.devices()) if is_available() else 0


def current_device() -> int:
    """The index of the device that ``device="tpu"`` means in this thread."""
    return _current.index


def index_of(device: Any, *, optional: bool = True) -> int:
    """The index that ``device`` (None, int, string or ``torch.device``) names.

    Raises:
      ValueError: it is not a tpu device.
      IndexError: this process has no such device.
    """
    from torch_tpu.runtime import launch, platform

    if device is None:
        if not optional:
            raise ValueError("expected a tpu device, got None")
        return _current.index
    if isinstance(device, (bool, float)):
        raise TypeError(f"expected a tpu device or an index, got {device!r}")
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {device}")
        index = _current.index if device.index is None else device.index
    index = launch.resolve(index)
    # A launched process names its device before init_process_group, where the platform has to be started.
    if index or platform.started() or not launch.launched():
        platform.device(index)
    return index


def set_device(device: Any) -> None:
    """Make ``device`` the current one of this thread; IndexError if there is no such device."""
    if isinstance(device, int) and device < 0:
        return
    _current.index = index_of(device)


class device:
    """Context manager: ``device`` (int, string, ``torch.device``; negative or None: no change) is current inside."""

    def __init__(self, device: Any):
        nothing = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if nothing else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = exchange_device(self.idx)
        return self

    def __exit__(self, *exc: object) -> None:
        exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of ``obj`` (a tensor or storage) is current inside; no change if not on tpu."""

    def __init__(self, obj: torch.Tensor | torch.UntypedStorage):
        super().__init__(obj.get_device() if obj.device.type == "tpu" else -1)


def exchange_device(index: int) -> int:
    """Make ``index`` current (negative: no change) and return what was."""
    before = _current.index
    if index >= 0:
        set_device(index)
    return before


def synchronize(device: Any = None) -> None:
    """Wait for all work on the device; errors of that work (also an index out of range) are raised here."""
    from torch_tpu.runtime import platform

    index = index_of(device)
    if not platform.started():
        return
    from torch_tpu.eager import modes
    from torch_tpu.runtime import buffers, transfer

    transfer.wait(buffers.live_arrays(index))
    modes.raise_failed()


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device. ``total_memory`` is in bytes."""

    name: str
    total_memory: int
    multi_processor_count: int
    platform: str
    major: int = 0
    minor: int = 0


def get_device_properties(device: Any = None) -> DeviceProperties:
    from torch_tpu.runtime import memory, platform

    index = index_of(device)
    d = platform.device(index)
    cores = int(getattr(d, "num_cores", None) or 1)
    return DeviceProperties(get_device_name(index), memory.capacity(index)[1], cores, platform.name())


def get_device_name(device: Any = None) -> str:
    """ "TPU v6 lite" and the like on a TPU; "XLA:CPU" elsewhere."""
    from torch_tpu.runtime import platform

    d = platform.device(index_of(device))
    return d.device_kind if platform.name() != "cpu" else "XLA:CPU"


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """What the device can compute with: {"supported_dtypes": set of torch dtypes}."""
    from torch_tpu.lowering import dtypes

    index_of(device)
    return {"supported_dtypes": set(dtypes.TORCH_TO_JAX)}


def is_initialized() -> bool:
    from torch_tpu.runtime import platform

    return platform.started()


def is_in_bad_fork() -> bool:
    """True in a child forked after the device was started: XLA's threads do not survive a fork."""
    from torch_tpu.runtime import platform

    return platform.forked()


def _with_index(x: Any) -> Any:
    """``x`` with the current index, if it is a tpu device that names none."""
    if (isinstance(x, str) and x == "tpu") or (isinstance(x, torch.device) and x.type == "tpu" and x.index is None):
        return torch.device("tpu", _current.index)
    return x


def _follow(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _current.index:
            args = tuple(map(_with_index, args))
            if "device" in kwargs:
                kwargs["device"] = _with_index(kwargs["device"])
        return original(*args, **kwargs)

    return call


def follow_current_device() -> None:
    """Let ``x.to("tpu")`` mean the current device, where a process has several.

    PyTorch asks its C++ guard for the index before it calls a kernel, and the guard of a Python backend says 0. These
    are the functions that ask it; factories leave the index to the kernel.
    """
    for owner, names in ((torch.Tensor, ("to", "new_tensor")), (torch, ("tensor", "as_tensor", "asarray"))):
        for name in names:
            setattr(owner, name, _follow(getattr(owner, name)))
