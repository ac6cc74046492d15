"""Operators without a lowering: they decompose by PyTorch's own tables, else run on the host, counted and warned.

The host path copies the operands, runs PyTorch's CPU kernel, and copies results and mutated operands back.
"""

from __future__ import annotations

import collections
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._prims_common.wrappers import _resize_output_check

from torch_tpu.binding import dispatcher
from torch_tpu.binding.dispatcher import Operator
from torch_tpu.eager import copies, refusals
from torch_tpu.eager.spec import arguments, overload_name, twin_of

_MODES = ("error", "warn", "allow")


class FallbackWarning(UserWarning):
    """An operator ran on the host, since neither a lowering nor a decomposition of it exists."""


class _State:
    mode = "warn"


class _Inside(threading.local):
    def __init__(self) -> None:
        self.names: set[str] = set()


_inside = _Inside()


counts: collections.Counter[str] = collections.Counter()
decomposed: collections.Counter[str] = collections.Counter()


def set_fallback(mode: str) -> None:
    """What happens when an operator has to run on the host: ``"error"``, ``"warn"`` (once an operator), ``"allow"``."""
    if mode not in _MODES:
        raise ValueError(f"set_fallback: expected one of {', '.join(map(repr, _MODES))}, got {mode!r}")
    _State.mode = mode


def fallback_counts() -> dict[str, int]:
    """Operator -> how often it ran on the host, in this process."""
    return dict(counts)


_decompositions: Mapping[Any, Callable[..., Any]] | None = None


def decomposition_of(op: Operator) -> Callable[..., Any] | None:
    global _decompositions
    if _decompositions is None:
        _decompositions = dispatcher.decompositions()
    return _decompositions.get(op)


def handle(op: Operator, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that has no kernel on the device."""
    name = overload_name(op)
    values = {**named(op, args), **kwargs}
    _check_overlap(op, values)
    twin = twin_of(op)
    if twin is not None and any(a.is_out for a in op._schema.arguments) and _has_kernel(twin):
        return by_twin(op, twin, values)
    decomposition = decomposition_of(op)
    if decomposition is None or name in _inside.names:
        return on_host(op, *args, **kwargs)
    decomposed[name] += 1
    _inside.names.add(name)  # some decompositions lead back to the operator itself
    try:
        with refusals.in_words_of_cpu(op, lambda: values):
            result = decomposition(*args, **kwargs)
    finally:
        _inside.names.discard(name)
    return on_host(op, *args, **kwargs) if result is NotImplemented else result


def named(op: Operator, args: tuple[Any, ...]) -> dict[str, Any]:
    return {a.name: v for a, v in zip(op._schema.arguments, args, strict=False)}


def _check_overlap(op: Operator, values: dict[str, Any]) -> None:
    if any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments):
        given = refusals.tensors(values)
        if all(t.device.type == "tpu" for t in given):
            key = tuple((t.shape, t.stride(), t.storage_offset(), t.dtype) for t in given)
            refusals.check_overlap(op, key, values)


def _has_kernel(op: Operator) -> bool:
    return dispatcher.has_kernel(overload_name(op), "PrivateUse1")


def by_twin(op: Operator, twin: Operator, values: dict[str, Any]) -> Any:
    """An ``out=`` form of an operator that only its functional form has a kernel of: the result is copied."""
    outs = [a.name for a in op._schema.arguments if a.is_out]
    args, kwargs = arguments(twin, {n: v for n, v in values.items() if n not in outs})
    results = refusals.tensors(twin(*args, **kwargs))
    written = refusals.tensors([values[n] for n in outs])
    for out, result in zip(written, results, strict=True):
        if out.dtype != result.dtype:
            refusals.check(op, values)
        if _resize_output_check(out, result.shape):  # warns where it is not empty
            out.resize_(result.shape)
        copies.copy_(out, result)
    return written[0] if len(written) == 1 else tuple(written)


# CPU's own kernel ends the process on what is not finite (torch 2.13, MKL).
_ENDS_THE_PROCESS = frozenset({"aten::_linalg_eigvals", "aten::linalg_eigvals", "aten::linalg_eigvals.out"})


def on_host(op: Operator, *args: Any, **kwargs: Any) -> Any:
    name = overload_name(op)
    _announce(name)
    counts[name] += 1
    moved: dict[int, torch.Tensor] = {}

    def down(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.device.type != "tpu":
                return x
            return moved.setdefault(id(x), copies.to_host(x))
        if isinstance(x, (list, tuple)):
            return type(x)(down(v) for v in x)
        if isinstance(x, torch.device) and x.type == "tpu":
            return torch.device("cpu")
        return x

    index = next((t.get_device() for t in refusals.tensors([args, kwargs]) if t.device.type == "tpu"), None)
    index = copies._index_of(None) if index is None else index
    host_args = [down(a) for a in args]
    host_kwargs = {k: down(v) for k, v in kwargs.items()}
    if name in _ENDS_THE_PROCESS and not all(bool(t.isfinite().all()) for t in refusals.tensors(host_args)):
        raise RuntimeError("torch.linalg.eig: input tensor should not contain infs or NaNs.")
    result = op(*host_args, **host_kwargs)
    back = _write_back(op, args, kwargs, moved)

    def up(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return back[id(x)] if id(x) in back else copies.from_host(x, index)
        if isinstance(x, (list, tuple)):
            return type(x)(up(v) for v in x)
        return x

    return up(result)


def _announce(name: str) -> None:
    if _State.mode == "error":
        raise NotImplementedError(
            f"{name} has no lowering for tpu and set_fallback('error') is in force; "
            "torch_tpu.set_fallback('warn') runs it on the host"
        )
    if _State.mode == "warn" and not counts[name]:
        warnings.warn(
            f"{name} has no lowering for tpu: it runs on the host, with copies there and back. "
            "torch_tpu.set_fallback('error') makes this an error, 'allow' silences it.",
            FallbackWarning,
            stacklevel=4,
        )


def _write_back(
    op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], moved: dict[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Copy mutated operands to the device; id of the host tensor -> the device tensor that it stands for."""
    back: dict[int, torch.Tensor] = {}
    for i, a in enumerate(op._schema.arguments):
        if a.alias_info is None or not a.alias_info.is_write:
            continue
        value = kwargs.get(a.name, args[i] if i < len(args) else None)
        for t in refusals.tensors(value):
            host = moved.get(id(t))
            if host is None:
                continue
            if t.shape != host.shape:
                t.resize_(host.shape)
            copies.copy_(t, host)
            back[id(host)] = t
    return back
