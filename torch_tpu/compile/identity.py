"""The text of a graph that its program is known by: the same in every process that traces the same model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_tpu.binding import process_groups
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager.spec import overload_name
from torch_tpu.lowering import registry

# Of a number in a graph: its node, and the way to it in the node's ``args`` or ``kwargs``.
Numbers = dict[tuple[Node, tuple[Any, ...]], Any]


def digest(module: GraphModule) -> str:
    """A digest of everything in the graph that its program depends on, but for the values of symbolic sizes."""
    return hashlib.sha256(text(module).encode()).hexdigest()


def text(module: GraphModule) -> str:
    """One line a node: its operation, its arguments, and what its value looks like. Names of nodes do not count."""
    return _listing(
        module,
        lambda node, number: (
            f"{number[node]} {node.op} {_target(node)} {_argument(node.args, number)} "
            f"{_argument(node.kwargs, number)} -> {_look(node.meta.get('val'))}"
        ),
    )


def template(module: GraphModule, groups: dict[Node, tuple[int | str, str]]) -> tuple[str, Numbers]:
    """The text without the numbers in it, and these: what ranks that run one program must have alike, and what they
    may not.

    Args:
      groups: where a collective has its group, whose name differs from rank to rank, and what to say in its place.
    """
    numbers: Numbers = {}

    def say(x: Any, node: Node, path: tuple[Any, ...], number: dict[Node, int]) -> str:
        if isinstance(x, (int, float)) and not isinstance(x, bool):
            numbers[node, path] = x
            return f"<{type(x).__name__}>"
        if isinstance(x, (list, tuple)):
            return "(" + ",".join(say(e, node, (*path, i), number) for i, e in enumerate(x)) + ")"
        return _argument(x, number)

    def line(node: Node, number: dict[Node, int]) -> str:
        at, group = groups.get(node, (None, ""))
        args = [group if i == at else say(a, node, (i,), number) for i, a in enumerate(node.args)]
        kwargs = [f"{k}={group if k == at else say(a, node, (k,), number)}" for k, a in sorted(node.kwargs.items())]
        shown = ", ".join([*args, *kwargs])
        return f"%{number[node]} = {_target(node) or node.op}({shown}) -> {_look(node.meta.get('val'))}"

    return _listing(module, line), numbers


def _listing(module: GraphModule, line: Callable[[Node, dict[Node, int]], str]) -> str:
    """``line(node, numbers of the nodes so far)`` for each node, then the graphs inside the graph."""
    number: dict[Node, int] = {}
    lines = []
    for node in module.graph.nodes:
        number[node] = len(number)
        lines.append(line(node, number))
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            lines.append(f"[{name}\n{_listing(child, line)}\n]")
    return "\n".join(lines)


def _target(node: Node) -> str:
    if node.op == "placeholder":
        return ""
    target: Any = node.target
    if isinstance(target, Operator):
        lowering = registry.get(overload_name(target))
        if lowering is not None and lowering.fingerprint is not None:
            return f"{overload_name(target)} {lowering.fingerprint(_looks(node, target))}"
        return overload_name(target)
    return target if isinstance(target, str) else f"{target.__module__}.{getattr(target, '__name__', target)}"


def _looks(node: Node, op: Operator) -> dict[str, Any]:
    """A node's arguments by name, with fake tensors in place of tensors."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    return {a.name: given.get(a.name, a.default_value) for a in op._schema.arguments}


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
    return type(value).__name__ if process_groups.is_object(value) else str(value)
