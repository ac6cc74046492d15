"""The part of a graph that lives on the host: CPU tensors computed from CPU tensors.

An optimizer keeps its step counts as CPU scalars and adds one to them inside its compiled step. What the device needs
of such values is an operand of the program; what becomes of them on the host is computed there, by PyTorch, so that
nobody waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node


def is_host(node: Node) -> bool:
    """Whether the node and everything that it is made from are CPU tensors, lists of them, or numbers."""
    return _is_host(node, {})


def _is_host(node: Node, known: dict[Node, bool]) -> bool:
    if node not in known:
        known[node] = _on_cpu(node.meta.get("val")) and all(_is_host(n, known) for n in node.all_input_nodes)
    return known[node]


def _on_cpu(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu"
    if isinstance(value, (list, tuple)):
        return all(_on_cpu(v) for v in value)
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))


class HostPart:
    """Computes some nodes of a graph on the host, from the graph's inputs."""

    def __init__(self, module: GraphModule, wanted: Sequence[Node]):
        needed: set[Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node not in needed:
                needed.add(node)
                stack += node.all_input_nodes
        graph, copies = Graph(), {}
        self.reads: list[int] = []
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for node in module.graph.nodes:
            if node in needed:
                copies[node] = graph.node_copy(node, lambda n: copies[n])
                if node.op == "placeholder":
                    self.reads.append(placeholders.index(node))
        graph.output([copies[n] for n in wanted])
        self.run = GraphModule(module, graph).forward  # a module's call looks for hooks

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return self.run(*[args[i] for i in self.reads])
