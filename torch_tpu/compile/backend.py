"""The Dynamo backend "tpu".

Dynamo hands over a graph; AOTAutograd makes it functional and splits it into a forward and a backward graph; each
becomes one XLA program (``runner.Graph``). What has no lowering is decomposed by PyTorch's own tables first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch.fx import GraphModule

from torch_tpu.binding import dispatcher
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.binding.dynamo import leave_kernels_alone
from torch_tpu.compile import errors, inline, operators, products, rewrite, rounding
from torch_tpu.compile import options as compile_options
from torch_tpu.compile.runner import Graph
from torch_tpu.eager.spec import spec_for
from torch_tpu.lowering import registry

_number = itertools.count()


def compile_graph(
    module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """``torch.compile(backend="tpu")``.

    Args:
      module: the graph that Dynamo made.
      inputs: its example inputs (fake tensors, symbolic sizes).
      mode: accepted, without effect: every mode of ``torch.compile``.
      options: ``xla_options``: a dict of XLA's compiler options.

    Raises:
      ValueError: an unknown mode or option.
    """
    leave_kernels_alone()
    chosen = compile_options.options_of(mode, options)
    if not uses_tpu(module, inputs):
        return module.forward
    name = f"graph{_origin(module)} #{next(_number)}"

    def compiler(kind: str) -> Callable[..., Any]:
        def compiled(graph: GraphModule, example_inputs: Sequence[Any]) -> Graph:
            users = _user_outputs() if kind == "forward" else None
            return Graph(prepare(graph, backward=kind == "backward"), f"{name} {kind}".strip(), chosen, users)

        return compiled

    make = aot_autograd(
        fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), inference_compiler=compiler(""),
        partition_fn=partition, decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )  # fmt: skip
    return make(module, inputs)


def _user_outputs() -> int | None:
    """How many outputs of a forward graph are the user's; the others are kept for backward."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return None if metadata is None else metadata.num_forward_returns


def prepare(graph: GraphModule, *, backward: bool = False) -> GraphModule:
    """Make AOTAutograd's graph one that ``evaluate`` knows, and a good one."""
    inline.prepare(graph, decompositions())
    rewrite.simplify(graph)
    products.unflatten(graph, backward=backward)
    rounding.mark(graph)
    return graph


def partition(joint: GraphModule, inputs: Sequence[Any], **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """Forward and backward of a joint graph: what is cheap to compute again is not kept for backward."""
    return min_cut_rematerialization_partition(rewrite.simplify(joint), inputs, **kwargs)


def uses_tpu(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a tensor of the graph, or one that it makes, is on device tpu."""

    def on_tpu(x: Any) -> bool:
        if isinstance(x, torch.Tensor):
            return x.device.type == "tpu"
        if isinstance(x, (list, tuple)):
            return any(on_tpu(e) for e in x)
        return isinstance(x, torch.device) and x.type == "tpu"

    if on_tpu(list(inputs)):
        return True
    return any(
        on_tpu(node.meta.get("example_value")) or on_tpu(list(node.kwargs.values())) for node in module.graph.nodes
    )


def _origin(module: GraphModule) -> str:
    """`` (file.py:12)``: the user's line that the graph begins at."""
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            line = errors.line_of(node)
            if line:
                file, _, rest = line.removeprefix('File "').partition('", line ')
                return f" ({file.rpartition('/')[2]}:{rest.partition(',')[0]})"
    return ""


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of what has no lowering and no meaning of its own in a graph."""
    registry.load_all()  # the graph may be the first thing that the process does on the device
    return {op: fn for op, fn in dispatcher.decompositions().items() if isinstance(op, Operator) and not is_known(op)}


def is_known(op: Any) -> bool:
    """Whether a graph may have the operator."""
    if operators.find(op) is not None:
        return True
    spec = spec_for(op)
    return spec is not None and not spec.mutated
