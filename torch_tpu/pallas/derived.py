"""Operators that JAX derives from one: its vector-Jacobian product, its batched form."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_tpu.pallas.function import At, JaxFunction, flatten
from torch_tpu.pallas.operator import JaxOp, _bound, defined
from torch_tpu.pallas.signature import Parameter, Result, Signature

_EMPTY = inspect.Parameter.empty


def _extended(function: JaxFunction, suffix: str, more: Sequence[Parameter], result: Result, call: Any) -> JaxFunction:
    """A function of the same arguments, all by position, and more behind them."""
    own = tuple(
        Parameter(p.name, p.schema, p.kind, False, _EMPTY) for p in function.signature.parameters
    )  # what is taken of an argument is taken by the function itself
    return JaxFunction(f"{function.name}_{suffix}", call, Signature((*own, *more), result), x64=function.x64)


def _more(function: JaxFunction, name: str, schema: str, kind: Literal["arrays", "static"]) -> Parameter:
    """A parameter behind the function's own; derived operators are derived from again, and names differ."""
    return Parameter(f"torch_tpu_{name}_{len(function.signature.parameters)}", schema, kind, False, _EMPTY)


# Batching ------------------------------------------------------------------------------------------------------------


def batched(function: JaxFunction) -> JaxOp:
    """The operator under ``jax.vmap``: its last argument has the batched dimension of each array, -1 for none."""
    more = [_more(function, "dims", "int[]", "static")]

    def call(*values: Any) -> Any:
        *own, dims = values
        arrays, template = flatten(function.signature, own)
        form = function.signature.result.form
        kept: list[Any] = []

        def one(*arrays: Any) -> list[Any]:
            kept[:] = function._parts(function.call(arrays, template))
            return [jnp.asarray(v) for v, is_array in kept if is_array]

        made = iter(jax.vmap(one, in_axes=tuple(None if d < 0 else d for d in dims))(*arrays))
        out = [next(made) if is_array else v for v, is_array in kept]
        return None if form == "none" else out[0] if form == "one" else tuple(out)

    return defined(_extended(function, "vmap", more, function.signature.result, call))


# Gradients -----------------------------------------------------------------------------------------------------------


def differentiate(op: JaxOp) -> None:
    """Register a gradient for the operator: ``jax.vjp`` of its function, as an operator that has one in its turn."""
    function = op.function
    pulled: list[JaxOp] = []

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None) -> None:
        values = list(_bound(op._opoverload, inputs, dict(keyword_only_inputs or {})).values())
        tensors, ctx.template = flatten(function.signature, values)
        ctx.save_for_backward(*tensors)

    def backward(ctx: Any, *grads: Any) -> Any:
        if not pulled:
            pulled.append(defined(_pullback(function)))
            differentiate(pulled[0])
        tensors = list(ctx.saved_tensors)
        needed = _needed(function.signature, ctx.needs_input_grad, ctx.template)
        wanted = [i for i, t in enumerate(tensors) if needed[i] and (t.is_floating_point() or t.is_complex())]
        cotangents = [g for grad in grads for g in (grad if isinstance(grad, (list, tuple)) else [grad])]
        values = _restored(function.signature, tensors, ctx.template)
        found = dict(zip(wanted, pulled[0]._opoverload(*values, cotangents, wanted), strict=True)) if wanted else {}
        return _in_places(function.signature, ctx.template, found)

    if any(p.keyword for p in function.signature.parameters):
        op.register_autograd(
            backward,
            setup_context=lambda ctx, inputs, keyword_only_inputs, output: setup_context(
                ctx, inputs, output, keyword_only_inputs
            ),
        )
    else:
        op.register_autograd(backward, setup_context=setup_context)


def _pullback(function: JaxFunction) -> JaxFunction:
    more = [_more(function, "cotangents", "Tensor[]", "arrays"), _more(function, "wanted", "int[]", "static")]

    def call(*values: Any) -> list[Any]:
        *own, cotangents, wanted = values
        arrays, template = flatten(function.signature, own)

        def of_wanted(*chosen: Any) -> list[Any]:
            full = list(arrays)
            for i, a in zip(wanted, chosen, strict=True):
                full[i] = a
            made = function._parts(function.call(full, template))
            return [jnp.asarray(v) for v, is_array in made if is_array]

        try:
            results, pull = jax.vjp(of_wanted, *(arrays[i] for i in wanted))
            given = [_cotangent(c, r) for c, r in zip(cotangents, results, strict=True)]
            return list(pull(given))
        except Exception as e:
            raise NotImplementedError(
                f"{function.name}: JAX cannot differentiate the function ({type(e).__name__}: {e}); give it a "
                "jax.custom_vjp, or register a gradient with register_autograd in place of differentiable=True"
            ) from e

    return _extended(function, "vjp", more, Result("Tensor[]", "list"), call)


def _cotangent(given: Any, result: Any) -> Any:
    if not jnp.issubdtype(result.dtype, jnp.inexact):
        return np.zeros(result.shape, jax.dtypes.float0)
    return jnp.asarray(given).astype(result.dtype)


def _needed(signature: Signature, needs: Sequence[Any], template: Sequence[Any]) -> list[bool]:
    """For each array, whether its gradient is asked for."""
    out: list[bool] = []
    for p, need, at in zip(signature.parameters, needs, template, strict=False):
        if p.kind == "arrays" and at is not None:
            out += list(need) if isinstance(need, (list, tuple)) else [bool(need)] * len(at)
        elif isinstance(at, At):
            out.append(bool(need))
    return out


def _restored(signature: Signature, arrays: Sequence[torch.Tensor], template: Sequence[Any]) -> list[Any]:
    return [
        [arrays[a.place] for a in at] if p.kind == "arrays" and at is not None
        else arrays[at.place] if isinstance(at, At) else list(at) if isinstance(at, tuple) else at
        for p, at in zip(signature.parameters, template, strict=True)
    ]  # fmt: skip


def _in_places(signature: Signature, template: Sequence[Any], found: dict[int, Any]) -> Any:
    """Gradients in the places of the operator's positional arguments."""
    out: list[Any] = []
    for p, at in zip(signature.parameters, template, strict=True):
        if p.keyword:
            continue
        if p.kind == "arrays" and at is not None:
            out.append([found.get(a.place) for a in at])
        else:
            out.append(found.get(at.place) if isinstance(at, At) else None)
    return out[0] if len(out) == 1 else tuple(out)
