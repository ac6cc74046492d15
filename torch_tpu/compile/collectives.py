"""Collectives of a graph: what ``_c10d_functional`` operators mean inside one program of several ranks.

Dynamo turns ``dist.all_reduce`` and its kin into them, DTensor and tensor parallel make them, and AOTAutograd
differentiates them. Each is the XLA collective of its name over the ranks of its group; ``wait_tensor`` is nothing,
since XLA orders what depends on what.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.fx import GraphModule, Node

from torch_tpu.binding.dispatcher import Operator
from torch_tpu.compile.errors import GraphError
from torch_tpu.compile.operators import handles
from torch_tpu.eager.spec import Kind, spec_for
from torch_tpu.lowering import collectives, dtypes
from torch_tpu.lowering.collectives import AXIS, Among
from torch_tpu.runtime.spanning import Span

if TYPE_CHECKING:
    from torch_tpu.compile.evaluate import Context

_NAMESPACES = ("_c10d_functional", "_dtensor")
_GROUP = "group_name"


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What the ranks that run a program together have found out of each other.

    Attributes:
      span: their devices; None where this rank is alone.
      ranks: their numbers in the world.
      among: for each collective, by its place in the graph, the groups that run it at once.
      varied: node -> path to an argument of it -> its value on each rank, where they differ.
      digest: of the text that all of them have.
    """

    span: Span | None
    ranks: tuple[int, ...]
    among: Mapping[Node, Among]
    varied: Mapping[Node, Mapping[tuple[Any, ...], tuple[Any, ...]]]
    digest: str

    def own(self, node: Node, path: tuple[Any, ...]) -> jax.Array:
        """This rank's value of an argument that differs from rank to rank."""
        return jnp.asarray(self.varied[node][path])[lax.axis_index(AXIS)]

    @property
    def key(self) -> tuple[Any, ...]:
        """What the program depends on besides its graph."""
        devices = () if self.span is None else self.span.key
        return (
            devices,
            tuple(a.groups for a in self.among.values()),
            tuple(tuple(v.items()) for v in self.varied.values()),
        )


def group_place(node: Node) -> int | str | None:
    """Where a collective has its process group among ``args`` or ``kwargs``; None for a node that names none."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, Operator):
        return None
    names = [a.name for a in target._schema.arguments] if target.namespace in _NAMESPACES else []
    if _GROUP not in names:
        return None
    return _GROUP if _GROUP in node.kwargs else names.index(_GROUP)


def group_argument(node: Node) -> Any:
    """The process group of a collective, or its name."""
    at = group_place(node)
    return node.kwargs[at] if isinstance(at, str) else node.args[at]  # type: ignore[index]


def sites(module: GraphModule) -> list[Node]:
    """The nodes that talk to other ranks, in order, those of graphs inside the graph too."""
    found = [n for n in module.graph.nodes if group_place(n) is not None]
    for child in module.children():
        if isinstance(child, GraphModule):
            found += sites(child)
    return found


def _among(context: Context, node: Node | None) -> Among:
    """The ranks of a collective."""
    if context.agreed is None or node is None or node not in context.agreed.among:
        raise GraphError("a collective outside of a graph that its ranks have agreed on")
    return context.agreed.among[node]


def _reduced(x: jax.Array, reduction: str, among: Among) -> jax.Array:
    collectives.check_reduction(reduction, x.dtype)
    return collectives.reduce_over_ranks(x, reduction, among)


@handles("_c10d_functional::all_reduce", "_c10d_functional::all_reduce_")
def all_reduce(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    return _reduced(bound["input"], bound["reduce_op"], _among(context, node))


@handles("_c10d_functional::all_reduce_coalesced", "_c10d_functional::all_reduce_coalesced_")
def all_reduce_coalesced(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    among = _among(context, node)
    return [_reduced(x, bound["reduce_op"], among) for x in bound["inputs"]]


def _gathered(x: jax.Array, among: Among) -> jax.Array:
    """The ranks' values one after the other along the first dimension."""
    return collectives.gathered(x.reshape(1) if x.ndim == 0 else x, among, tiled=True)


