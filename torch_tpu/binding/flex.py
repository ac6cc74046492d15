"""``flex_attention`` on device tpu: PyTorch's module has a fixed list of devices.

The module is patched when it is first imported, since importing it takes seconds. Contract test:
tests/contracts/test_dynamo.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

NAME = "torch.nn.attention.flex_attention"


def install() -> None:
    """Let ``flex_attention`` take tpu tensors, now or when its module is imported."""
    module = sys.modules.get(NAME)
    if module is not None:
        _allow_tpu(module)
    elif not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _allow_tpu(module: Any) -> None:
    original = module._validate_device
    if getattr(original, "_allows_tpu", False):
        return

    def validate(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "tpu":
            original(query, key, value)

    validate._allows_tpu = True  # type: ignore[attr-defined]
    module._validate_device = validate


class _Finder(importlib.abc.MetaPathFinder):
    """Finds that one module as the others find it, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any):
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _allow_tpu(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)
