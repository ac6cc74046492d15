"""Buffers that share memory. PyTorch cannot make a program functional that writes to one of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from torch_tpu.binding.dispatcher import Operator
from torch_tpu.compile.errors import line_of
from torch_tpu.export.errors import ExportError


def raise_if_written_twice(program: ExportedProgram, cause: Exception) -> None:
    """Say what is wrong where ``run_decompositions`` failed because the program writes to shared memory.

    Raises:
      ExportError: with the names of two weights that share memory, and the line that writes to one of them.
    """
    held = _weights(program)
    for node, name in _written(program):
        for other, t in held.items():
            if name in held and other != name and _overlap(held[name], t):
                where = line_of(node)
                raise ExportError(
                    f"the model writes to {name}, which shares memory with {other}: an artifact keeps each weight "
                    f"apart, so keep one of them as a buffer and make the other in forward, or register "
                    "a clone" + (f"\n  from user code: {where}" if where else "")
                ) from cause


def _weights(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, of device memory or of the host's."""
    names = [
        str(s.target)
        for s in program.graph_signature.input_specs
        if s.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    ]
    found = {n: program.state_dict[n] if n in program.state_dict else program.constants[n] for n in names}
    return {n: t for n, t in found.items() if isinstance(t, torch.Tensor) and t.layout == torch.strided and t.numel()}


def _written(program: ExportedProgram) -> Iterator[tuple[Node, str]]:
    """(operator, name of the weight that it writes to)."""
    name_of = {s.arg.name: str(s.target) for s in program.graph_signature.input_specs if s.target is not None}
    for node in program.graph.nodes:
        target = node.target
        if not isinstance(target, Operator) or not target._schema.is_mutable:
            continue
        at = node.args[0] if node.args else None
        while isinstance(at, Node) and at.op == "call_function" and at.args:
            at = at.args[0]
        if isinstance(at, Node) and at.op == "placeholder" and at.name in name_of:
            yield node, name_of[at.name]


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors may have an element in common."""
    if a.device != b.device or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (a0, a1), (b0, b1) = _span(a), _span(b)
    return a0 < b1 and b0 < a1


def _span(t: torch.Tensor) -> tuple[int, int]:
    """First byte in its storage, and the one behind the last."""
    first = int(t.storage_offset())
    last = first + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return first * t.itemsize, (last + 1) * t.itemsize
