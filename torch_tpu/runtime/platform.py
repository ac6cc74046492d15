"""Which platform the device "tpu" is on this machine, and its devices.

``TORCH_TPU_PLATFORM=tpu|cpu|cuda`` decides; else it is ``tpu`` where a TPU is attached and ``cpu`` elsewhere.
Nothing here writes to stderr: libtpu, where it is installed without a TPU, would probe for one and complain, so
JAX is kept off it unless a TPU is there.
"""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import jax

from torch_tpu.runtime import launch

PLATFORM_VARIABLE = "TORCH_TPU_PLATFORM"
DEVICES_VARIABLE = "TORCH_TPU_NUM_CPU_DEVICES"
_GOOGLE_VENDOR = "0x1ae0"
_CHOICES = ("tpu", "cpu", "cuda")
_lock = threading.RLock()
Device: TypeAlias = Any  # jax.Device, which type checkers see only as a variable


def tpu_attached() -> bool:
    """Whether this machine has a TPU: a TPU device node, or a Google accelerator on the PCI bus."""
    if glob.glob("/dev/accel[0-9]*"):
        return True
    if not glob.glob("/dev/vfio/[0-9]*"):
        return False
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        try:
            with open(path) as f:
                if f.read().strip() == _GOOGLE_VENDOR:
                    return True
        except OSError:
            continue
    return False


def wanted() -> str:
    """The platform this process is to use, from the environment and the hardware; starts nothing."""
    asked = os.environ.get(PLATFORM_VARIABLE, "").strip().lower()
    if asked and asked not in _CHOICES:
        raise RuntimeError(f"{PLATFORM_VARIABLE}={asked!r}: unknown platform; use one of {', '.join(_CHOICES)}")
    return asked or ("tpu" if tpu_attached() else "cpu")


def _keep_jax_off_libtpu(chosen: str) -> None:
    """Name JAX's platforms before its first use, so that it does not probe for hardware that is not there."""
    if os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms:  # pyright: ignore[reportAttributeAccessIssue]
        return
    if chosen == "cpu":
        has_cuda = any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13))
        if not has_cuda:
            jax.config.update("jax_platforms", "cpu")
    elif chosen == "tpu":
        jax.config.update("jax_platforms", "tpu,cpu")


@functools.cache
def _start() -> tuple[str, tuple[Device, ...]]:
    chosen = wanted()
    if chosen == "tpu" and not tpu_attached():
        raise RuntimeError(
            f"{PLATFORM_VARIABLE}=tpu, but no TPU is attached to this machine (no /dev/accel*, no Google device "
            f"under /dev/vfio). Unset {PLATFORM_VARIABLE} or set it to cpu to run on XLA:CPU."
        )
    if chosen == "tpu" and importlib.util.find_spec("libtpu") is None:
        raise RuntimeError("a TPU is attached but libtpu is not installed: pip install 'torch-tpu[tpu]'")
    if chosen == "tpu":
        launch.set_tpu_variables()  # libtpu reads them when it is loaded
    _keep_jax_off_libtpu(chosen)
    count = os.environ.get(DEVICES_VARIABLE)
    if chosen == "cpu" and count:
        jax.config.update("jax_num_cpu_devices", int(count))
    try:
        devices = jax.local_devices(backend=chosen)
    except RuntimeError as e:
        raise RuntimeError(f"tpu: platform {chosen!r} could not be started: {e}") from e
    return chosen, tuple(devices)


def start() -> tuple[str, tuple[Device, ...]]:
    """The platform's name and this process's devices; starts the platform at the first call.

    Raises:
      RuntimeError: the platform asked for is not there; the message says what to do.
    """
    global _ready
    if _ready is not None:  # the device's index is looked up in many calls of a step
        return _ready
    if _forked:
        raise RuntimeError(
            "Cannot use device tpu in a process that was forked after the device was started: XLA's threads do not "
            "survive a fork. Use the 'spawn' start method, or use the device in the parent process only."
        )
    with _lock:
        if not started():
            # DataLoader's workers fork. JAX warns of each, since its threads do not survive; they do not use the
            # device, and a child that does is told so above.
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        _ready = _start()
        return _ready


_ready: tuple[str, tuple[Device, ...]] | None = None  # what ``start`` gives, while it can be used
_forked: list[int] = []  # the process id of a child forked after the start
at_fork: list[Callable[[], None]] = []  # what else has to be stopped in such a child


def _after_fork() -> None:
    global _ready
    if started():
        _ready = None
        _forked.append(os.getpid())
        for stop in at_fork:
            stop()


os.register_at_fork(after_in_child=_after_fork)


def forked() -> bool:
    """True in a child that was forked after the device was started, where it cannot be used."""
    return bool(_forked)


def started() -> bool:
    return _start.cache_info().currsize > 0


def name() -> str:
    """Of the platform: "tpu", "cpu" or "cuda"."""
    return start()[0]


def devices() -> tuple[Device, ...]:
    return start()[1]


def device(index: int) -> Device:
    """The device behind ``torch.device("tpu", index)``; IndexError names what is there."""
    found = devices()
    index = launch.resolve(index)
    if not 0 <= index < len(found):
        raise IndexError(f"tpu:{index}: this process has {len(found)} device(s), tpu:0 to tpu:{len(found) - 1}")
    return found[index]


@functools.cache
def sharding(index: int) -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(device(index))
