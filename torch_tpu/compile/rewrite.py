"""Rewriting a graph before it is partitioned and compiled: what one operator can do in place of several.

XLA fuses what is written as it would be written for it. It does not see that attention reads copies of the same keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import torch
from jax import lax
from torch.fx import GraphModule, Node

from torch_tpu.compile import operators
from torch_tpu.lowering import checks

if TYPE_CHECKING:
    from torch_tpu.compile.evaluate import Context

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_fused_attention_overrideable.default
_ATTENTION_BACKWARD = _aten._scaled_dot_product_fused_attention_overrideable_backward.default
RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)
_library = torch.library.Library("torch_tpu_graph", "DEF")
_library.define("update_range(Tensor self, int dim, Tensor start, Tensor source) -> Tensor")
_UPDATE_RANGE = torch.ops.torch_tpu_graph.update_range.default
_SAME = (_aten.clone.default, _aten.alias.default, _aten.slice.Tensor)


def simplify(module: GraphModule) -> GraphModule:
    """Rewrite the graph in place; it computes the same values."""
    changed = False
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is _ATTENTION:
            changed |= _group_forward(node)
        elif node.op == "call_function" and node.target is _ATTENTION_BACKWARD:
            changed |= _group_backward(node)
        elif node.op == "call_function" and node.target is _aten.index_copy.default:
            changed |= _consecutive_rows(node)
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _group_forward(node: Node) -> bool:
    """Keys and values that were repeated for each query head of a group (as Transformers does): the attention operator
    takes the single ones, and nothing is copied. A decode step reads its cache once, not once a query head."""
    key, value = (_unrepeated(node.args[i]) for i in (1, 2))
    if key is None or value is None:
        return False
    node.args = (node.args[0], key, value, *node.args[3:])
    return True


def _group_backward(node: Node) -> bool:
    """The same for the gradient: the sum over a group's heads is part of the operator."""
    key, value = (_unrepeated(node.args[i]) for i in (2, 3))
    sums = {i: _summed_over_group(node, i) for i in (1, 2)}
    if key is None or value is None or None in sums.values():
        return False
    node.args = (*node.args[:2], key, value, *node.args[4:])
    results = list(node.meta["val"])
    for i, source in ((1, key), (2, value)):
        picked, total = sums[i] or (None, None)
        if picked is None or total is None:  # nobody asks for this gradient
            continue
        results[i] = picked.meta["val"] = source.meta["val"]
        with node.graph.inserting_before(total):
            grouped = node.graph.call_function(_aten.unsqueeze.default, (picked, 2))
        grouped.meta = dict(total.meta)
        total.replace_all_uses_with(grouped)
    node.meta["val"] = tuple(results)
    return True


def _consecutive_rows(node: Node) -> bool:
    """``index_copy`` at arange(n) + start (how a static cache takes new tokens) writes one block: no scatter."""
    this, dim, index, source = node.args
    if not isinstance(index, Node) or index.target is not _aten.add.Tensor or index.kwargs:
        return False
    for rows, start in (index.args, reversed(index.args)):  # type: ignore[misc]
        is_range = isinstance(rows, Node) and rows.target is _aten.arange.default and len(shape_of(rows)) == 1
        if (
            is_range
            and isinstance(start, Node)
            and isinstance(start.meta.get("val"), torch.Tensor)
            and shape_of(start) == ()
        ):
            node.target = _UPDATE_RANGE
            node.args = (this, dim, start, source)
            return True
    return False


@operators.handles("torch_tpu_graph::update_range")
def update_range(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """``self`` with ``source`` from position ``start`` of ``dim`` on."""
    this, start, source = bound["self"], bound["start"], bound["source"]
    dim = bound["dim"] % this.ndim
    size, rows = this.shape[dim], source.shape[dim]
    # The index that index_copy would name: the first one, or the last.
    worst = jnp.where(start < 0, start, start + (rows - 1))
    message = f"index_copy: index {{value}} is out of bounds for dimension {dim} with size {size}"
    checks.require((start < 0) | (start + rows > size), worst, message, checks.IndexOutOfRange)
    return lax.dynamic_update_slice_in_dim(this, source.astype(this.dtype), start.astype(jnp.int32), dim)


def shape_of(x: Any) -> tuple[Any, ...]:
    """The shape of a node's value; () for what is no tensor."""
    return tuple(x.meta["val"].shape) if isinstance(x, Node) and isinstance(x.meta.get("val"), torch.Tensor) else ()


def _unrepeated(node: Any) -> Node | None:
    """``x`` of shape (batch, heads, length, size), where the node is x with each head repeated; else None.

    The repetition is a reshape of an expansion of ``x[:, :, None]``.
    """
    full = shape_of(node)
    if len(full) != 4 or node.target not in RESHAPES:
        return None
    at = node.args[0]
    five = shape_of(at)
    if len(five) != 5 or (five[0], five[3], five[4]) != (full[0], full[2], full[3]):
        return None
    while isinstance(at, Node) and at.target in _SAME and shape_of(at) == five and shape_of(at.args[0]) == five:
        at = at.args[0]
    if not isinstance(at, Node) or at.target is not _aten.expand.default:
        return None
    at = at.args[0]
    one = (*five[:2], 1, *five[3:])
    while isinstance(at, Node) and at.target in _SAME and shape_of(at) == one and shape_of(at.args[0]) == one:
        at = at.args[0]
    if not isinstance(at, Node) or at.target is not _aten.unsqueeze.default or shape_of(at) != one:
        return None
    source = at.args[0]
    is_head = at.args[1] in (2, -3)
    return source if isinstance(source, Node) and is_head and shape_of(source) == (*five[:2], *five[3:]) else None


def _summed_over_group(node: Node, index: int) -> tuple[Node | None, Node | None] | None:
    """(the index-th result, its sum over a group's heads); (None, None) if it is not used; None if used otherwise."""
    picked = [u for u in node.users if u.args[1] == index]
    if not picked:
        return None, None
    if len(picked) != 1 or len(picked[0].users) != 1:
        return None
    view = next(iter(picked[0].users))
    if view.target not in RESHAPES or len(shape_of(view)) != 5 or len(view.users) != 1:
        return None
    total = next(iter(view.users))
    is_sum = total.target is _aten.sum.dim_IntList and list(total.args[1]) == [2] and total.args[2:] == (True,)  # type: ignore[arg-type]
    return (picked[0], total) if is_sum and not total.kwargs else None
