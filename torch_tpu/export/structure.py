"""How arguments and results are nested, in a form that outlives the classes they are made of.

The form is PyTorch's own JSON of a pytree. A class in it that is registered with PyTorch in this process (a
Transformers output after ``import transformers``) comes out as itself; of one that is not known, its fields do, as a
``Record``. Nothing is imported because an artifact names it.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_SEQUENCES = {"builtins.list": list, "builtins.tuple": tuple, "collections.deque": collections.deque}
_MAPPINGS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
_RETURN_TYPES = "torch.return_types."  # what torch.max(x, 0) gives; PyTorch stores no names for them
_ENUMERATION = '"__enum__"'  # PyTorch would import the module that it names
_LEAF = {"type": None, "context": None, "children_spec": []}


class Record(dict[str, Any]):
    """Fields of an object whose class this process does not have: ``r.logits`` and ``r["logits"]``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result has no field {name!r}; it has {', '.join(self)}") from None


class Structure:
    """A nesting of leaves."""

    def __init__(self, text: str):
        self.text = text
        self.root = _Node(json.loads(text)[1])

    @classmethod
    def of(cls, spec: pytree.TreeSpec) -> Structure:
        """Raises NotImplementedError for a class that was registered without a name to be stored under."""
        protocol = json.loads(pytree.treespec_dumps(pytree.treespec_leaf()))[0]
        return cls(json.dumps([protocol, _described(spec)]))

    def flatten(self, value: Any) -> list[Any]:
        """The leaves of a value of this structure.

        Raises:
          ValueError: it is of another structure; the message says where.
        """
        return list(self.root.leaves(value, ""))

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        return self.root.build(iter(leaves))


class _Node:
    def __init__(self, tree: Mapping[str, Any]):
        self.kind: str | None = tree["type"]
        self.children = [_Node(child) for child in tree["children_spec"]]
        context = tree["context"]
        try:
            self.context = json.loads(context) if isinstance(context, str) else context
        except ValueError:
            self.context = context
        self.spec = self._registered(tree)

    def _registered(self, tree: Mapping[str, Any]) -> pytree.TreeSpec | None:
        """PyTorch's own form of this node, over leaves; None for a class that this process does not know."""
        if self.kind is None or self.kind in _SEQUENCES or self.kind in _MAPPINGS:
            return None
        text = json.dumps([1, {**tree, "children_spec": [_LEAF] * len(self.children)}])
        if _ENUMERATION in text or "__enum__" in str(self.context):
            return None
        try:
            return pytree.treespec_loads(text)
        except (NotImplementedError, KeyError, ValueError, AttributeError):
            return None

    @property
    def keys(self) -> list[Any] | None:
        """The keys of a mapping; the names of an unknown class's fields, if what was stored with it has them."""
        if self.kind in _MAPPINGS:
            found: Any = self.context
            return found["dict_context"] if isinstance(found, dict) else found
        fields = self.fields
        return None if fields is None else fields[0]

    @property
    def fields(self) -> tuple[list[str], list[str]] | None:
        """(names of the children, names of fields that are None) of a class.

        Transformers and plain registrations keep the list of names; PyTorch's dataclasses that list and a second one.
        """
        found, count = self.context, len(self.children)
        if not isinstance(found, list) or self.kind in _SEQUENCES:
            return None
        if len(found) == count and all(isinstance(c, str) for c in found):
            return found, []
        if len(found) == 2 and all(isinstance(c, list) for c in found) and len(found[0]) == count:
            return found[0], found[1]
        return None

    def build(self, leaves: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(leaves)
        made = [child.build(leaves) for child in self.children]
        if self.spec is not None:
            return pytree.tree_unflatten(made, self.spec)
        if self.kind in _SEQUENCES:
            return _SEQUENCES[self.kind](made)
        if self.kind in _MAPPINGS:
            kind = collections.OrderedDict if self.kind == "collections.OrderedDict" else dict
            return kind(zip(self.keys or (), made, strict=True))
        if self.kind.startswith(_RETURN_TYPES):
            return getattr(torch.return_types, self.kind.removeprefix(_RETURN_TYPES))(made)
        if self.fields is None:
            return tuple(made)
        return Record({**dict(zip(self.fields[0], made, strict=True)), **dict.fromkeys(self.fields[1])})

    def leaves(self, value: Any, where: str) -> Iterator[Any]:
        if self.kind is None:
            yield value
            return
        for child, (v, at) in zip(self.children, self._parts(value, where), strict=True):
            yield from child.leaves(v, at)

    def _parts(self, value: Any, where: str) -> list[tuple[Any, str]]:
        place = where or "the arguments"
        if self.spec is not None:
            try:
                return [(v, f"{where}.<{i}>") for i, v in enumerate(self.spec.flatten_up_to(value))]
            except ValueError as e:
                raise ValueError(f"{place}: {e}") from None
        keys = self.keys
        if keys is None:
            if not isinstance(value, (list, tuple, collections.deque)) or len(value) != len(self.children):
                count = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
                raise ValueError(f"{place}: expected {len(self.children)} values, got a {type(value).__name__}{count}")
            return [(v, f"{where}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, Mapping):
            if set(value) != set(keys):
                raise ValueError(f"{place}: expected {_listed(keys)}, got {_listed(value)}")
            return [(value[k], f"{where}[{k!r}]") for k in keys]
        if self.kind in _MAPPINGS or not all(hasattr(value, k) for k in keys):
            raise ValueError(f"{place}: expected fields {_listed(keys)}, got a {type(value).__name__}")
        return [(getattr(value, k), f"{where}.{k}") for k in keys]


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _described(spec: pytree.TreeSpec) -> dict[str, Any]:
    """A structure in PyTorch's JSON, node by node: not all of its classes have names there."""
    if spec.is_leaf():
        return dict(_LEAF)
    children = spec.children()
    name = f"{spec.type.__module__}.{spec.type.__qualname__}"
    if name.startswith(_RETURN_TYPES):
        return {"type": name, "context": None, "children_spec": [_described(c) for c in children]}
    leaves = pytree.TreeSpec(spec.type, spec.context, [pytree.treespec_leaf()] * len(children))
    found: dict[str, Any] = json.loads(pytree.treespec_dumps(leaves))[1]
    return {**found, "children_spec": [_described(c) for c in children]}
