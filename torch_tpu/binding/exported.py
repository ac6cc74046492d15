"""What is read from ``torch.export`` beyond its public API; contract tests: tests/contracts/test_exported.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

from torch_tpu.binding import dispatcher


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """The operators made of others, which ``run_decompositions`` leaves whole unless its table has them."""
    return {op: fn for op, fn in torch.export.default_decompositions().items()
            if isinstance(op, torch._ops.OpOverload) and dispatcher.is_composite_implicit(op.name())}  # fmt: skip


def dimension_names(program: ExportedProgram) -> dict[Any, str]:
    """Symbol -> the name that the user's ``torch.export.Dim`` gave it; a symbol without one is missing.

    The names are in the shape environment only, under the source that the dimension was read from; a dimension that
    stands in expressions alone (``4 * k``) is a source of its own, called by its name.
    """
    found: dict[Any, str] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if not isinstance(size, torch.SymInt):
                continue
            environment: Any = size.node.shape_env
            names = getattr(environment, "source_name_to_debug_name", {})
            for source, symbol in getattr(environment, "source_to_var", {}).items():
                if source in names or source.isidentifier():
                    found.setdefault(symbol, names.get(source, source))
            return found
    return found
