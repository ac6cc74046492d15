"""Errors of compiled graphs, which say where in the user's program the operator stands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.fx import Node


class GraphError(NotImplementedError):
    """A graph has an operator that device tpu cannot compile."""


def line_of(node: Node) -> str:
    """The user's line of a node: ``File "x.py", line 3, in forward: y = ...``; empty if it is not known."""
    trace = node.stack_trace or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    at = max((i for i, line in enumerate(lines) if line.startswith("File ")), default=None)
    if at is None:
        return ""
    code = lines[at + 1] if at + 1 < len(lines) else ""
    return lines[at] + (f": {code}" if code else "")


@contextlib.contextmanager
def at_line(node: Node, *passing: type[Exception]) -> Iterator[None]:
    """Add the user's line to what goes wrong inside; exceptions of the types ``passing`` go through as they are."""
    try:
        yield
    except Exception as e:
        if getattr(e, "_tpu_line", False) or isinstance(e, passing):
            raise
        where = line_of(node)
        message = f"{e}\n  while compiling {node.format_node()}" + (f"\n  from user code: {where}" if where else "")
        kind = GraphError if isinstance(e, NotImplementedError) else RuntimeError
        made = kind(message)
        made._tpu_line = True  # type: ignore[attr-defined]
        raise made from e
