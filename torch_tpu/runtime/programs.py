"""The one cache of compiled programs, in memory and on disk, with its statistics.

A program is found by its *key*: a nested tuple of strings, numbers, dtypes and None that says everything its code
depends on. On disk the key is joined by the fingerprint of what else matters: versions, this package's sources,
platform, device kind and compiler flags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import pickle
import platform as host
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jaxlib.version
import numpy as np
import torch
from jax.experimental import serialize_executable

from torch_tpu.runtime import errors, explain, interpretation, platform
from torch_tpu.runtime.cache_dir import CacheDirectory
from torch_tpu.runtime.spanning import Span

PERSIST_VARIABLE = "TORCH_TPU_PERSISTENT_CACHE"
# On XLA:CPU a program over few elements is compiled with the cheap options: 10 ms in place of 24, and no
# measurable difference when it runs. Above this many elements in and out the full ones pay.
_SMALL_ELEMENTS = 16384
_CHEAP_OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@dataclasses.dataclass(eq=False)
class Program:
    """A compiled program. ``call`` takes arrays and gives a list of arrays; ``notes`` is what its tracing found."""

    key: tuple[Any, ...]
    label: str
    call: Callable[..., Any]
    notes: Any
    compiled: jax.stages.Compiled
    span: Span | None = None

    def direct(self) -> Callable[..., Any]:
        """The fastest entry to a program that has run: JAX's C++ function, without the Python method around it."""
        return self.call if self.span else getattr(self.compiled, "_call", None) or self.compiled


@dataclasses.dataclass
class Miss:
    """Why a program was made: the nearest earlier key of the same operation, and what differs."""

    label: str
    seconds: float
    from_disk: bool
    nearest: str
    differs: list[str]
    where: str = ""  # the user's line
    nbytes: int = 0  # of the stored program; 0 where none is stored


@dataclasses.dataclass
class Stats:
    hits: int = 0
    compiled: int = 0
    loaded: int = 0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    misses: list[Miss] = dataclasses.field(default_factory=list)


_KEEP_MISSES = 2000
_KEEP_KEYS = 64  # keys of one operation that a miss is compared with
# Programs kept in memory; shapes without end (a growing cache) must not grow without end. What goes comes back from
# disk in about a millisecond.
_KEEP_PROGRAMS = 8192


