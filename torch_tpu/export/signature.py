"""What an artifact's program takes and gives, as it is written to the artifact's manifest."""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_tpu.export.errors import ArtifactError

Dim = int | str  # a number, or an expression of named dimensions ("batch", "2*batch")


@dataclasses.dataclass(frozen=True)
class Input:
    """A leaf of the user's arguments.

    kind: tensor; size (an int that may change); constant (``value``, which the program was made for).
    """

    name: str
    kind: str
    dtype: str = ""
    shape: tuple[Dim, ...] = ()
    value: Any = None


@dataclasses.dataclass(frozen=True)
class Output:
    """A leaf of the result.

    kind: program (the next of the program's outputs); number (the same, as a Python number of type ``value``); input
    (the argument leaf at ``value``); constant (``value``).
    """

    kind: str
    value: Any = None


@dataclasses.dataclass(frozen=True)
class Signature:
    """Calling convention of a program: ``call(weights: dict, inputs: list[, key: uint32[2]])`` gives a dict.

    ``outputs``: list of arrays; ``weights``: the new values of ``written_weights`` by name; ``inputs``: the new values
    of ``written_inputs`` by position, as text; ``checks``: int64[n, 2], (how many bad, one of them) for each index
    check. The last three are there if they are not empty. ``inputs`` are the arguments' tensors and sizes.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    arguments: str  # structure.Structure of (args, kwargs)
    result: str
    weights: tuple[str, ...]
    same: Mapping[str, str]  # name -> the weight that it is another name of
    written_weights: tuple[str, ...]
    written_inputs: tuple[int, ...]  # among the leaves of the arguments
    dimensions: Mapping[str, tuple[int, int | None]]  # name -> smallest and largest size
    is_random: bool

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Signature:
        return cls(
            tuple(Input(**{**x, "shape": tuple(x["shape"])}) for x in found["inputs"]),
            tuple(Output(**x) for x in found["outputs"]),
            found["arguments"], found["result"], tuple(found["weights"]), dict(found["same"]),
            tuple(found["written_weights"]), tuple(found["written_inputs"]),
            {n: (low, high) for n, (low, high) in found["dimensions"].items()}, found["is_random"],
        )  # fmt: skip

    def bind(self, leaves: Sequence[Any]) -> dict[str, int]:
        """The sizes of the named dimensions, from the leaves of the arguments; checks types, shapes and constants.

        Raises:
          TypeError: an argument of another type than the program was made for.
          ValueError: another value or shape.
        """
        sizes: dict[str, int] = {}
        expressions: list[tuple[str, str, int]] = []
        for x, leaf in zip(self.inputs, leaves, strict=True):
            if x.kind == "tensor":
                self._bind_tensor(x, leaf, sizes, expressions)
            elif x.kind == "size":
                if isinstance(leaf, bool) or not isinstance(leaf, int):
                    raise TypeError(f"{x.name}: expected an int, got {type(leaf).__name__}")
                self._bind_dimension(x.name, x.shape[0], leaf, sizes, expressions)
            elif type(leaf) is not type(x.value) or leaf != x.value:
                raise ValueError(
                    f"{x.name}: the program was exported for the value {x.value!r}, got {leaf!r}; export it again for "
                    "another value, or make it a tensor"
                )
        for where, expression, size in expressions:
            self._solve(where, expression, size, sizes)
        for where, expression, size in expressions:
            self._compare(where, expression, size, sizes)
        return sizes

    def _bind_tensor(self, x: Input, leaf: Any, sizes: dict[str, int], expressions: list[tuple[str, str, int]]) -> None:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"{x.name}: expected a tensor, got {type(leaf).__name__}")
        if str(leaf.dtype) != f"torch.{x.dtype}":
            raise TypeError(f"{x.name}: expected dtype torch.{x.dtype}, got {leaf.dtype}")
        if leaf.dim() != len(x.shape):
            raise ValueError(f"{x.name}: expected shape {shown(x.shape)}, got {shown(tuple(leaf.shape))}")
        for i, (dim, size) in enumerate(zip(x.shape, leaf.shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                raise ValueError(
                    f"{x.name}: expected shape {shown(x.shape)}, got {shown(tuple(leaf.shape))}; to let dimension {i} "
                    "vary, export with dynamic_shapes"
                )
            self._bind_dimension(f"{x.name}, dimension {i}", dim, size, sizes, expressions)

    def _bind_dimension(
        self, where: str, dim: Dim, size: int, sizes: dict[str, int], expressions: list[tuple[str, str, int]]
    ) -> None:
        if isinstance(dim, int):
            return
        if dim not in self.dimensions:
            expressions.append((where, dim, size))
            return
        if sizes.setdefault(dim, size) != size:
            raise ValueError(f"{where}: {dim} is {sizes[dim]} elsewhere in the arguments, and {size} here")
        check_range(where, dim, size, self.dimensions[dim])

    def _solve(self, where: str, expression: str, size: int, sizes: dict[str, int]) -> None:
        """``4*k`` says what k is, where no argument's size is k itself."""
        unknown = {n.id for n in ast.walk(_parsed(expression)) if isinstance(n, ast.Name)} - sizes.keys()
        if len(unknown) != 1:
            return
        name = unknown.pop()
        at = [_value(_parsed(expression), {**sizes, name: k}) for k in range(3)]
        step = at[1] - at[0]
        if step == 0 or at[2] - at[1] != step:
            return  # not linear: the program itself checks it
        found, rest = divmod(size - at[0], step)
        if rest:
            raise ValueError(f"{where}: expected a size that is {expression} for some {name}, got {size}")
        if name in self.dimensions:
            check_range(f"{where}, {size} = {expression}", name, found, self.dimensions[name])
        sizes[name] = found

    def _compare(self, where: str, expression: str, size: int, sizes: Mapping[str, int]) -> None:
        tree = _parsed(expression)
        names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
        if all(n in sizes for n in names) and (wanted := _value(tree, sizes)) != size:
            given = ", ".join(f"{n}={sizes[n]}" for n in dict.fromkeys(names))
            raise ValueError(f"{where}: expected {expression} = {wanted}, since {given}, got {size}")


_OPERATIONS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as e:
        raise ArtifactError(f"the size {expression!r} of an argument cannot be read") from e


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    """The value of an expression of sizes. It comes from a file, so it is read and not run."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.Name) and tree.id in sizes:
        return sizes[tree.id]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_value(tree.operand, sizes)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
        return _OPERATIONS[type(tree.op)](_value(tree.left, sizes), _value(tree.right, sizes))
    raise ArtifactError(f"the size {ast.unparse(tree)!r} of an argument cannot be read")


def check_range(where: str, name: str, size: int, limits: tuple[int, int | None]) -> None:
    low, high = limits
    if size < low or (high is not None and size > high):
        most = f"at most {high}" if high is not None else "any size above"
        raise ValueError(f"{where}: {name}={size} is outside of what was exported: at least {low}, {most}")


def shown(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def constant(value: Any, what: str) -> Any:
    """A constant that a manifest can hold."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArtifactError(f"{what}: a constant of type {type(value).__name__} cannot be stored in an artifact")
