"""The text of a graph that its program is known by: the same in every process that traces the same model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_tpu.eager.spec import overload_name


def digest(module: GraphModule) -> str:
    """A digest of everything in the graph that its program depends on, but for the values of symbolic sizes."""
    return hashlib.sha256(text(module).encode()).hexdigest()


def text(module: GraphModule) -> str:
    """One line a node: its operation, its arguments, and what its value looks like. Names of nodes do not count."""
    number: dict[Node, int] = {}
    lines = []
    for node in module.graph.nodes:
        number[node] = len(number)
        lines.append(
            f"{number[node]} {node.op} {_target(node)} {_argument(node.args, number)} "
            f"{_argument(node.kwargs, number)} -> {_look(node.meta.get('val'))}"
        )
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            lines.append(f"[{name}\n{text(child)}\n]")
    return "\n".join(lines)


def _target(node: Node) -> str:
    if node.op == "placeholder":
        return ""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return overload_name(target)
    return target if isinstance(target, str) else f"{target.__module__}.{getattr(target, '__name__', target)}"


def _argument(x: Any, number: dict[Node, int]) -> str:
    if isinstance(x, Node):
        return f"%{number[x]}"
    if isinstance(x, (list, tuple)):
        return "(" + ",".join(_argument(e, number) for e in x) + ")"
    if isinstance(x, dict):
        return "{" + ",".join(f"{k}:{_argument(v, number)}" for k, v in sorted(x.items())) + "}"
    if isinstance(x, float):
        return x.hex() if x == x and abs(x) != float("inf") else str(x)
    return repr(x) if isinstance(x, (int, bool, str, complex, type(None))) else str(x)


def _look(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}@{value.device}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_look(v) for v in value) + "]"
    return str(value)
