"""How arguments and results are nested, in a form that outlives the classes they are made of.

The form is PyTorch's own JSON of a pytree. Where each class in it is registered with PyTorch in this process (a
Transformers output after ``import transformers``), that class comes out; where one is not known, its fields do, as a
``Record``. Nothing is imported because an artifact names it.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree

_BUILTIN = {"builtins.list": list, "builtins.tuple": tuple, "collections.deque": collections.deque}
_MAPPINGS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")

_IMPORTS = ('"__enum__"', '"default_factory_module"')  # PyTorch would import the modules that these name


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
        self._tree: Any = json.loads(text)[1]
        self._spec = None
        if not any(word in text for word in _IMPORTS):
            try:
                self._spec = pytree.treespec_loads(text)
            except (NotImplementedError, KeyError, ValueError, AttributeError):
                self._spec = None  # a class that is not registered here

    @classmethod
    def of(cls, spec: pytree.TreeSpec) -> Structure:
        """Raises NotImplementedError for a class that was registered without a name to be stored under."""
        return cls(pytree.treespec_dumps(spec))

    def flatten(self, value: Any) -> list[Any]:
        """The leaves of a value of this structure.

        Raises:
          ValueError: it is of another structure; the message says where.
        """
        if self._spec is not None:
            return list(self._spec.flatten_up_to(value))
        return list(_leaves(self._tree, value, "arguments"))

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        if self._spec is not None:
            return pytree.tree_unflatten(leaves, self._spec)
        return _build(self._tree, iter(leaves))


def _context(tree: Mapping[str, Any]) -> Any:
    context = tree["context"]
    return json.loads(context) if isinstance(context, str) else context


def _fields(tree: Mapping[str, Any]) -> tuple[list[str], list[str]] | None:
    """(names of the children, names of fields that are None) of a class that is not known, if its context says so.

    Transformers and plain registrations keep the list of names; PyTorch's dataclasses that list and a second one.
    """
    try:
        context = _context(tree)
    except ValueError:
        return None
    count = len(tree["children_spec"])
    if isinstance(context, list):
        if len(context) == count and all(isinstance(c, str) for c in context):
            return context, []
        if len(context) == 2 and all(isinstance(c, list) for c in context) and len(context[0]) == count:
            return context[0], context[1]
    return None


def _keys(tree: Mapping[str, Any]) -> list[Any]:
    context = _context(tree)
    return context["dict_context"] if isinstance(context, dict) else context


def _build(tree: Mapping[str, Any], leaves: Iterator[Any]) -> Any:
    if tree["type"] is None:
        return next(leaves)
    children = [_build(child, leaves) for child in tree["children_spec"]]
    if tree["type"] in _MAPPINGS:
        return dict(zip(_keys(tree), children, strict=True))
    if tree["type"] in _BUILTIN:
        return _BUILTIN[tree["type"]](children)
    fields = _fields(tree)
    if fields is None:
        return tuple(children)
    return Record({**dict(zip(fields[0], children, strict=True)), **dict.fromkeys(fields[1])})


def _leaves(tree: Mapping[str, Any], value: Any, where: str) -> Iterator[Any]:
    kind, children = tree["type"], tree["children_spec"]
    if kind is None:
        yield value
        return
    fields = _fields(tree) if kind not in _BUILTIN else None
    names = _keys(tree) if kind in _MAPPINGS else fields[0] if fields is not None else None
    if names is None:
        if not isinstance(value, (list, tuple)) or len(value) != len(children):
            raise ValueError(f"{where}: expected {len(children)} values ({kind}), got {type(value).__name__}")
        for i, (child, v) in enumerate(zip(children, value, strict=True)):
            yield from _leaves(child, v, f"{where}[{i}]")
        return
    for name, child in zip(names, children, strict=True):
        if isinstance(value, Mapping):
            if name not in value:
                raise ValueError(f"{where}: expected {', '.join(map(str, names))}, got {', '.join(map(str, value))}")
            yield from _leaves(child, value[name], f"{where}[{name!r}]")
        elif kind not in _MAPPINGS and hasattr(value, name):
            yield from _leaves(child, getattr(value, name), f"{where}.{name}")
        else:
            raise ValueError(f"{where}: expected fields {', '.join(map(str, names))}, got {type(value).__name__}")
