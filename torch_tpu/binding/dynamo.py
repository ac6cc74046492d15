"""What Dynamo is told of device tpu: its backend, and that it is the default for tpu tensors.

Stock PyTorch sends ``torch.compile`` of tpu tensors to Inductor's own Pallas generator, which needs packages that are
not there. Contract tests: tests/contracts/test_dynamo.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu.binding.generator import Generator
from torch_tpu.binding.importing import when_imported


def backend(module: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
    """The backend by name; the compiler is imported when it is first asked for."""
    from torch_tpu.compile.backend import compile_graph

    return compile_graph(module, inputs, **kwargs)


# Packages that run when an operator is called; what users call, and Dynamo may trace, is elsewhere.
_NOT_TRACED = ("torch_tpu.distributed", "torch_tpu.eager", "torch_tpu.lowering", "torch_tpu.runtime")


@functools.cache
def leave_kernels_alone() -> None:
    """Keep Dynamo from compiling this package's kernels where they run between graphs: in hooks, after a break."""
    from torch._dynamo import trace_rules

    for name in _NOT_TRACED:
        trace_rules.add(name)


def _generators_end_graphs(builder: Any) -> None:
    """A tpu generator ends a graph, as CPU's and CUDA's do: Dynamo knows those by their exact type."""
    known = builder.VariableBuilder
    known._type_dispatch()[Generator] = known.wrap_user_defined


def install() -> None:
    """Make the backend "tpu" the default for tpu tensors (by name it is found by its entry point)."""
    when_imported("torch._dynamo.variables.builder", _generators_end_graphs)
    wrapper: Any = torch._TorchCompileInductorWrapper  # type: ignore[attr-defined]
    if hasattr(wrapper, "_tpu_original"):
        return
    original = wrapper.__call__

    def call(self: Any, model_: Any, inputs_: Any) -> Any:
        from torch_tpu.compile.backend import compile_graph, uses_tpu

        if uses_tpu(model_, inputs_):
            return compile_graph(model_, inputs_)
        return original(self, model_, inputs_)

    wrapper._tpu_original = original
    wrapper.__call__ = call
