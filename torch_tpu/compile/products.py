"""Products of what PyTorch has flattened, in the dimensions that it had before.

A linear layer reads [..., features] as a matrix, and its result is seen as [..., features] again. Where the dimension
before the last is no multiple of XLA:TPU's tile, the two lie differently in memory, and the views cut the fusions
around the product (attention over 197 tokens: 496 MiB of HBM traffic a layer, 287 without them). Here the product reads
the operand in its own dimensions and is flattened behind, so that two reshapes meet, which XLA takes out.

A backward graph reads what forward has kept as matrices. There it is done only where the two lie differently: else part
of an activation's gradient would be seen in one way and part in the other, and go through the memory in float32 (a
decoder's training step, 16 layers of 2048 tokens: temporaries 1.33 of JAX's, 1.16 without).

A graph rewritten like this is for ``evaluate`` alone: PyTorch's own ``mm`` takes no tensor of three dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_tpu.compile.rewrite import RESHAPES, shape_of

_aten = torch.ops.aten
# Operator -> which of its arguments is the left matrix.
_LEFT: dict[Any, int] = {_aten.mm.default: 0, _aten.addmm.default: 1}
_ROWS = 16  # of a tile of half types; it is 8 of float32


def unflatten(module: GraphModule, *, backward: bool = False) -> None:
    """Rewrite, in place, the products whose left matrix is [..., k] seen as [rows, k], of sizes that are known.

    Args:
      backward: only those whose dimension before k is no multiple of a tile.
    """
    changed = False
    for node in list(module.graph.nodes):
        source = _before_flattening(node)
        if source is not None and not (backward and shape_of(source)[-2] % _ROWS == 0):
            _in_own_dimensions(node, source)
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _before_flattening(node: Node) -> Node | None:
    """The [..., k] that a product's left matrix is a view of; None if it is none."""
    at = _LEFT.get(node.target)
    if at is None or (at == 1 and len(shape_of(node.args[0])) > 1):  # a bias of two dimensions belongs to the rows
        return None
    matrix = node.args[at]
    if not isinstance(matrix, Node) or matrix.target not in RESHAPES:
        return None
    source = matrix.args[0]
    before, now = shape_of(source), shape_of(matrix)
    if not isinstance(source, Node) or len(before) < 3:
        return None
    known = all(isinstance(n, int) for n in (*before, *now))
    return source if known and before[-1] == now[-1] and 0 not in before else None


def _in_own_dimensions(node: Node, source: Node) -> None:
    rows = node.meta["val"]
    at = _LEFT[node.target]
    with node.graph.inserting_after(node):
        flat = node.graph.call_function(_aten.view.default, (node, list(rows.shape)))
    flat.meta = dict(node.meta)
    node.replace_all_uses_with(flat, delete_user_cb=lambda user: user is not flat)
    node.args = (*node.args[:at], source, *node.args[at + 1 :])
    node.meta["val"] = rows.reshape(*shape_of(source)[:-1], rows.shape[-1])
