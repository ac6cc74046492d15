"""The two steps of becoming a device.

``register`` runs at ``import torch``: it names the device, hangs up the module and replaces what is unsafe, and
imports neither JAX nor any lowering. ``load`` runs when the device is first used, and registers the kernels.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import threading
from typing import Any

import torch
from torch.utils import backend_registration

_registered = False
_loaded = False
_lock = threading.RLock()
_FACTORIES = ("empty.memory_format", "empty_strided")


class _Hooks(torch._C._acc.PrivateUse1Hooks):  # type: ignore[name-defined,misc]
    def is_available(self) -> bool:
        from torch_tpu.binding import device

        return device.is_available()

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


_kept: list[Any] = []


def register() -> None:
    """Make "tpu" a device of this PyTorch."""
    global _registered
    with _lock:
        if _registered:
            return
        _registered = True
    from torch_tpu.binding import (
        accelerate,
        accelerator,
        autocast,
        backends,
        conversion,
        dynamo,
        engine,
        flex,
        generator,
        pinning,
        printing,
        process_groups,
        storage,
        streams,
    )

    _kept.extend([_Hooks(), engine.Guard()])
    module = sys.modules["torch_tpu"]
    backend_registration._setup_privateuseone_for_python_backend(
        rename="tpu", backend_module=module, hook=_kept[0], device_guard=_kept[1]
    )
    _alias_submodules()
    accelerator.install()
    conversion.install()
    dynamo.install()
    engine.install()
    flex.install()
    accelerate.install()
    storage.install()
    pinning.install()
    printing.install()
    backends.install()
    streams.install()
    autocast.install_defaults()
    process_groups.register(_make_process_group)
    torch.Generator = generator.Generator  # type: ignore[misc]
    from torch_tpu.binding.registration import register as register_kernel

    for name in _FACTORIES:
        register_kernel(f"aten::{name}", _first_use(name))


def _first_use(name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        load()
        from torch_tpu.eager import install

        return install._COPIES[name](*args, **kwargs)

    return kernel


def _make_process_group(options: Any, backend_options: Any) -> Any:
    from torch_tpu.distributed import backend

    return backend.create(options, backend_options)


def load() -> None:
    """Start the platform and register all kernels; does nothing the second time."""
    global _loaded
    if _loaded:
        return
    with _lock:
        if _loaded:
            return
        from torch_tpu.runtime import platform

        platform.start()  # the error, if there is no such platform, belongs to whoever used the device
        from torch_tpu.binding import autocast, device, generator
        from torch_tpu.eager import install, kernels, plan

        plan.current_device = device.current_device
        kernels.default_generator = generator.default_generator
        kernels.check_generator = generator.check_for_tpu
        install.install()
        autocast.install()
        # Backward runs in the thread that asks for it, as it does for CPU tensors: a thread of the device's own gains
        # nothing where kernels are Python, and costs a change of threads. Several devices even need it: PyTorch's
        # Python guard reports one, the autograd engine makes one thread, and a graph on tpu:1 would find none.
        torch.autograd.set_multithreading_enabled(False)
        if len(platform.devices()) > 1:
            device.follow_current_device()
        sys.modules["torch_tpu"]._initialized = True  # type: ignore[attr-defined]  checkpoint asks for it
        _loaded = True


class _AliasFinder:
    """``import torch.tpu.x`` finds ``torch_tpu.x`` itself, not a second copy of it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("torch.tpu."):
            return None
        from importlib.machinery import ModuleSpec

        real = name.replace("torch.tpu.", "torch_tpu.", 1)
        spec = ModuleSpec(name, _AliasLoader(real))
        found = _found(real)
        if found is not None:  # python -m runs a package's __main__, and calls the program by its file
            spec.origin = found.origin
            spec.submodule_search_locations = None if found.submodule_search_locations is None else []
        return spec


def _found(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


class _AliasLoader(importlib.abc.Loader):
    def __init__(self, real: str):
        self.real = real

    def create_module(self, spec: Any) -> Any:
        return importlib.import_module(self.real)

    def exec_module(self, module: Any) -> None:
        return None

    def get_code(self, name: str) -> Any:
        """``python -m torch.tpu.x`` runs the code of ``torch_tpu.x``."""
        found = importlib.util.find_spec(self.real)
        return None if found is None or found.loader is None else found.loader.get_code(self.real)  # type: ignore[attr-defined]


def _alias_submodules() -> None:
    sys.meta_path.insert(0, _AliasFinder())  # type: ignore[arg-type]
