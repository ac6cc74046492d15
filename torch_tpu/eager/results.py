"""Results: what an operator makes for given arguments, by PyTorch's meta kernels or else by the lowering."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import torch
from torch._prims_common import suggest_memory_format

from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager import refusals
from torch_tpu.eager.operands import Number, Slot, resolve
from torch_tpu.eager.spec import Kind, Spec, arguments
from torch_tpu.lowering import dtypes, registry
from torch_tpu.runtime import buffers

NEW: Any = object()  # in a template of results: the next new tensor


@dataclasses.dataclass(frozen=True)
class Out:
    """A new result: size, strides and dtype by PyTorch's meta kernel."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _meta_tensor(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def _as_meta(value: Any, types: Mapping[torch.dtype, torch.dtype] | None = None) -> Any:
    if isinstance(value, torch.Tensor):
        made = _meta_tensor(value)
        return made.to(types[made.dtype]) if types and made.dtype in types else made
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_as_meta(v) for v in value]
    return value


def _results(op: Operator, result: Any, values: dict[str, Any]) -> list[Any]:
    """An operator's results as a flat list, with None where a mask argument asks for none."""
    flat = list(result) if isinstance(result, (list, tuple)) else [] if result is None else [result]
    flat = [t for r in flat for t in (r if isinstance(r, (list, tuple)) else [r])]
    for name in ("output_mask", "grad_input_mask"):
        if name in values:
            flat = [r if asked else None for r, asked in zip(flat, values[name], strict=True)]
    return flat


def call_with(op: Operator, values: dict[str, Any]) -> Any:
    """Call an operator with arguments bound by name."""
    args, kwargs = arguments(op, values)
    return op(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What PyTorch's meta kernels say of a call.

    ``outs``: the new tensors. ``template``: all plain results in order, ``NEW`` for a tensor, else the value itself.
    ``twin_meta``: the functional twin's results, None for one that is not a tensor.
    """

    outs: tuple[Out, ...]
    template: tuple[Any, ...]
    twin_meta: tuple[registry.Meta | None, ...]

    def of_type(self, dtype: torch.dtype) -> Asked:
        """The same with results of another type."""
        outs = tuple(dataclasses.replace(o, dtype=dtype) for o in self.outs)
        return Asked(outs, self.template, tuple(m and m._replace(dtype=dtype) for m in self.twin_meta))

    def in_format_of(self, operands: Iterable[Any]) -> Asked:
        """The same with images (and volumes) channels_last if one of these tensors is."""
        formats = [suggest_memory_format(t) for t in operands if isinstance(t, torch.Tensor)]
        found = next((f for f in formats if f != torch.contiguous_format), None)
        if found is None:
            return self
        ndim = 4 if found == torch.channels_last else 5

        def laid(out: Out) -> Out:
            if len(out.size) != ndim:
                return out
            like = torch.empty(out.size, device="meta", memory_format=found)
            return dataclasses.replace(out, stride=like.stride())

        return dataclasses.replace(self, outs=tuple(map(laid, self.outs)))


def ask_meta(spec: Spec, values: dict[str, Any]) -> Asked:
    asked = {
        p.name: _as_meta(values[p.name], spec.lowering.meta_types.get(p.name))
        for p in spec.params
        if p.name in values and p.kind is not Kind.GENERATOR and p.name not in ("pin_memory", "device")
    }
    asked.update({p.name: None for p in spec.params if p.kind is Kind.GENERATOR})
    if any(a.name == "device" for a in spec.op._schema.arguments):
        asked["device"] = torch.device("meta")
    outs = [p.name for p in spec.params if p.out]
    results: list[Any] | None = None
    wanted: list[Any] | None = None
    try:
        results = _results(spec.op, call_with(spec.op, asked), asked)
        wanted = refusals.tensors([asked[n] for n in outs])
    except NotImplementedError:  # the twin may have a meta kernel where an out= form has none
        if spec.op is spec.twin:
            raise
    if spec.op is spec.twin:
        results = twin = results or []
    else:
        inputs = {n: _as_meta(v) for n, v in asked.items() if n not in outs}
        if outs and _takes_dtype(spec.twin) and not _takes_dtype(spec.op):  # what is made is of the type of out=
            inputs["dtype"], inputs["device"] = values[outs[0]].dtype, torch.device("meta")
        twin = _results(spec.twin, call_with(spec.twin, inputs), inputs)
        check_out_shapes(outs, values, [(t.shape, t.stride()) for t in wanted or twin if isinstance(t, torch.Tensor)])
        results = twin if results is None else results
        results = [r for r, alias in zip(results, spec.returns, strict=False) if alias is None and spec.returns]
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    return Asked(
        tuple(Out(tuple(t.shape), t.stride(), t.dtype) for t in tensors),
        tuple(NEW if isinstance(r, torch.Tensor) else r for r in results),
        tuple(registry.Meta(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for t in twin),
    )


def _takes_dtype(op: Any) -> bool:
    return any(a.name == "dtype" for a in op._schema.arguments)


def ask_lowering(spec: Spec, bound: dict[str, Any], slots: list[Slot], numbers: list[Number]) -> Asked:
    """The results of an operator without a meta kernel: shapes and strides from the lowering."""

    def results(arrays: list[Any], scalars_: list[Any]) -> Any:
        values = [dtypes.Scalar(v, n.kind) for v, n in zip(scalars_, numbers, strict=True)]
        key = jax.random.key(0) if spec.lowering.rng else None
        resolved = {n: resolve(v, arrays, values) for n, v in bound.items()}
        found = registry.infer(spec.lowering, spec.twin._schema, resolved, key)
        constants.extend(None if hasattr(r, "dtype") else (r,) for r in found)
        return [r for r in found if hasattr(r, "dtype")]

    constants: list[Any] = []
    avals = [jax.ShapeDtypeStruct(s.size, dtypes.to_jax(s.dtype)) for s in slots]
    with jax.enable_x64(True):
        shapes = jax.eval_shape(results, avals, [jax.ShapeDtypeStruct((), n.dtype) for n in numbers])
    outs = tuple(
        Out(s.shape, _strides(s.shape, i in spec.lowering.by_columns), dtypes.to_torch(s.dtype))
        for i, s in enumerate(shapes)
    )
    rest = iter(outs)
    meta = tuple(None if c is not None else registry.Meta((o := next(rest)).size, o.dtype) for c in constants)
    return Asked(outs, tuple(NEW if c is None else c[0] for c in constants), meta)


def _strides(shape: tuple[int, ...], by_columns: bool) -> tuple[int, ...]:
    if not by_columns or len(shape) < 2:
        return buffers.canonical_strides(shape)
    turned = buffers.canonical_strides((*shape[:-2], shape[-1], shape[-2]))
    return (*turned[:-2], turned[-1], turned[-2])


class NeedsResize(Exception):
    """``out=`` tensors have other shapes than the results: (tensor, size, strides)."""

    def __init__(self, sizes: list[tuple[torch.Tensor, tuple[int, ...], tuple[int, ...]]]):
        super().__init__(sizes)
        self.sizes = sizes


def check_out_shapes(outs: list[str], values: dict[str, Any], wanted: Sequence[tuple[Any, Any]]) -> None:
    """Compare the tensors given as ``outs`` with the sizes (and strides, if they have to be made) of the results."""
    changed = [
        (t, tuple(size), tuple(stride))
        for t, (size, stride) in zip(refusals.tensors([values.get(n) for n in outs]), wanted, strict=False)
        if size != t.shape
    ]
    if changed:
        raise NeedsResize(changed)
