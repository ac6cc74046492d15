"""Operators of a graph that stand for a computation of others: their kernels are traced and put in their place.

Custom operators (``torch.library``) with a kernel for tpu, or one in terms of PyTorch's operators; operators of
PyTorch with such a kernel alone; ``flex_attention``. What a kernel does becomes part of the graph, so that it is part
of the program, and of the program's name in the persistent cache.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from torch_tpu.binding import dispatcher
from torch_tpu.binding import higher_order as binding_higher_order
from torch_tpu.binding.dispatcher import HigherOrder, Operator
from torch_tpu.compile import control, operators
from torch_tpu.compile.errors import GraphError, at_line
from torch_tpu.eager.foreach import element_of
from torch_tpu.eager.spec import arguments, overload_name, spec_for

_TRACED = ("flex_attention", "flex_attention_backward")


def prepare(module: GraphModule, decompositions: dict[Any, Callable[..., Any]]) -> None:
    """Make a graph one that ``evaluate`` knows.

    Raises:
      GraphError: an operator has no meaning on tpu, or a shape depends on values; with the user's line.
    """
    binding_higher_order.forget_tokens(module)
    binding_higher_order.keep_random_states_on_device(module)
    waiting = list(module.graph.nodes)
    while waiting:
        node = waiting.pop(0)
        if node.op == "call_function":
            with at_line(node):
                if isinstance(node.target, HigherOrder):
                    control.refuse_impossible(node.target)
                _refuse_unknown_size(node)
                kernel = _kernel_of(module, node)
                if kernel is not None:
                    waiting = _inline(module, node, kernel, decompositions) + waiting
    for child in module.children():
        if isinstance(child, GraphModule):
            prepare(child, decompositions)
    module.recompile()


def _refuse_unknown_size(node: Node) -> None:
    value = node.meta.get("val")
    for t in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(t, torch.Tensor) and free_unbacked_symbols(t):
            raise GraphError(
                "the shape of this result depends on values, which are not known when the program is compiled; let "
                "the graph break there (fullgraph=False), or use an operator whose result has a fixed size, as "
                "torch.where for a mask, torch.nonzero_static, or output_size= of repeat_interleave"
            )


def _kernel_of(module: GraphModule, node: Node) -> Callable[..., Any] | None:
    """What the node's operator does, as a function to trace; None if the operator is known as it is."""
    target: Any = node.target
    if isinstance(target, HigherOrder):
        if target.name() in _TRACED:
            return binding_higher_order.dense_kernel(target)
        if target.name() in ("auto_functionalized", "auto_functionalized_v2"):
            return _functional_form(target.name(), node.args[0])
        control.require(target)
        return None
    if not isinstance(target, Operator):
        return None
    if target._schema.name.startswith("aten::_foreach_") and element_of(target) is None:
        return _kernel(target)
    spec = spec_for(target)
    if (spec is not None and not spec.mutated) or operators.find(target) is not None:
        return None
    return _kernel(target)


def _kernel(op: Operator) -> Callable[..., Any]:
    name = overload_name(op)
    found = dispatcher.device_kernel(name) if op.namespace != "aten" else None
    found = found or dispatcher.composite_kernel(name)
    if found is not None:
        return found
    if op.namespace == "aten":
        raise GraphError(f"{name} has no lowering for tpu")
    raise GraphError(
        f"the custom operator {name} has no kernel for tpu: register one that is made of PyTorch operators, with "
        f'torch.library.register_kernel("{name}", "tpu")'
    )


def _functional_form(name: str, op: Any) -> Callable[..., Any]:
    """A mutating custom operator on copies of what it mutates: its results, and the copies."""
    if not isinstance(op, Operator):
        raise GraphError(f"{op} that writes to its operands is not supported on tpu")
    kernel = _kernel(op)

    def call(_op: Any, **values: Any) -> Any:
        given, copies = binding_higher_order.copies_of_mutated(name, op, values)
        args, kwargs = arguments(op, given)
        result = kernel(*args, **kwargs)
        return (*result, *copies) if isinstance(result, tuple) else (result, *copies)

    return call


def _inline(
    module: GraphModule, node: Node, kernel: Callable[..., Any], decompositions: dict[Any, Callable[..., Any]]
) -> list[Node]:
    """Put what ``kernel`` does in the node's place; the new nodes."""
    graphs = {n: _get(module, n) for n in node.all_input_nodes if n.op == "get_attr"}
    graphs = {n: g for n, g in graphs.items() if isinstance(g, GraphModule)}
    inputs = [n for n in node.all_input_nodes if n not in graphs]

    def call(*values: Any) -> Any:
        found = {**graphs, **dict(zip(inputs, values, strict=True))}
        args, kwargs = map_arg((node.args, node.kwargs), found.__getitem__)
        return kernel(*args, **kwargs)

    functional = binding_higher_order.functional(call)
    fakes = [n.meta["val"] for n in inputs]
    mode = binding_higher_order.fake_mode_of(fakes) or contextlib.nullcontext()
    try:
        with torch.no_grad(), mode:  # what the kernel makes itself is a fake tensor too
            traced = make_fx(functional, decomposition_table=decompositions)(*fakes)
    except Exception as e:
        raise GraphError(f"the kernel of {node.target} is not made of operators that a program can have: {e}") from e
    for n in traced.graph.nodes:
        if n.op == "get_attr":
            value, name = _get(traced, n), _fresh_name(module)
            setattr(module, name, value)
            n.target = name
    last = node.prev
    with module.graph.inserting_before(node):
        held = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), inputs, strict=True))
        result = module.graph.graph_copy(traced.graph, held)  # type: ignore[arg-type]
    made = []
    while last.next is not node:
        last = last.next
        last.stack_trace = node.stack_trace
        made.append(last)
    _replace(module, node, result)
    return made


def _get(module: GraphModule, node: Node) -> Any:
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _fresh_name(module: GraphModule) -> str:
    n = 0
    while hasattr(module, f"_inlined_{n}"):
        n += 1
    return f"_inlined_{n}"


def _replace(module: GraphModule, node: Node, result: Any) -> None:
    """Let the users of a node have a result, which may be a tuple of nodes, of constants, or of tuples."""
    for user in list(node.users):
        if isinstance(result, (list, tuple)) and user.target is operator.getitem:
            _replace(module, user, result[user.args[1]])  # type: ignore[index]
        else:
            user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda n: result if n is node else n)  # type: ignore[assignment]
    module.graph.erase_node(node)
