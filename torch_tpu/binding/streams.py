"""Streams and events. XLA runs a device's programs in the order of their data, so there is one stream a device;
events really wait for the work before them, and time it.

``torch.Stream`` and ``torch.Event`` are C++ objects whose methods ask the backend's C++ guard, which a Python backend
does not have. Ours are subclasses of them with every method replaced, and the generic names make ours on tpu.
"""  # fmt: skip

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from torch_tpu.binding import device as devices
from torch_tpu.binding.registration import register

_BaseStream, _BaseEvent = torch.Stream, torch.Event
_DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)  # type: ignore[attr-defined]


class Stream(_BaseStream):
    """The stream of a device. All streams of one device are the same queue: order is always kept."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        index = kwargs.get("device_index")
        index = devices.index_of(device if index is None else index)
        return _BaseStream.__new__(cls, stream_id=0, device_index=index, device_type=_DEVICE_TYPE)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any):
        self.priority = priority
        self._before: list[Stream] = []

    def is_capturing(self) -> bool:
        """Whether work is being recorded rather than run: never."""
        return False

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        devices.synchronize(self.device)

    def query(self) -> bool:
        """Whether all work of the device is done."""
        from torch_tpu.runtime import buffers

        return all(buffers.is_ready(a) for a in buffers.live_arrays(self.device.index))

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Later work comes after ``event``: true of every stream, since a device has one queue."""

    def wait_stream(self, stream: Stream) -> None:
        """Later work comes after the work of ``stream``: true, since a device has one queue."""
        if stream.device != self.device:
            stream.synchronize()

    def __enter__(self) -> Stream:
        self._before.append(current_stream(self.device))
        set_stream(self)
        return self

    def __exit__(self, *exc: object) -> None:
        set_stream(self._before.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(("tpu stream", self.device.index))

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device={self.device})"


class Event(_BaseEvent):
    """A mark in a device's work.

    Args:
      enable_timing: ``elapsed_time`` may be asked. A thread notes the time when the work is done.
      blocking, interprocess: accepted as in ``torch.cuda.Event``; an event cannot be shared between processes.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Event:
        return _BaseEvent.__new__(cls, device="tpu")

    def __init__(
        self, device: Any = None, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ):
        if isinstance(device, bool):  # torch.tpu.Event(True), as in torch.cuda
            device, enable_timing = None, device
        if interprocess:
            raise NotImplementedError("torch.tpu.Event: interprocess events are not supported")
        self.enable_timing = enable_timing
        self._device = None if device is None else torch.device("tpu", devices.index_of(device))
        self._arrays: list[Any] | None = None
        self._done: float | None = None
        self._watcher: threading.Thread | None = None

    @property
    def device(self) -> torch.device | None:
        """The device whose work it marks; None before it is recorded."""
        return self._device

    @property
    def event_id(self) -> int:
        return id(self)

    def ipc_handle(self) -> Any:
        raise NotImplementedError("torch.tpu.Event: interprocess events are not supported")

    def record(self, stream: Stream | None = None) -> None:
        """Mark the work that has been dispatched so far."""
        from torch_tpu.runtime import buffers

        self._device = (stream or current_stream()).device
        self._arrays = [a for a in buffers.live_arrays(self._device.index or 0) if not buffers.is_ready(a)]
        self._done, self._watcher = None, None
        if not self._arrays:
            self._done = time.perf_counter()
        elif self.enable_timing:
            self._watcher = threading.Thread(target=self._watch, daemon=True, name="torch.tpu.Event")
            self._watcher.start()

    def _watch(self) -> None:
        import jax

        # A failed computation is raised by whoever reads its result; a donated array was read before its reuse.
        for a in self._arrays or ():
            try:
                jax.block_until_ready(a)
            except RuntimeError:
                continue
        self._done = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the marked work."""
        if self._done is not None or self._arrays is None:
            return
        if self._watcher is not None:
            self._watcher.join()
        else:
            self._watch()
        self._arrays = []

    def wait(self, stream: Stream | None = None) -> None:
        """Later work of ``stream`` comes after this event."""
        if stream is not None and self.device is not None and stream.device != self.device:
            self.synchronize()

    def query(self) -> bool:
        """Whether the marked work is done; True where nothing was recorded."""
        if self._arrays is None or self._done is not None:
            return True
        return all(a.is_deleted() or a.is_ready() for a in self._arrays)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to ``end_event``; both need ``enable_timing`` and must have been recorded."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._arrays is None or end_event._arrays is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time: call synchronize().")
        self.synchronize()
        end_event.synchronize()
        assert self._done is not None and end_event._done is not None
        return (end_event._done - self._done) * 1000.0

    def __repr__(self) -> str:
        return f"torch.tpu.Event(device={self.device}, recorded={self._arrays is not None})"


class _Current(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()


_defaults: dict[int, Stream] = {}


def default_stream(device: Any = None) -> Stream:
    index = devices.index_of(device)
    found = _defaults.get(index)
    return found if found is not None else _defaults.setdefault(index, Stream(index))


def current_stream(device: Any = None) -> Stream:
    index = device if type(device) is int and device in _defaults else devices.index_of(device)
    return _current.streams.get(index) or _defaults.get(index) or default_stream(index)


def set_stream(stream: Stream) -> None:
    if stream is None:
        return
    _current.streams[stream.device.index] = stream
    devices.set_device(stream.device)


class stream:
    """Context manager: ``stream`` is the current one inside (None: no change)."""

    def __init__(self, stream: Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self._device = devices.current_device()
            self.stream.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exc)
            devices.set_device(self._device)


class _GenericType(type):
    """A name like ``torch.Stream``: makes ours for tpu and PyTorch's for the rest; both are instances of it."""

    base: type
    ours: type

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device")
        kind = kwargs.get("device_type", _DEVICE_TYPE)
        generic = device is None or isinstance(device, int)  # the accelerator's, which tpu is
        is_ours = kind == _DEVICE_TYPE if generic or device is None else torch.device(device).type == "tpu"
        return (cls.ours if is_ours else cls.base)(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.base)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.base)


def _generic(base: type, ours: type) -> type:
    return _GenericType(base.__name__, (base,), {"base": base, "ours": ours, "__doc__": base.__doc__})


def _record_stream(self: torch.Tensor, s: Any) -> None:
    """Memory may be used by work of that stream: always true, since a device has one queue."""


def install() -> None:
    torch.Stream = _generic(_BaseStream, Stream)  # type: ignore[misc,assignment]
    torch.Event = _generic(_BaseEvent, Event)  # type: ignore[misc,assignment]
    register("aten::record_stream", _record_stream)