class ProgramCache:
    def __init__(self) -> None:
        self.programs: dict[tuple[Any, ...], Program] = {}
        self.stats = Stats()
        self._by_label: dict[str, list[tuple[Any, ...]]] = {}
        self._locks: dict[tuple[Any, ...], threading.RLock] = {}
        self._lock = threading.RLock()
        self.directory = CacheDirectory() if os.environ.get(PERSIST_VARIABLE, "1") != "0" else None
        self.holders: list[Callable[[], None]] = []  # what lets go of programs that are held besides this cache
        self.listeners: list[Callable[[str, float, bool], None]] = []
        self._explains = explain.wanted()
        if self._explains:
            explain.print_total_at_exit(self.stats)

    def get(
        self,
        key: tuple[Any, ...],
        label: str,
        fn: Callable[..., Any],
        avals: Sequence[jax.ShapeDtypeStruct],
        donate: tuple[int, ...] = (),
        notes: Callable[[], Any] = lambda: None,
        device: int = 0,
        options: Mapping[str, Any] | None = None,
        span: Span | None = None,
    ) -> Program:
        """The program of ``key``, compiled from ``fn(*avals)`` if neither memory nor disk has it.

        Args:
          donate: positions of arguments whose memory the results may take.
          notes: called after tracing: what must be kept with the program (picklable).
          options: XLA's compiler options, beside those that are chosen by size; they must be in the key.
          span: the devices of a program that other processes run too; they must be in the key. ``fn`` and ``avals``
            are then of this process's parts.
        """
        found = self.programs.get(key)
        if found is not None:
            self.stats.hits += 1
            return found
        with self._lock:
            lock = self._locks.setdefault(key, threading.RLock())
        with lock:
            found = self.programs.get(key)
            if found is None:
                found = self._make(key, label, fn, avals, donate, notes, device, options, span)
                self.programs[key] = found
                self._locks.pop(key, None)
                self._bound()
        return found

    def _bound(self) -> None:
        """Drop the oldest quarter when there are too many."""
        with self._lock:
            if len(self.programs) > _KEEP_PROGRAMS:
                for old in list(self.programs)[: _KEEP_PROGRAMS // 4]:
                    self.programs.pop(old, None)

    def clear(self, *, disk: bool = False) -> None:
        with self._lock:
            self.programs.clear()
            self._locks.clear()
            self._by_label.clear()
        for let_go in list(self.holders):
            let_go()
        if disk and self.directory is not None:
            self.directory.clear()

    def _make(self, key, label, fn, avals, donate, notes, device, options, span) -> Program:
        platform.start()  # raises where the device cannot be used: a fault of no stored program
        if span is not None:
            fn, avals = span.spread(fn, avals), span.avals(avals)
        start = time.perf_counter()
        name = _file_name(key, device) if self.directory is not None else ""
        devices = span.devices if span is not None else (platform.device(device),)
        loaded = self._load(name, devices) if name else None
        if loaded is not None:
            compiled, kept = loaded
        else:
            compiled, calls_lapack = _compile(label, fn, avals, donate, device, options)
            kept = notes()
            if name:
                self._save(name, compiled, kept, calls_lapack)
        size = self.directory.size_of(name) if self.directory is not None and name else 0
        self._count(key, label, time.perf_counter() - start, loaded is not None, size)
        call = span.entry(compiled) if span is not None else compiled
        return Program(key, label, call, kept, compiled, span)

    def _load(self, name: str, devices: Sequence[Any]) -> tuple[jax.stages.Compiled, Any] | None:
        assert self.directory is not None
        blob = self.directory.read(name)
        if blob is None:
            return None
        try:
            parts, kept, calls_lapack = pickle.loads(blob)
            if calls_lapack:
                _start_lapack()
            return serialize_executable.deserialize_and_load(
                *parts, backend=platform.device(0).client, execution_devices=list(devices)
            ), kept
        except Exception as e:  # whatever is wrong with a stored program, compiling is right
            self.directory.discard(name, f"could not be loaded ({type(e).__name__})")
            return None

    def _save(self, name: str, compiled: jax.stages.Compiled, kept: Any, calls_lapack: bool) -> None:
        assert self.directory is not None
        try:
            blob = pickle.dumps((serialize_executable.serialize(compiled), kept, calls_lapack))
        except Exception:  # some programs (host callbacks) cannot be stored
            return
        self.directory.write(name, blob)

    def _count(self, key: tuple[Any, ...], label: str, seconds: float, from_disk: bool, nbytes: int) -> None:
        with self._lock:
            s = self.stats
            if from_disk:
                s.loaded += 1
                s.load_seconds += seconds
            else:
                s.compiled += 1
                s.compile_seconds += seconds
            earlier = self._by_label.setdefault(label.partition(" #")[0], [])
            nearest, differs = _nearest(key, earlier)
            earlier.append(key)
            del earlier[:-_KEEP_KEYS]
            miss = Miss(label, seconds, from_disk, nearest, differs, explain.user_line(), nbytes)
            s.misses.append(miss)
            del s.misses[:-_KEEP_MISSES]
        if self._explains:
            explain.say(miss)
        for listener in self.listeners:
            listener(label, seconds, from_disk)


def _start_lapack() -> None:
    """Find LAPACK's functions for XLA:CPU. JAX does it when it traces a program that calls them; a program that comes
    from disk was not traced, and would jump to a null pointer."""
    from jaxlib import lapack

    lapack.prepare_lapack_call("potrf", np.dtype(np.float32))


def _compile(label, fn, avals, donate, device, wanted) -> tuple[Any, bool]:
    """(the compiled program, whether it calls LAPACK)."""
    options = None
    if platform.name() == "cpu":
        elements = sum(_size(a) for a in avals)
        if elements <= _SMALL_ELEMENTS:
            options = _CHEAP_OPTIONS
    with jax.enable_x64(True), errors.translated(f"compiling {label}", device):
        traced = jax.jit(fn, donate_argnums=donate, keep_unused=True).trace(*avals)
        if platform.name() != "tpu" and interpretation.has_kernels(traced.jaxpr.jaxpr):
            return interpretation.Interpreted(traced.jaxpr, avals, donate, wanted, label), False
        lowered = traced.lower()
        if options and sum(_size(a) for a in jax.tree_util.tree_leaves(lowered.out_info)) > _SMALL_ELEMENTS:
            options = None
        if platform.name() == "tpu":
            refuse_for_tpu(label, lowered.as_text())
        calls_lapack = platform.name() == "cpu" and "lapack_" in lowered.as_text()
        return lowered.compile(compiler_options={**(options or {}), **(wanted or {})} or None), calls_lapack


def refuse_for_tpu(label: str, text: str) -> None:
    """Turn away what libtpu ends the process on: a program with complex128 in it.

    Raises:
      NotImplementedError: says so, and what to do.
    """
    if "complex<f64>" in text:
        raise NotImplementedError(
            f"{label}: XLA has no complex128 on TPU (its compiler would end the process); use complex64, or move the "
            "operands to the CPU for this operation"
        )


def _size(aval: Any) -> int:
    n = 1
    for d in aval.shape:
        n *= d
    return n


def _nearest(key: tuple[Any, ...], earlier: Sequence[tuple[Any, ...]]) -> tuple[str, list[str]]:
    best: tuple[int, str, list[str]] | None = None
    for other in earlier:
        differs = list(_differences(key, other))
        if best is None or len(differs) < best[0]:
            best = (len(differs), repr(other)[:300], [d[:300] for d in differs])
    return (best[1], best[2]) if best else ("", [])


def _differences(new: Any, old: Any) -> Iterator[str]:
    """What differs, as deep down as it can be said: a shape, a dtype, a static argument."""
    if new == old:
        return
    nested = isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old)
    if nested and not all(isinstance(x, int) for x in (*new, *old)):
        for a, b in zip(new, old, strict=True):
            yield from _differences(a, b)
    elif isinstance(new, str) and len(new) == 64:
        yield "another graph"
    elif isinstance(new, tuple) and isinstance(old, tuple) and new and old and isinstance(new[0], str):
        yield f"{new[0]} (was {old[0]})"
    else:
        yield f"{new!r} (was {old!r})"


