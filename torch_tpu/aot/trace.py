"""Capturing a model's graphs with no memory for its tensors.

Every tensor that the model, its inputs and its optimizer hold is stood in for by a fake tensor of device tpu; the
model's own Python code runs over these under AOTAutograd with the settings of ``torch.compile(backend="tpu")``, so the
graphs are those that it would compile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._export.utils import _compiling_state_context
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

import torch_tpu
from torch_tpu.aot import state as aot_state
from torch_tpu.aot.state import CACHE, INPUTS, WEIGHTS, State
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.compile import backend

_ASKS_FOR_VALUES = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
_LIBRARIES = tuple(str(pathlib.Path(m.__file__ or "").parent) for m in (torch, torch_tpu))

ACTIVATIONS, GRADIENTS, OUTPUTS = "activations", "gradients", "outputs"


@dataclasses.dataclass
class Captured:
    """A graph, with what each of its tensor operands and results is."""

    name: str
    module: GraphModule
    names: list[str]  # of operands
    roles: list[str]
    result_role: Callable[[int], str]  # by position among the graph's outputs


class Tracer:
    """Captures the programs of one model; keeps the fake tensors that stand for its state."""

    def __init__(self, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]):
        torch.empty(0, device="tpu")  # the kernels must be there before fake tensors ask for them
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.fakes: dict[int, torch.Tensor] = {}
        self.roots: list[tuple[str, Any, str]] = [
            ("", _unwrapped(model), WEIGHTS), ("args", list(args), INPUTS), ("kwargs", dict(kwargs), INPUTS)
        ]  # fmt: skip
        self.state = State(self.roots)

    def fake(self, t: torch.Tensor) -> torch.Tensor:
        """The fake tensor of device tpu that stands for ``t``."""
        found = self.fakes.get(id(t))
        if found is None:
            with self.mode, torch.no_grad():
                found = torch.empty_strided(tuple(t.shape), t.stride(), dtype=t.dtype, device="tpu")
            if t.requires_grad:
                found.requires_grad_()
            self.fakes[id(t)] = found
        return found

    def forward(self, *, grad: bool, loss: Callable[[Any], torch.Tensor] | None) -> list[Captured]:
        """The graph of a call; with ``grad`` those of forward and backward."""
        held = list(self.state.held.values())
        fakes = [self.fake(h.tensor) for h in held]
        if not grad:
            fakes = [f.detach() for f in fakes]

        def call(*flat: Any) -> Any:
            given = [_leaf(t, h.tensor, grad) for t, h in zip(flat, held, strict=True)]
            # A function may compute gradients itself; a module that is called for its outputs does not.
            with self.state.holding(given), torch.set_grad_enabled(grad or not is_module):
                out = self.state.box[""](*self.state.box["args"], **self.state.box["kwargs"])
                return (_loss_of(out, loss),) if grad else tuple(_tensors(out))

        names, roles = [h.name for h in held], [h.role for h in held]
        is_module = isinstance(self.state.box[""], torch.nn.Module)
        graphs = self._capture(call, fakes, grad)
        if not grad:
            return [_inference("forward", graphs["inference"], names, roles)]
        if "backward" not in graphs:
            raise ValueError("train: nothing that the loss depends on requires a gradient")
        return _training(graphs["forward"], graphs["backward"], names, roles)

    def optimizer(self, make: Callable[[Any], torch.optim.Optimizer]) -> Captured:
        """The graph of ``optimizer.step()``; its state is what one step before has made."""
        trained = [h for h in self.state.held.values() if h.tensor.requires_grad]
        params = [self.fake(h.tensor) for h in trained]
        with self.mode, _as_compiled():
            optimizer = make(params)
            for p in params:
                p.grad = torch.empty_like(p)
            optimizer.step()
        names = {id(p): h.name for p, h in zip(params, trained, strict=True)}
        grads = [p.grad for p in params]
        state = State([("", optimizer, aot_state.OPTIMIZER)])
        held = list(state.held.values())
        is_param = [id(h.tensor) in names for h in held]

        def step(*flat: Any) -> Any:
            own, given = flat[: len(held)], flat[len(held) :]
            with state.holding(own):
                new_of = {id(h.tensor): t for h, t in zip(held, own, strict=True)}
                for p, g in zip(params, given, strict=True):
                    new_of[id(p)].grad = g
                optimizer.step()
            return ()

        operands = [*(h.tensor.detach() for h in held), *grads]
        graphs = self._capture(step, operands, False)
        labels = [names.get(id(h.tensor), h.name) for h in held]
        roles = [WEIGHTS if p else aot_state.OPTIMIZER for p in is_param]
        labels += [f"{h.name}.grad" for h in trained]
        return _inference("optimizer", graphs["inference"], labels, roles + [GRADIENTS] * len(grads))

    def _capture(self, call: Callable[..., Any], operands: Sequence[Any], grad: bool) -> dict[str, GraphModule]:
        found: dict[str, GraphModule] = {}

        def keep(kind: str) -> Callable[..., Any]:
            def compiler(graph: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
                found[kind] = backend.prepare(_without_profiling(graph), backward=kind == "backward")
                return lambda *args: None

            return compiler

        class Call(torch.nn.Module):
            def forward(self, *flat: Any) -> Any:
                return call(*flat)

        lazily = functorch_config.patch(force_non_lazy_backward_lowering=True)
        with self.mode, _as_compiled(), lazily, torch.set_grad_enabled(grad), _values_unknown():
            aot_module_simplified(
                Call(), list(operands), fw_compiler=keep("forward"), bw_compiler=keep("backward"),  # type: ignore[arg-type]
                inference_compiler=keep("inference"), partition_fn=backend.partition,
                decompositions=backend.decompositions(), keep_inference_input_mutations=True,
            )  # fmt: skip
        return found


@contextlib.contextmanager
def _values_unknown() -> Iterator[None]:
    """What asks for values, which fake tensors have not, is refused with the user's line."""
    try:
        yield
    except _ASKS_FOR_VALUES as e:
        frames = traceback.extract_tb(e.__traceback__)
        users = [f for f in frames if not f.filename.startswith(_LIBRARIES) and not f.filename.startswith("<")]
        line = f" ({users[-1].filename}:{users[-1].lineno}: {users[-1].line})" if users else ""
        raise ValueError(
            f"aot: what is planned depends on the values of tensors{line}: {e}. A program needs shapes and branches "
            "that do not: use torch.where, torch.cond, torch.nonzero_static, or output_size= of repeat_interleave"
        ) from e


