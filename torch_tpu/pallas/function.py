"""A JAX function as a lowering: traced once for each combination of shapes, dtypes and static arguments."""

from __future__ import annotations

import collections
import hashlib
import itertools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export as jax_export
from jax.extend import core as jax_core

from torch_tpu.lowering import checks, dtypes
from torch_tpu.pallas import libraries
from torch_tpu.pallas.signature import Signature
from torch_tpu.runtime import interpretation, platform

_KEEP = 256  # traces of one function
_NARROW = {
    np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64),
}  # fmt: skip
_serial = itertools.count()
_PROCESS = uuid.uuid4().hex


class At(NamedTuple):
    """Stands for an array among a function's arguments."""

    place: int


class Traced(NamedTuple):
    """A function's program, and its results: an array's place among the program's, or a value."""

    jaxpr: Any
    results: tuple[Any, ...]


def flatten(signature: Signature, values: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
    """(the arrays among a function's arguments, the arguments with ``At`` in their places)."""
    arrays: list[Any] = []
    template: list[Any] = []

    def place(array: Any) -> At:
        arrays.append(array)
        return At(len(arrays) - 1)

    for p, v in zip(signature.parameters, values, strict=True):
        if p.kind == "array" and v is not None:
            template.append(place(v))
        elif p.kind == "arrays" and v is not None:
            template.append(tuple(place(e) for e in v))
        else:
            template.append(tuple(v) if isinstance(v, list) else v)
    return arrays, tuple(template)


class JaxFunction:
    """The function of one operator."""

    def __init__(
        self, name: str, fn: Callable[..., Any], signature: Signature, *, x64: bool = False,
        donated: frozenset[str] = frozenset(),
    ):  # fmt: skip
        self.name, self.fn, self.signature, self.x64, self.donated = name, fn, signature, x64, donated
        self.serial = next(_serial)
        self._traces: collections.OrderedDict[Any, Traced] = collections.OrderedDict()
        self._lock = threading.RLock()

    # As a lowering -------------------------------------------------------------------------------------------------

    def __call__(self, *positional: Any, **keywords: Any) -> tuple[Any, ...]:
        """Its results for arrays and static arguments in the schema's order, under a JAX trace."""
        rest = iter(positional)
        values = [keywords[p.name] if p.keyword else next(rest) for p in self.signature.parameters]
        arrays, template = flatten(self.signature, values)
        names = self._names(template)
        arrays = [self._narrowed(a, n) for a, n in zip(arrays, names, strict=True)]
        traced = self.trace([_aval(a.shape, a.dtype) for a in arrays], template)
        with jax.enable_x64(self.x64):
            made = jax_core.jaxpr_as_fun(traced.jaxpr)(*arrays)
        return tuple(made[r.place] if isinstance(r, At) else r for r in traced.results)

    def fingerprint(self, bound: Mapping[str, Any]) -> str:
        """What the program depends on besides names, shapes and static arguments: the function's code.

        Args:
          bound: parameter -> what has shape and dtype, or the static value.
        """
        arrays, template = flatten(self.signature, [bound.get(p.name, p.default) for p in self.signature.parameters])
        sizes = [*(n for a in arrays for n in a.shape), *template]
        if any(jax_export.is_symbolic_dim(n) or isinstance(n, torch.SymInt) for n in sizes):
            return f"function {self.serial} of process {_PROCESS}"  # one graph for many sizes: not found on disk again
        traced = self.trace([self._seen(a) for a in arrays], template)
        where, _ = interpretation.target(platform.name())
        if where != "tpu" and interpretation.has_kernels(traced.jaxpr.jaxpr):
            return f"function {self.serial}"  # an interpreted program is not stored
        with jax.enable_x64(self.x64):
            function = jax.jit(jax_core.jaxpr_as_fun(traced.jaxpr))
            lowered = function.trace(*traced.jaxpr.in_avals).lower(lowering_platforms=(where,))
        return hashlib.sha256(lowered.as_text().encode()).hexdigest()

    def kernel(self, names: list[str]) -> Callable[..., Any] | None:
        """The operator's kernel, where it is not made from this as a lowering."""
        return None

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises RuntimeError: a tensor is not on the device; names the parameter, and says what to do."""
        for p in self.signature.parameters:
            v = values.get(p.name)
            several = isinstance(v, (list, tuple))
            for i, t in enumerate(v if several else [v]):
                if isinstance(t, torch.Tensor) and t.device.type not in ("tpu", "meta"):
                    name = f"{p.name}[{i}]" if several else p.name
                    raise RuntimeError(
                        f"{self.name}: parameter {name!r} is a tensor on {t.device}; the operator runs on tpu alone: "
                        f'pass {name}.to("tpu")'
                    )

    # Tracing -------------------------------------------------------------------------------------------------------

    def trace(self, avals: Sequence[jax.ShapeDtypeStruct], template: tuple[Any, ...]) -> Traced:
        """The function's program; what it raises is raised, with a note of what it was traced for."""
        where, chip = interpretation.target(platform.name())
        key = (tuple((tuple(a.shape), str(a.dtype)) for a in avals), _stable(template), where, chip)
        with self._lock:
            found = self._traces.get(key)
            if found is None:
                found = self._trace(avals, template, chip)
                self._traces[key] = found
                if len(self._traces) > _KEEP:
                    self._traces.popitem(last=False)
        return found

    def _trace(self, avals: Sequence[jax.ShapeDtypeStruct], template: tuple[Any, ...], chip: str | None) -> Traced:
        results: list[Any] = []

        def function(*arrays: Any) -> list[Any]:
            made = self._parts(self.call(arrays, template))
            kept: list[Any] = []
            for value, is_array in made:
                if is_array:
                    results.append(At(len(kept)))
                    kept.append(jnp.asarray(value))
                else:
                    results.append(value)
            return kept

        try:
            with jax.enable_x64(self.x64), interpretation.seen_as(chip):
                jaxpr = jax.make_jaxpr(function)(*avals)
        except Exception as e:
            shown = ", ".join(
                f"{n}: {a.dtype}{list(a.shape)}" for n, a in zip(self._names(template), avals, strict=True)
            )
            e.add_note(f"while {self.name} was traced for {shown or 'no arrays'}")
            better = libraries.explained(self.name, e)
            if better is not None:
                raise better from e
            raise
        return Traced(jaxpr, tuple(results))

    def call(self, arrays: Sequence[Any], template: tuple[Any, ...]) -> Any:
        """The function itself on arrays and the static arguments of a template."""
        positional, keywords = [], {}
        for p, v in zip(self.signature.parameters, template, strict=True):
            value: Any = v
            if isinstance(v, At):
                value = arrays[v.place]
            elif p.kind == "arrays" and v is not None:
                value = [arrays[at.place] for at in v]
            if p.taken is not None and value is not None:
                value = p.taken(value)
            elif p.kind == "static" and isinstance(value, tuple):
                value = list(value)
            if p.keyword:
                keywords[p.name] = value
            else:
                positional.append(value)
        return self.fn(*positional, **keywords)

    def _parts(self, made: Any) -> list[tuple[Any, bool]]:
        """What the function returned as (value, whether it is an array).

        Raises:
          TypeError: it is not what the annotation says.
        """
        form, parts = self.signature.result.form, self.signature.result.parts
        if form == "none":
            if made is not None:
                raise TypeError(f"{self.name}: the function is annotated -> None, but gave {_kind(made)}")
            return []
        if form == "one":
            made = (made,)
        if not isinstance(made, (tuple, list)) or (form != "list" and len(made) != len(parts)):
            wanted = "a sequence of arrays" if form == "list" else f"{len(parts)} results"
            raise TypeError(f"{self.name}: the function is annotated to give {wanted}, but gave {_kind(made)}")
        out = []
        for i, value in enumerate(made):
            is_array = form == "list" or parts[i]
            if is_array != (hasattr(value, "shape") and hasattr(value, "dtype")):
                wanted = "an array" if is_array else "a number known when it is traced"
                raise TypeError(f"{self.name}: result {i} is annotated as {wanted}, but is {_kind(value)}")
            out.append((value, is_array))
        return out

    # Sizes and types -----------------------------------------------------------------------------------------------

    def _seen(self, a: Any) -> jax.ShapeDtypeStruct:
        """An array or tensor as the function sees it."""
        dtype = dtypes.to_jax(a.dtype) if isinstance(a.dtype, torch.dtype) else np.dtype(a.dtype)
        return _aval(tuple(a.shape), dtype if self.x64 else _NARROW.get(dtype, dtype))

    def _narrowed(self, a: Any, name: str) -> Any:
        """The array in JAX's 32-bit types; an integer that does not fit is an error when the device is waited for."""
        narrow = None if self.x64 else _NARROW.get(np.dtype(a.dtype))
        if narrow is None:
            return a
        if narrow.kind in "iu":
            limits = jnp.iinfo(narrow)
            message = (
                f"{self.name}: the value {{value}} in {name!r} does not fit {narrow}, which JAX sees in its 32-bit "
                "mode; pass smaller values, or make the operator with jax_op(..., x64=True)"
            )
            checks.require((a > limits.max) | (a < limits.min), a, message, OverflowError)
        return a.astype(narrow)

    def _names(self, template: tuple[Any, ...]) -> list[str]:
        found = []
        for p, v in zip(self.signature.parameters, template, strict=True):
            if isinstance(v, At):
                found.append(p.name)
            elif p.kind == "arrays" and v is not None:
                found += [f"{p.name}[{i}]" for i in range(len(v))]
        return found

    def outputs(
        self, values: Sequence[Any], shapes: Callable[[Any], tuple[Any, ...]] | None = None
    ) -> tuple[Any, ...]:  # fmt: skip
        """What the results look like for tensors: ``ShapeDtypeStruct``, or a value.

        Args:
          shapes: a tensor's shape, with JAX's dimensions in place of symbolic sizes.
        """
        arrays, template = flatten(self.signature, values)
        avals = [self._seen(a) if shapes is None else _aval(shapes(a), self._seen_type(a)) for a in arrays]
        traced = self.trace(avals, template)
        return tuple(traced.jaxpr.out_avals[r.place] if isinstance(r, At) else r for r in traced.results)

    def _seen_type(self, a: torch.Tensor) -> np.dtype:
        dtype = dtypes.to_jax(a.dtype)
        return dtype if self.x64 else _NARROW.get(dtype, dtype)


def _aval(shape: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _stable(value: Any) -> Any:
    """Static arguments so that 1, 1.0 and True are different."""
    if isinstance(value, tuple):
        return (type(value).__name__, *map(_stable, value))
    return (type(value).__name__, value)


def _kind(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r}" if isinstance(value, (int, float, str)) else type(value).__name__
