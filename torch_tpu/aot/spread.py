"""Which axes of a mesh split the batch, from the shardings of a program's operands."""

from __future__ import annotations

from collections.abc import Iterable

from torch_tpu.aot.program import Value
from torch_tpu.aot.sharding import Shardings
from torch_tpu.aot.state import INPUTS
from torch_tpu.aot.trace import Captured, placeholders
from torch_tpu.ops.chips import Split


def spread(shardings: Shardings, graphs: Iterable[Captured]) -> Split:
    """The axes along the first dimension of inputs are the batch's: kernels split their batch over these, and their
    heads over the others. Where a layer's arrays lie otherwise, XLA moves them."""
    batch: dict[str, None] = {}
    for graph in graphs:
        for name, role, node in zip(graph.names, graph.roles, placeholders(graph.module), strict=True):
            if role != INPUTS:
                continue
            found = shardings.partition(Value(name, role, tuple(node.meta["val"].shape), "", 0))
            axes = found[0] if found else None
            batch |= dict.fromkeys([axes] if isinstance(axes, str) else axes or ())
    return Split(shardings.mesh, tuple(batch))