def _without_profiling(graph: GraphModule) -> GraphModule:
    """Marks for a profiler (each optimizer step has one) compute nothing."""
    for node in reversed(graph.graph.nodes):
        if isinstance(node.target, Operator) and node.target.namespace == "profiler":
            graph.graph.erase_node(node)
    return graph


@contextlib.contextmanager
def _as_compiled() -> Iterator[None]:
    """``torch.compiler.is_compiling()``: libraries take the paths that they take under torch.compile."""
    with _compiling_state_context():
        yield


def _unwrapped(model: Any) -> Any:
    """The module or function inside what ``torch.compile`` gave."""
    return getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", model)


def _leaf(t: Any, original: torch.Tensor, grad: bool) -> Any:
    """A model that itself calls ``backward`` inside the program finds its parameters to be leaves."""
    if grad or not original.requires_grad:
        return t
    with torch.enable_grad():
        return t.detach().requires_grad_()


def _tensors(out: Any) -> list[torch.Tensor]:
    return [x.detach() for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]


def _loss_of(out: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    found = loss(out) if loss is not None else out
    if not isinstance(found, torch.Tensor):
        found = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise ValueError(
            "train: the model must give a loss: one number, or an output with .loss (give it labels), or pass "
            "loss=function of its output"
        )
    return found.reshape(())


def placeholders(module: GraphModule) -> list[Node]:
    return [n for n in module.graph.nodes if n.op == "placeholder"]


def written(module: GraphModule) -> set[Node]:
    """The placeholders that the graph overwrites."""
    copies = torch.ops.aten.copy_.default
    return {n.args[0] for n in module.graph.nodes if n.op == "call_function" and n.target is copies}


def source_of(node: Node) -> Node:
    """The node whose memory this one's value is, through any number of views."""
    while node.op == "call_function" and isinstance(node.target, Operator) and node.target.is_view:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _inference(name: str, module: GraphModule, names: list[str], roles: list[str]) -> Captured:
    """What is an input and overwritten in place is a cache."""
    changed = written(module)
    roles = [
        CACHE if role == INPUTS and node in changed else role
        for role, node in zip(roles, placeholders(module), strict=True)
    ]
    return Captured(name, module, names, roles, lambda i: OUTPUTS)


def _training(
    forward: GraphModule, backward: GraphModule, names: list[str], roles: list[str]
) -> list[Captured]:  # fmt: skip
    """Backward's operands are what forward saved; a saved input (or view of one) keeps its role."""
    by_node = dict(zip(placeholders(forward), zip(names, roles, strict=True), strict=True))
    by_name = {n.name: n for n in forward.graph.nodes}
    saved_names, saved_roles = [], []
    for node in placeholders(backward):
        origin = by_name.get(node.name)
        known = by_node.get(source_of(origin)) if origin is not None else None
        role = known[1] if known is not None else INPUTS if origin is None else ACTIVATIONS
        saved_names.append(known[0] if known is not None else node.name)
        saved_roles.append(role)
    saved = {n.name for n in placeholders(backward)}
    outs = list(forward.graph.nodes)[-1].args[0]
    kept = [isinstance(o, Node) and o.name in saved for o in outs]  # type: ignore[union-attr]
    return [
        Captured("forward", forward, names, roles, lambda i: ACTIVATIONS if kept[i] else OUTPUTS),
        Captured("backward", backward, saved_names, saved_roles, lambda i: GRADIENTS),
    ]