@handles("_c10d_functional::all_gather_into_tensor", "_c10d_functional::all_gather_into_tensor_out")
def all_gather(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    return _gathered(bound["input"], _among(context, node))


@handles("_c10d_functional::all_gather_into_tensor_coalesced")
def all_gather_coalesced(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    among = _among(context, node)
    return [_gathered(x, among) for x in bound["inputs"]]


def _scattered(x: jax.Array, reduction: str, among: Among) -> jax.Array:
    collectives.check_reduction(reduction, x.dtype)
    rows = x.reshape(among.size, x.shape[0] // among.size, *x.shape[1:])
    return collectives.scatter_sum(rows, reduction, among)


@handles("_c10d_functional::reduce_scatter_tensor", "_c10d_functional::reduce_scatter_tensor_out")
def reduce_scatter(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    return _scattered(bound["input"], bound["reduce_op"], _among(context, node))


@handles("_c10d_functional::reduce_scatter_tensor_coalesced")
def reduce_scatter_coalesced(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    among = _among(context, node)
    return [_scattered(x, bound["reduce_op"], among) for x in bound["inputs"]]


@handles("_c10d_functional::all_to_all_single")
def all_to_all(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    among = _among(context, node)
    x = bound["input"]
    for sizes in (bound["output_split_sizes"], bound["input_split_sizes"]):
        if any(s != sizes[0] for s in sizes):
            raise GraphError(
                f"all_to_all in parts of different sizes {list(sizes)} has no form in one program of all ranks; "
                "let the graph break there, or pad the parts to one size"
            )
    if among.size == 1 or x.shape[0] == 0:
        return x
    return lax.all_to_all(x, AXIS, 0, 0, axis_index_groups=among.groups, tiled=True)


@handles("_dtensor::shard_dim_alltoall")
def shard_dim_alltoall(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    """Split along one dimension by splitting along another."""
    among = _among(context, node)
    x, gather, split = bound["input"], bound["gather_dim"], bound["shard_dim"]
    if among.size == 1:
        return x
    return lax.all_to_all(x, AXIS, split, gather, axis_index_groups=among.groups, tiled=True)


@handles("_c10d_functional::broadcast", "_c10d_functional::broadcast_")
def broadcast(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    among = _among(context, node)
    if among.size == 1:
        return bound["input"]
    return collectives.broadcast_from(bound["input"], among.position() == bound["src"], among)


@handles("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")
def same(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    return next(iter(bound.values()))


@handles("_c10d_functional::isend", "_c10d_functional::irecv", "_c10d_functional::batch_p2p_ops")
def point_to_point(op: Any, bound: dict[str, Any], fake: Any, context: Context, node: Node | None) -> Any:
    raise GraphError("send and recv go through the hosts and are no part of a program: let the graph break there")


def call_with_own(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fake: Any, context: Context, node: Node
) -> Any:
    """An operator some of whose numbers differ from rank to rank (the place of this rank's part of a dimension, or of a
    vocabulary): they are looked up by the rank in the program, which is the same on all.

    Raises:
      GraphError: the operator has no form in which they may differ.
    """
    from torch_tpu.compile.evaluate import call_operator

    assert context.agreed is not None
    agreed, paths = context.agreed, context.agreed.varied[node]
    if target is operator.getitem and isinstance(args[0], (list, tuple)):
        same = {(x.shape, x.dtype) for x in args[0]}
        if len(same) == 1:
            return lax.select_n(agreed.own(node, (1,)).astype(jnp.int32), *args[0])
    if target is torch.ops.aten.slice.Tensor and kwargs.get("step", (*args, 1, 1, 1)[4]) == 1:
        x: Any = args[0]
        dim = args[1]
        start = agreed.own(node, (2,)) if (2,) in paths else args[2] or 0
        start = jnp.where(start < 0, start + x.shape[dim], start)
        return lax.dynamic_slice_in_dim(x, start, int(fake.shape[dim]), dim)
    if target is torch.ops.aten.select.int and set(paths) == {(2,)}:
        index = agreed.own(node, (2,))
        return lax.dynamic_index_in_dim(args[0], index, args[1], keepdims=False)
    spec = spec_for(target) if isinstance(target, Operator) else None
    kinds = {p.name: p.kind for p in spec.params} if spec is not None else {}
    names = [a.name for a in target._schema.arguments] if spec is not None else []
    changed, named = list(args), dict(kwargs)
    for path in paths:
        name = path[0] if isinstance(path[0], str) else names[path[0]] if names else None
        if len(path) != 1 or name is None or kinds.get(name) not in (Kind.NUMBER, Kind.TENSOR):
            raise GraphError(
                f"an argument that the program needs to know differs from rank to rank: {paths[path]} of "
                f"{getattr(target, '__name__', target)}; all ranks run one program"
            )
        kind = type(paths[path][0])
        value = dtypes.Scalar(agreed.own(node, path), kind)
        if isinstance(path[0], str):
            named[path[0]] = value
        else:
            changed[path[0]] = value
    return call_operator(target, tuple(changed), named, fake, context, node)