def _file_name(key: tuple[Any, ...], device: int) -> str:
    # A stored program names its device, whose number among many processes is not its index in this one.
    number = platform.device(device).id
    return hashlib.sha256((repr(key) + fingerprint() + (f"|{number}" if number != device else "")).encode()).hexdigest()


@functools.cache
def fingerprint() -> str:
    """Everything besides the key that a compiled program depends on."""
    device = platform.devices()[0]
    parts = [
        torch.__version__, jax.__version__, jaxlib.version.__version__, sources_digest(), platform.name(),
        device.device_kind, device.client.platform_version, host.machine(), _cpu_features(),
        os.environ.get("XLA_FLAGS", ""), os.environ.get("LIBTPU_INIT_ARGS", ""),
    ]  # fmt: skip
    return "|".join(parts)


@functools.cache
def sources_digest() -> str:
    """Digest of this package's sources: a changed lowering must not find its old programs."""
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).resolve().parent.parent
    for file in sorted(root.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _cpu_features() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()
    return host.processor()


cache = ProgramCache()


def _refuse(*args: Any) -> Any:
    platform.start()  # raises, and says why


def _stop_programs() -> None:
    for program in cache.programs.values():
        program.call = _refuse


platform.at_fork.append(_stop_programs)


@contextlib.contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """``with counting() as made:`` ... ``made()`` is how many programs were compiled or loaded since."""
    before = cache.stats.compiled + cache.stats.loaded
    yield lambda: cache.stats.compiled + cache.stats.loaded - before
