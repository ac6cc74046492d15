"""The tensors that a model, its inputs and its optimizer hold: finding them, and putting others in their places.

A program's operands are all tensors that its Python code can reach: parameters, buffers, plain attributes, what the
inputs hold (a static KV cache is an object with tensors in it), the state of an optimizer, what a function closes
over. ``State`` finds each place once; a tensor that stands in several places (tied weights) is one operand.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_tpu.binding.custom_operators import CustomOpDef

WEIGHTS, BUFFERS, CACHE, INPUTS, OPTIMIZER = "weights", "buffers", "cache", "inputs", "optimizer"

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size, type,
          types.ModuleType, torch.Generator, torch.library.Library, CustomOpDef)  # fmt: skip


@dataclasses.dataclass
class Held:
    """A tensor and every place that holds it."""

    tensor: torch.Tensor
    name: str
    role: str
    puts: list[Callable[[Any], None]]


class State:
    """The tensors that ``roots`` (name, object, role) reach, in the order found."""

    def __init__(self, roots: Sequence[tuple[str, Any, str]]):
        self.held: dict[int, Held] = {}
        self.optimizers: list[torch.optim.Optimizer] = []
        self._places: list[Callable[[Any], None]] = []  # of what says on which device the tensors are
        self._seen: dict[int, Any] = {}
        self._restores: list[Callable[[], Callable[[], None]]] = []  # each takes a snapshot
        self.box: dict[str, Any] = {name: value for name, value, _ in roots}
        for name, value, role in roots:
            self._visit(value, name, role, _item_put(self.box, name))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [h.tensor for h in self.held.values()]

    @contextlib.contextmanager
    def holding(self, tensors: Sequence[Any]) -> Iterator[None]:
        """Put ``tensors`` (in the order of ``held``) in the places; afterwards everything is as it was."""
        snapshots = [take() for take in self._restores]
        try:
            new_of = {}
            for held, new in zip(self.held.values(), tensors, strict=True):
                new_of[id(held.tensor)] = new
                for put in held.puts:
                    put(new)
            for put in self._places:
                put(torch.device("tpu", 0))
            for optimizer in self.optimizers:  # its state is keyed by the parameters themselves
                rekeyed = {new_of.get(id(p), p): s for p, s in optimizer.state.items()}
                optimizer.state = collections.defaultdict(dict, rekeyed)
            yield
        finally:
            for restore in reversed(snapshots):
                restore()

    # Walking ---------------------------------------------------------------------------------------------------

    def _visit(self, x: Any, name: str, role: str, put: Callable[[Any], None]) -> None:
        if isinstance(x, torch.Tensor):
            held = self.held.setdefault(id(x), Held(x, name, role, []))
            held.puts.append(put)
            return
        if isinstance(x, torch.device):
            self._places.append(put)
        if isinstance(x, _PLAIN) or id(x) in self._seen:
            return
        self._seen[id(x)] = x
        if isinstance(x, torch.nn.Module):
            self._module(x, name, role)
        elif isinstance(x, torch.optim.Optimizer):
            self._optimizer(x, name)
        elif isinstance(x, tuple):
            self._tuple(x, name, role, put)
        elif isinstance(x, dict):
            self._keep(x, dict.copy, _refill_dict)
            for key in list(x):
                self._visit(x[key], f"{name}.{key}", role, _item_put(x, key))
            self._attributes(x, name, role)
        elif isinstance(x, list):
            self._keep(x, list.copy, _refill_list)
            for i, e in enumerate(list(x)):
                self._visit(e, f"{name}.{i}", role, _item_put(x, i))
        elif isinstance(x, (types.FunctionType, types.MethodType, functools.partial)):
            self._callable(x, name, role)
        else:
            self._attributes(x, name, CACHE if role == INPUTS else role)

    def _keep(self, x: Any, copy: Callable[[Any], Any], refill: Callable[[Any, Any], None]) -> None:
        self._restores.append(lambda: functools.partial(refill, x, copy(x)))

    def _attributes(self, x: Any, name: str, role: str, skip: Sequence[str] = ()) -> None:
        """An object's own attributes. Classes of PyTorch itself but modules and optimizers hold no operands."""
        own = getattr(x, "__dict__", None)
        if not isinstance(own, dict) or (type(x).__module__.partition(".")[0] == "torch" and not skip):
            return
        self._keep(own, dict.copy, _refill_dict)
        for key in list(own):
            if key not in skip:
                self._visit(own[key], f"{name}.{key}", role, _item_put(own, key))

    def _module(self, module: torch.nn.Module, name: str, role: str) -> None:
        tensors = ("_parameters", WEIGHTS), ("_buffers", BUFFERS)
        for attribute, kind in tensors:
            found = getattr(module, attribute)
            self._keep(found, dict.copy, _refill_dict)
            for key, value in list(found.items()):
                if value is not None:
                    self._visit(value, f"{name}.{key}" if name else key, kind, _item_put(found, key))
        for key, child in module._modules.items():
            if child is not None:
                self._visit(child, f"{name}.{key}" if name else key, role, _refuse)
        own = [k for k in vars(module) if k.startswith("_") and k in vars(torch.nn.Module())]
        self._attributes(module, name, BUFFERS, ("training", *own))

    def _optimizer(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        self.optimizers.append(optimizer)
        groups, state = optimizer.param_groups, optimizer.state

        def kept() -> Callable[[], None]:
            before = optimizer.state

            def restore() -> None:
                optimizer.state = before

            return restore

        self._restores.append(kept)
        for i, group in enumerate(groups):
            self._visit(group, f"{name}.group{i}", OPTIMIZER, _refuse)
        for i, values in enumerate(state.values()):
            self._visit(values, f"{name}.state{i}", OPTIMIZER, _refuse)

    def _tuple(self, x: tuple[Any, ...], name: str, role: str, put: Callable[[Any], None]) -> None:
        """Tuples cannot be written to: one whole new tuple takes the place of the old one."""
        items = list(x)
        self._restores.append(lambda: functools.partial(put, x))

        def put_at(i: int) -> Callable[[Any], None]:
            def put_item(value: Any) -> None:
                items[i] = value
                put(type(x)(*items) if hasattr(x, "_fields") else type(x)(items))

            return put_item

        for i, e in enumerate(x):
            self._visit(e, f"{name}.{i}", role, put_at(i))

    def _callable(self, x: Any, name: str, role: str) -> None:
        if isinstance(x, types.MethodType):
            self._visit(x.__self__, name, role, _refuse)
            self._visit(x.__func__, name, role, _refuse)
        elif isinstance(x, functools.partial):
            self._visit(x.func, name, role, _refuse)
            self._visit(list(x.args), name, role, _refuse)  # objects in them; a tensor bound here is a constant
            self._visit(x.keywords, name, role, _refuse)
        else:
            for variable, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # a cell that is still empty
                    contents = cell.cell_contents
                    self._restores.append(functools.partial(_keep_cell, cell))
                    self._visit(contents, f"{name}.{variable}" if name else variable, role, _cell_put(cell))


def _keep_cell(cell: types.CellType) -> Callable[[], None]:
    before = cell.cell_contents

    def restore() -> None:
        cell.cell_contents = before

    return restore


def _item_put(container: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: container.__setitem__(key, value)


def _cell_put(cell: types.CellType) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        cell.cell_contents = value

    return put


def _refuse(value: Any) -> None:
    raise TypeError("a tensor stands where no other can be put")


def _refill_dict(x: dict[Any, Any], before: dict[Any, Any]) -> None:
    # The class's own methods may do more; an OrderedDict's keep its order.
    kind: Any = collections.OrderedDict if isinstance(x, collections.OrderedDict) else dict
    kind.clear(x)
    kind.update(x, before)


def _refill_list(x: list[Any], before: list[Any]) -> None:
    x[:] = before
