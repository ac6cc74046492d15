"""The schema of a JAX function, from its annotations.

==================================================  ==============  ================================================
annotation                                          in the schema   what the function gets
==================================================  ==============  ================================================
``jax.Array``, ``torch.Tensor``                     Tensor          an array
``list``, ``Sequence``, ``tuple[X, ...]`` of these  Tensor[]        a list of arrays
``int``, ``float``, ``bool``, ``str``               the same        the value; it is part of the program
sequences of these                                  int[], ...      a list; part of the program
``torch.dtype``, ``np.dtype``, ``DTypeLike``        ScalarType      the dtype, of the library that is annotated
``torch.device``                                    Device          the device
an ``Enum``                                         str             the member; the operator takes it, or its name
``Literal[...]``                                    str, int, ...   the value, if it is one of those
``X | None``                                        X?              the value, or None
==================================================  ==============  ================================================
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
import torch

from torch_tpu.lowering import dtypes

_PLAIN = {int: "SymInt", float: "float", bool: "bool", str: "str"}
_ARRAYS = (jax.Array, torch.Tensor)
_HOW = (
    "write jax.Array (an array), a list or tuple[..., ...] of it, int, float, bool, str, torch.dtype, torch.device, an "
    "Enum, a Literal, or one of these | None"
)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of the function."""

    name: str
    schema: str  # its type in the schema
    kind: Literal["array", "arrays", "static"]
    keyword: bool
    default: Any
    given: Callable[[Any], Any] | None = None  # from what the operator takes to what the schema does
    taken: Callable[[Any], Any] | None = None  # from what the schema takes to what the function gets

    @property
    def text(self) -> str:
        return f"{self.schema} {self.name}{self._default()}"

    def _default(self) -> str:
        if self.default is inspect.Parameter.empty:
            return ""
        value = self.given(self.default) if self.given and self.default is not None else self.default
        if isinstance(value, torch.dtype):
            return f"={str(value).removeprefix('torch.')}"
        if isinstance(value, (str, torch.device)):
            return f'="{value}"'
        if isinstance(value, (list, tuple)):
            return f"=[{', '.join(map(str, value))}]"
        return f"={value}"


@dataclasses.dataclass(frozen=True)
class Result:
    """What the function returns: ``parts`` says for each value whether it is an array (else a number or a string)."""

    schema: str
    form: Literal["none", "one", "several", "list"]
    parts: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True)
class Signature:
    parameters: tuple[Parameter, ...]
    result: Result

    @property
    def schema(self) -> str:
        texts: list[str] = []
        for p in self.parameters:
            if p.keyword and "*" not in texts:
                texts.append("*")
            texts.append(p.text)
        return f"({', '.join(texts)}) -> {self.result.schema}"


def signature_of(name: str, fn: Callable[..., Any]) -> Signature:
    """The signature of a function that becomes the operator ``name``.

    Raises:
      TypeError: a parameter or the result has no annotation, or one that no schema can have; the message names it.
    """
    found = inspect.signature(fn)
    hints = _hints(name, fn)
    parameters = []
    for p in found.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            star = "*" if p.kind is p.VAR_POSITIONAL else "**"
            raise TypeError(
                f"jax_op {name}: parameter {star}{p.name} takes any number of arguments, which no schema can say; use "
                "a parameter of type list[jax.Array]"
            )
        if p.name not in hints:
            raise TypeError(f"jax_op {name}: parameter {p.name!r} has no annotation; {_HOW}")
        parameters.append(_parameter(name, p, hints[p.name]))
    if "return" not in hints:
        raise TypeError(
            f"jax_op {name}: the result has no annotation; write -> jax.Array, a tuple or list of it, or None"
        )
    return Signature(tuple(parameters), _result(name, hints["return"]))


