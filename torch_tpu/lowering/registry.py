"""The table of lowerings: an aten operator -> one pure function on JAX arrays.

A lowering is written once, for the functional operator::

    @register("aten::add.Tensor", "aten::add.Scalar", promote=Promotion.DEFAULT)
    def add(self, other, alpha=1):
        return self + alpha * other

Parameters come in the schema's order (keyword-only ones by name). What a parameter holds:

==================  ==========================================================================================
schema type         what the function gets
==================  ==========================================================================================
Tensor              a JAX array of the tensor's dtype and logical shape (with ``promote``: cast, see Promotion)
Tensor?             the same, or None
Tensor[]            a list of arrays
Scalar, float       a 0-d array (an operand of the program: its value may change without a new program), or a
                    Python number where it equals the schema's default, is listed in ``static``, or is among
                    the values of ``specialize``
int, SymInt, bool,  the Python value (part of the program), unless listed in ``operands``
str, dtype, lists
Generator           nothing: with ``rng=True`` the function gets the keyword ``key``, a JAX PRNG key
device, layout,     nothing: dropped. Strides of results follow PyTorch's own meta kernel
memory_format, ...
==================  ==========================================================================================

The result is an array, or a tuple in the order of the schema's returns (the elements of a Tensor[]); what is not a
tensor, or a gradient that a mask argument does not ask for, may be anything (None, say). The caller casts
each result to the dtype that PyTorch's meta kernel gives, so that a formula may be evaluated in a wider type.
With ``meta=True`` the function gets the keyword ``meta``: a tuple of ``Meta(shape, dtype)``, one a result.

In-place, ``out=`` and foreach forms are derived from the schema by ``torch_tpu.eager``; nothing is written for
them here. Registering a name twice raises.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from torch_tpu.lowering import dtypes


class Promotion(enum.Enum):
    """How tensor and number parameters are cast before a lowering sees them.

    All of them evaluate half types in float32 (ATen's opmath); the caller rounds the result once.
    """

    DEFAULT = "the common type of all operands"
    INT_TO_FLOAT = "the common type; integers and bool become the default floating type"
    BOOL_TO_INT = "the common type; bool becomes int64"
    NO_OPMATH = "the common type, half types kept (for operators that only move or compare values)"


class Meta(NamedTuple):
    """Shape and dtype of one result."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Lowering:
    name: str
    fn: Callable[..., Any]
    promote: Promotion | None = None
    rng: bool = False
    meta: bool = False
    wide: bool = False  # float operands travel as float64 whatever the tensors are
    precision: bool = False  # depends on torch.get_float32_matmul_precision()
    static: frozenset[str] = frozenset()
    operands: frozenset[str] = frozenset()
    specialize: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    own_types: frozenset[str] = frozenset()  # parameters that promotion leaves alone
    own_shapes: bool = False  # PyTorch's meta kernel is not asked
    meta_types: Mapping[str, Mapping[torch.dtype, torch.dtype]] = dataclasses.field(default_factory=dict)
    type_of: str | None = None  # the parameter whose dtype the results have, whatever the meta kernel says
    by_columns: frozenset[int] = frozenset()  # results of an operator without a meta kernel that lie by columns
    format_of: frozenset[str] = frozenset()  # parameters whose memory format the results take
    # Of an operator that a user made of a JAX function (``torch_tpu.pallas``):
    keeps_all: bool = False  # no parameter is dropped for its name
    fingerprint: Callable[[Mapping[str, Any]], str] | None = None  # what a program depends on besides its arguments
    check: Callable[[Mapping[str, Any]], None] | None = None  # refuses tensors of other devices
    donated: frozenset[str] = frozenset()  # parameters whose memory the results may take


_TABLE: dict[str, Lowering] = {}

DROPPED = frozenset({"device", "layout", "pin_memory", "generator", "memory_format", "non_blocking"})


def register(
    *names: str,
    promote: Promotion | None = None,
    rng: bool = False,
    meta: bool = False,
    wide: bool = False,
    precision: bool = False,
    static: Iterable[str] = (),
    operands: Iterable[str] = (),
    specialize: Mapping[str, tuple[Any, ...]] | None = None,
    own_types: Iterable[str] = (),
    own_shapes: bool = False,
    meta_types: Mapping[str, Mapping[torch.dtype, torch.dtype]] | None = None,
    type_of: str | None = None,
    by_columns: Iterable[int] = (),
    format_of: Iterable[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function as the lowering of the named operators (``"aten::name.overload"``).

    Args:
      promote: how operands are cast first; None leaves every tensor in its own dtype.
      rng: pass a PRNG key as the keyword ``key``.
      meta: pass the results' shapes and dtypes as the keyword ``meta``.
      wide: float operands travel as float64 (else so only where a 64-bit floating tensor takes part): for numbers
        such as 1 - beta that lose digits in float32.
      precision: the program depends on the float32 matmul precision.
      static: Scalar or float parameters whose value is part of the program.
      operands: int and int[] parameters whose values are operands of the program.
      specialize: parameter -> values for which the value is part of the program.
      own_types: tensor parameters that promotion leaves alone (a mask, an index).
      own_shapes: shapes and dtypes of results are those that the function gives, since PyTorch's meta kernel refuses
        what its CPU kernel takes, or gives other shapes; the function checks its operands itself.
      meta_types: parameter -> its types that PyTorch's CPU kernel takes and its meta kernel does not, and the type that
        the meta kernel is asked about instead.
      type_of: a tensor parameter whose dtype all results have in eager, where the meta kernel gives them another.
      by_columns: results (by position) whose matrices lie column after column, for operators that PyTorch has no meta
        kernel for. Results that are vectors are not among them.
      format_of: results of four or five dimensions are channels_last where one of these parameters is, as PyTorch's
        kernels make them for CPU and CUDA; its meta kernels do not for other devices.

    Raises:
      ValueError: a name is registered already.
    """

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in _TABLE:
                raise ValueError(f"{name}: a lowering is registered already, in {_TABLE[name].fn.__module__}")
            _TABLE[name] = Lowering(
                name, fn, promote, rng, meta, wide, precision, frozenset(static), frozenset(operands),
                dict(specialize or {}), frozenset(own_types), own_shapes, dict(meta_types or {}), type_of,
                frozenset(by_columns), frozenset(format_of),
            )  # fmt: skip
        return fn

    return declare


def replace(lowering: Lowering) -> None:
    """Declare a lowering of an operator that is not PyTorch's; a second one takes the place of the first.

    Raises:
      ValueError: the operator is one of aten.
    """
    if lowering.name.startswith("aten::"):
        raise ValueError(f"{lowering.name}: lowerings of aten's operators are declared by register")
    _TABLE[lowering.name] = lowering


def load_all() -> None:
    """Import every family, so that the table is complete."""
    package = importlib.import_module("torch_tpu.lowering")
    for module in pkgutil.walk_packages(package.__path__, "torch_tpu.lowering."):
        importlib.import_module(module.name)


def get(name: str) -> Lowering | None:
    """The lowering of ``"aten::name.overload"`` (``"aten::name"`` for the default overload), or None."""
    return _TABLE.get(name)


def names() -> list[str]:
    return sorted(_TABLE)


def _promoted(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, (list, tuple)):
        return [_promoted(e, dtype) for e in x]
    if isinstance(x, (dtypes.Scalar, jax.Array)) or (isinstance(x, (int, float, complex)) and not isinstance(x, bool)):
        return dtypes.cast(x, dtype)
    return x


def _plain(x: Any) -> Any:
    if isinstance(x, dtypes.Scalar):
        return x.array
    if isinstance(x, (list, tuple)) and any(isinstance(e, dtypes.Scalar) for e in x):
        return [_plain(e) for e in x]
    return x


def _operand_type(lowering: Lowering, values: list[Any]) -> torch.dtype:
    flat: list[Any] = []
    for v in values:
        flat.extend(v if isinstance(v, (list, tuple)) else [v])
    common = dtypes.result_type(*flat)
    if lowering.promote is Promotion.INT_TO_FLOAT and dtypes.is_integral(common):
        common = torch.get_default_dtype()
    if lowering.promote is Promotion.BOOL_TO_INT and common == torch.bool:
        common = torch.int64
    return common if lowering.promote is Promotion.NO_OPMATH else dtypes.compute_type(common)


def _apply(
    lowering: Lowering, schema: torch.FunctionSchema, bound: Mapping[str, Any], key: Any, extra: Mapping[str, Any]
) -> Any:
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    values = {a.name: bound.get(a.name, a.default_value) for a in schema.arguments}
    if lowering.promote is not None:
        takes_part, follows = _roles(schema)
        typed = [n for n in takes_part if n not in lowering.own_types and values[n] is not None]
        common = _operand_type(lowering, [values[n] for n in typed])
        for n in (*typed, *(n for n in follows if n not in lowering.own_types)):
            values[n] = _promoted(values[n], common)
    for a in schema.arguments:
        if a.name in DROPPED and not lowering.keeps_all:
            continue
        value = _plain(values[a.name])
        if a.kwarg_only:
            keywords[a.name] = value
        else:
            positional.append(value)
    if lowering.rng:
        keywords["key"] = key
    return lowering.fn(*positional, **keywords, **extra)


def infer(
    lowering: Lowering, schema: torch.FunctionSchema, bound: Mapping[str, Any], key: Any = None
) -> tuple[Any, ...]:
    """A lowering's results as they come, for operators whose shapes PyTorch has no meta kernel for.

    Raises:
      NotImplementedError: the lowering itself asks for the shapes.
    """
    if lowering.meta:
        raise NotImplementedError(f"{lowering.name}: PyTorch has no meta kernel, and the lowering needs its shapes")
    result = _apply(lowering, schema, bound, key, {})
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def call(
    lowering: Lowering,
    schema: torch.FunctionSchema,
    bound: Mapping[str, Any],
    meta: tuple[Meta | None, ...],
    key: Any = None,
) -> tuple[Any, ...]:
    """Apply a lowering to arguments bound by the schema's names; to be called under a JAX trace.

    Args:
      bound: parameter -> array, ``dtypes.Scalar``, Python value, or a list of these. Missing ones are defaults.
      meta: what PyTorch's meta kernel says of the results; None for one that is not a tensor, or not asked for.
      key: a PRNG key, for ``rng`` lowerings.

    Returns:
      The results that are tensors, each cast to the dtype of ``meta``.

    Raises:
      NotImplementedError: operands are integral and a result is floating, but PyTorch's meta kernel says integral.
        It gives the type of the operand also where the other kernels have no integer form (gelu, std).
    """
    asked = [m for m in meta if m is not None]
    nothing = bool(asked) and all(0 in m.shape for m in asked)
    try:
        result = _apply(lowering, schema, bound, key, {"meta": meta} if lowering.meta else {})
    except NotImplementedError:
        # Kernels do not look at types where there is nothing to compute.
        if not nothing:
            raise
        return tuple(jnp.zeros(m.shape, dtypes.to_jax(m.dtype)) for m in asked)
    results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(schema.returns) == 1 and isinstance(schema.returns[0].type, torch.ListType):
        results = tuple(results)
    if len(results) != len(meta):
        raise RuntimeError(f"{lowering.name}: the lowering gives {len(results)} results, PyTorch {len(meta)}")
    arrays = [
        x for v in bound.values() for x in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(x, jax.Array)
    ]
    refuse_floats = bool(arrays) and not nothing and not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in arrays)
    return tuple(_agree(lowering, r, m, refuse_floats) for r, m in zip(results, meta, strict=True) if m is not None)


@functools.cache
def _roles(schema: torch.FunctionSchema) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parameters that decide the common type, and those that are only cast to it.

    Tensors and positional Scalars decide; keyword-only Scalars (alpha, beta, value) follow, as in ATen.
    """
    decide, follow = [], []
    for a in schema.arguments:
        text = str(a.type)
        if text.startswith(("Tensor", "Optional[Tensor", "List[Tensor", "List[Optional[Tensor")):
            decide.append(a.name)
        elif text.startswith(("number", "Optional[number", "List[number")):
            (follow if a.kwarg_only else decide).append(a.name)
    return tuple(decide), tuple(follow)


def _agree(lowering: Lowering, result: Any, meta: Meta, refuse_floats: bool) -> Any:
    if result is None and 0 in meta.shape:  # in a graph, what kernels leave undefined is an empty tensor
        return jnp.zeros(meta.shape, dtypes.to_jax(meta.dtype))
    if result is None:
        raise RuntimeError(f"{lowering.name}: the lowering gives no result where PyTorch has one of {meta}")
    if refuse_floats and dtypes.is_integral(meta.dtype) and jnp.issubdtype(jnp.result_type(result), jnp.inexact):
        raise NotImplementedError(f"{lowering.name}: not implemented for {meta.dtype}, only for floating types")
    result = dtypes.cast(result, meta.dtype)
    if tuple(result.shape) != tuple(meta.shape):
        raise RuntimeError(
            f"{lowering.name}: the lowering gives shape {tuple(result.shape)}, PyTorch {tuple(meta.shape)}"
        )
    return result
