"""Where a value between two products is to be rounded: before it goes through the memory.

A product with a bias, and what is computed from its elements alone, is a chain in float32 to XLA, which may cut it
anywhere. XLA:TPU cuts it behind the product itself, leaving the bias and an activation to the next product: half types
go through HBM as float32, at twice the bytes. The program keeps PyTorch's rounding of such a product: nothing is fused
across it, and the activation is computed where the next product reads it.

An activation with a quotient in it (logistic, erfc) is another case: XLA:TPU can compute both products around it as one
fusion, and nothing goes through the memory between them. It does not say when; measured (docs/planning.md) it does for
features that are a multiple of 256 up to a bound, and if it does not, the barrier is better.
"""

from __future__ import annotations

import operator
from typing import Any

import jax
import torch
from jax import lax
from torch.fx import GraphModule, Node

from torch_tpu.binding.dispatcher import Operator

_aten = torch.ops.aten
# Operator -> which of its arguments are factors, and which is its bias (None: it has none).
_PRODUCTS: dict[Any, tuple[tuple[int, ...], int | None]] = {
    _aten.mm.default: ((0, 1), None),
    _aten.bmm.default: ((0, 1), None),
    _aten.addmm.default: ((1, 2), 0),
    _aten.baddbmm.default: ((1, 2), 0),
    _aten.convolution.default: ((0, 1), 2),
    _aten._scaled_dot_product_fused_attention_overrideable.default: ((0, 1, 2), None),
}
# Activations whose lowering for TPU divides -> the number of features from which on they are not fused.
_FUSED: dict[Any, int] = {_aten.gelu.default: 4096, _aten.silu.default: 2048, _aten.sigmoid.default: 2048}
_GELU_TANH = 2048
_FEATURES = 256
_HALF = (torch.bfloat16, torch.float16)
_MARK = "tpu_rounded"


def mark(module: GraphModule) -> None:
    """Mark the products with a bias that are read by other products, as they are or element by element."""
    known: dict[Node, frozenset[Node]] = {}
    for node in module.graph.nodes:
        factors, _ = _PRODUCTS.get(node.target, ((), None))
        for i in factors:
            value = _unviewed(node.args[i])
            if value is not None and _dtype(value) in _HALF:
                for source in _biased(value, known):
                    source.meta[_MARK] = True


def rounded(node: Node, value: Any) -> Any:
    """The value of a node; one that is marked lies in memory in its own type."""
    return lax.optimization_barrier(value) if _MARK in node.meta and isinstance(value, jax.Array) else value


def _biased(node: Node, known: dict[Node, frozenset[Node]]) -> frozenset[Node]:
    """The products with a bias that a value is computed from element by element; none if it is from anything else.

    A sum with another tensor (a residual) is better fused with the product than with what reads it.
    """
    if node not in known:
        known[node] = frozenset()
        if node.target in _PRODUCTS:
            bias = _PRODUCTS[node.target][1]
            if bias is not None and node.args[bias] is not None and _dtype(node) in _HALF:
                known[node] = frozenset([node])
        elif isinstance(node.target, Operator) and torch.Tag.pointwise in node.target.tags:
            found = [_biased(s, known) for a in node.all_input_nodes if (s := _unviewed(a)) is not None]
            if found and all(found):
                known[node] = frozenset(s for s in frozenset().union(*found) if not _fuses(node, s))
    return known[node]


def _fuses(activation: Node, product: Node) -> bool:
    """Whether XLA:TPU computes a product, the activation of it and the product that reads that as one."""
    if activation.target not in _FUSED or product.target is _aten.convolution.default:
        return False
    left: Any = product.args[_PRODUCTS[product.target][0][0]]
    features = left.meta["val"].shape[-1]
    tanh = activation.kwargs.get("approximate") == "tanh"
    return (
        isinstance(features, int)
        and features % _FEATURES == 0
        and features < (_GELU_TANH if tanh else _FUSED[activation.target])
    )


def _unviewed(node: Any) -> Node | None:
    """The node that is looked at in another shape, or in parts; a tensor that is repeated ends the way."""
    while isinstance(node, Node):
        target: Any = node.target
        is_view = isinstance(target, Operator) and (target.is_view or target is _aten.clone.default)
        if target is not operator.getitem and (not is_view or target is _aten.expand.default):
            return node
        node = node.args[0]
    return None


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
