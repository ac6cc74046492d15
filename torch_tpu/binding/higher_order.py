"""Private parts of PyTorch's higher-order operators that the graph compiler takes to pieces.

Contract tests: tests/contracts/test_dynamo.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._subclasses.fake_tensor
from torch._guards import detect_fake_mode
from torch._library.utils import is_out as is_out_operator
from torch._prims import rng_prims
from torch.fx import GraphModule
from torch.fx.node import map_arg

fake_mode_of = detect_fake_mode
"""The mode that fake tensors belong to, or None."""

fake_tensors_off = torch._subclasses.fake_tensor.unset_fake_temporarily
"""A block in which tensors are real, inside of a trace."""


def dense_kernel(op: torch._ops.HigherOrderOperator) -> Callable[..., Any]:
    """The operator's own meaning in terms of PyTorch's operators."""
    return op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]


def functional(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` without mutations, on tensors that refuse to leave PyTorch (``numpy()``, ``data_ptr()``)."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize

    return dispatch_functionalize(fn, FunctionalTensorMode())


def copies_of_mutated(
    name: str, op: torch._ops.OpOverload, values: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """The arguments of ``auto_functionalized`` or ``auto_functionalized_v2`` with copies of what ``op`` mutates.

    Returns:
      the operator's own arguments by name, and the copies in the order in which the results have them.
    """
    from torch._higher_order_ops import auto_functionalize

    given = dict(values)
    if name == "auto_functionalized":
        names, _ = auto_functionalize.get_mutable_args_from_schema(op._schema)
        for n in names:
            given[n] = _copied(given[n])
        return given, [given[n] for n in names]
    bases = given.pop("_all_bases", [])
    is_out = is_out_operator(op)
    given, copies = auto_functionalize._generate_new_op_kwargs_from_bases(
        op._schema, given, bases, tuple(range(len(bases))), is_out
    )
    return given, [] if is_out else copies


def _copied(x: Any) -> Any:
    return [_copied(t) for t in x] if isinstance(x, (list, tuple)) else None if x is None else x.clone()


def forget_tokens(module: GraphModule) -> None:
    """Mark the tokens of ``with_effects`` as no tensors: at run time there is None where the trace has CPU tensors."""
    for node in module.graph.nodes:
        if node.target is torch.ops.higher_order.with_effects:
            node.args[0].meta["val"] = None
            node.meta["val"] = (None, *node.meta["val"][1:])
            for user in node.users:
                if user.args[1] == 0:
                    user.meta["val"] = None


def keep_random_states_on_device(module: GraphModule) -> None:
    """Give saved random states the look of a key of the device: int32[2].

    The partitioner, which saves them for what backward computes again, takes them for states of the CPU's generator.
    """
    save, use = rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state
    for node in module.graph.nodes:
        if node.target is save:
            parts = {u.args[1]: u for u in node.users}
            fake = parts[1].meta["val"]
            parts[0].meta["val"] = _key_like(fake)
            node.meta["val"] = (parts[0].meta["val"], fake)
        elif node.target is use:
            state, op, *args = node.args
            fakes = [n.meta["val"] for n in module.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
            given, kwargs = map_arg((args, node.kwargs), lambda n: n.meta["val"])
            with next(t for t in fakes if t.device.type == "tpu").fake_mode:
                node.meta["val"] = op(*given, **kwargs)
            state.meta["val"] = _key_like(node.meta["val"])


def _key_like(fake: Any) -> torch.Tensor:
    first = fake[0] if isinstance(fake, (list, tuple)) else fake
    with first.fake_mode:
        return torch.empty(2, dtype=torch.int32, device=first.device)