def _hints(name: str, fn: Callable[..., Any]) -> Mapping[str, Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    plain = inspect.unwrap(fn)
    if not inspect.isroutine(plain):  # an object that can be called
        plain = type(plain).__call__
    try:
        return typing.get_type_hints(plain)
    except NameError as e:
        raise TypeError(
            f"jax_op {name}: an annotation cannot be read where the function is defined ({e}); import what it names at "
            "the top of the module"
        ) from e


def _parameter(name: str, p: inspect.Parameter, annotation: Any) -> Parameter:
    bare, optional = _without_none(annotation)
    found = _type(bare)
    if found is None:
        raise TypeError(f"jax_op {name}: parameter {p.name!r} is of type {_shown(annotation)}; {_HOW}")
    schema, kind, given, taken = found
    keyword = p.kind is p.KEYWORD_ONLY
    if kind != "static" and keyword:
        raise TypeError(
            f"jax_op {name}: parameter {p.name!r} is an array that is passed by keyword alone; PyTorch's operators "
            "take tensors by position: move it before the *"
        )
    if kind != "static" and p.default not in (inspect.Parameter.empty, None):
        raise TypeError(f"jax_op {name}: parameter {p.name!r} is an array with a default; only None can be one")
    if given is not None:
        given = _naming(name, p.name, given)
    if schema == "ScalarType":
        taken = _with_default(p.default, given, taken)
    return Parameter(p.name, schema + ("?" if optional else ""), kind, keyword, p.default, given, taken)


def _naming(name: str, parameter: str, given: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            return None if value is None else given(value)
        except (ValueError, TypeError) as e:
            raise type(e)(f"{name}: parameter {parameter!r}: {e}") from None

    return convert


def _with_default(default: Any, given: Any, taken: Any) -> Callable[[Any], Any]:
    """PyTorch's schemas have a default dtype as the number of its type."""

    def convert(value: Any) -> Any:
        dtype = given(default) if isinstance(value, int) else value
        return dtype if taken is None else taken(dtype)

    return convert


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType) and annotation != jax.typing.DTypeLike:
        members = [a for a in typing.get_args(annotation) if a is not type(None)]
        if len(members) < len(typing.get_args(annotation)):
            joined = members[0]
            for m in members[1:]:
                joined = joined | m
            return joined, True
    return annotation, False


def _is_array(annotation: Any) -> bool:
    # jaxtyping's Float[Array, "m k"] says the array type it stands for; ArrayLike is what jax.numpy takes.
    annotation = getattr(annotation, "array_type", annotation)
    if annotation == jax.typing.ArrayLike:
        return True
    return isinstance(annotation, type) and annotation in _ARRAYS


_Type = tuple[str, Literal["array", "arrays", "static"], Callable[[Any], Any] | None, Callable[[Any], Any] | None]


def _type(annotation: Any) -> _Type | None:
    """(schema type, kind, conversion on the way in, conversion for the function); None if there is none."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _type(typing.get_args(annotation)[0])
    if _is_array(annotation):
        return "Tensor", "array", None, None
    if annotation in _PLAIN:
        return _PLAIN[annotation], "static", None, None
    if annotation is torch.dtype:
        return "ScalarType", "static", _torch_dtype, None
    if annotation is np.dtype or annotation == jax.typing.DTypeLike:
        return "ScalarType", "static", _torch_dtype, dtypes.to_jax
    if annotation is torch.device:
        return "Device", "static", torch.device, None
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "str", "static", functools.partial(_member_name, annotation), lambda n: annotation[n]
    if origin is Literal:
        return _literal(typing.get_args(annotation))
    return _sequence(annotation, origin)


def _sequence(annotation: Any, origin: Any) -> _Type | None:
    if origin not in (list, tuple, collections.abc.Sequence):
        return None
    elements = [a for a in typing.get_args(annotation) if a is not Ellipsis]
    if not elements or any(e != elements[0] for e in elements):
        return None
    inner = _type(elements[0])
    if inner is None or inner[1] == "arrays" or inner[2] is not None or inner[0].endswith("]"):
        return None
    back = tuple if origin is tuple else list
    return f"{inner[0]}[]", "arrays" if inner[1] == "array" else "static", None, back


def _literal(values: Sequence[Any]) -> _Type | None:
    kinds = {type(v) for v in values}
    if len(kinds) != 1 or next(iter(kinds)) not in _PLAIN:
        return None

    def one_of(value: Any) -> Any:
        if value not in values:
            raise ValueError(f"{value!r} is none of {', '.join(map(repr, values))}")
        return value

    return _PLAIN[kinds.pop()], "static", one_of, one_of


def _member_name(kind: type[enum.Enum], value: Any) -> str:
    if isinstance(value, kind):
        return value.name
    if isinstance(value, str) and value in kind.__members__:
        return value
    raise ValueError(f"{value!r} is no {kind.__name__}; there are {', '.join(kind.__members__)}")


def _torch_dtype(value: Any) -> torch.dtype:
    return value if isinstance(value, torch.dtype) else dtypes.to_torch(np.dtype(value))


def _result(name: str, annotation: Any) -> Result:
    if annotation is type(None):
        return Result("()", "none")
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (list, collections.abc.Sequence) or (origin is tuple and Ellipsis in arguments):
        if arguments and _is_array(arguments[0]):
            return Result("Tensor[]", "list")
    elif origin is tuple:
        found = [f for f in map(_returned, arguments) if f is not None]
        if found and len(found) == len(arguments):
            return Result(f"({', '.join(s for s, _ in found)})", "several", tuple(is_array for _, is_array in found))
    elif (one := _returned(annotation)) is not None:
        return Result(one[0], "one", (one[1],))
    raise TypeError(
        f"jax_op {name}: the result is of type {_shown(annotation)}; write jax.Array, a tuple or list of it, int, "
        "float, bool, or None"
    )


def _returned(annotation: Any) -> tuple[str, bool] | None:
    if _is_array(annotation):
        return "Tensor", True
    return {int: ("int", False), float: ("float", False), bool: ("bool", False)}.get(annotation)


def _shown(annotation: Any) -> str:
    return getattr(annotation, "__qualname__", None) if isinstance(annotation, type) else str(annotation)  # type: ignore[return-value]
