"""Operators that JAX derives from one: its vector-Jacobian and Jacobian-vector products, its batched form."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
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
    """Register a gradient for the operator: ``jax.vjp`` of its function, as an operator that has one in its turn.

    PyTorch's own operators of ``torch.library`` take no part in ``torch.func`` and forward mode; calls there are those
    of an ``autograd.Function``.
    """
    function = op.function
    signature = function.signature
    pulled = functools.cache(lambda: _differentiated(_pullback(function)))

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None) -> None:
        values = list(_bound(op._opoverload, inputs, dict(keyword_only_inputs or {})).values())
        tensors, ctx.template = flatten(signature, values)
        ctx.save_for_backward(*tensors)

    def backward(ctx: Any, *grads: Any) -> Any:
        needed = _needed(signature, ctx.needs_input_grad, ctx.template)
        cotangents = [g for grad in grads for g in (grad if isinstance(grad, (list, tuple)) else [grad])]
        found = _gradients(pulled(), signature, ctx, needed, cotangents)
        return _in_places(signature, ctx.template, found)

    if any(p.keyword for p in signature.parameters):
        op.register_autograd(
            backward,
            setup_context=lambda ctx, inputs, keyword_only_inputs, output: setup_context(
                ctx, inputs, output, keyword_only_inputs
            ),
        )
    else:
        op.register_autograd(backward, setup_context=setup_context)
    op.transformed = _transformed(op, pulled)


def _differentiated(function: JaxFunction) -> JaxOp:
    op = defined(function)
    differentiate(op)
    return op


def _gradients(
    pulled: JaxOp, signature: Signature, ctx: Any, needed: Sequence[bool], cotangents: Sequence[Any]
) -> dict[int, torch.Tensor]:  # fmt: skip
    """Array -> its gradient, for those that are asked for and can have one."""
    tensors = list(ctx.saved_tensors)
    wanted = [i for i, t in enumerate(tensors) if needed[i] and _continuous(t)]
    values = _restored(signature, tensors, ctx.template)
    # For a number among the results there is none.
    given = [c for c in cotangents if isinstance(c, torch.Tensor)]
    return dict(zip(wanted, pulled(*values, given, wanted), strict=True)) if wanted else {}


def _continuous(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())


def _transformed(op: JaxOp, pulled: Callable[[], JaxOp]) -> Callable[..., Any]:
    """The operator under ``torch.func`` and in forward mode, as a function of its arguments."""
    function = op.function
    signature = function.signature
    pushed = functools.cache(lambda: _differentiated(_pushforward(function)))

    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(template: Any, *tensors: Any) -> Any:
            return _as_tuple(op.call(_restored(signature, tensors, template)))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.template, *tensors = inputs
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.continuous = [_continuous(o) for o in output]
            ctx.mark_non_differentiable(*(o for o in output if isinstance(o, torch.Tensor) and not _continuous(o)))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            found = _gradients(pulled(), signature, ctx, ctx.needs_input_grad[1:], grads)
            return None, *(found.get(i) for i in range(len(ctx.saved_tensors)))

        @staticmethod
        def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
            tensors = list(ctx.saved_tensors)
            wanted = [i for i, t in enumerate(tangents) if t is not None and _continuous(tensors[i])]
            values = _restored(signature, tensors, ctx.template)
            made = iter(pushed()(*values, [tangents[i] for i in wanted], wanted))
            return tuple(next(made) if has else None for has in ctx.continuous)

        @staticmethod
        def vmap(info: Any, in_dims: Any, template: Any, *tensors: Any) -> Any:
            dims = [-1 if d is None else d for d in in_dims[1:]]
            made = _as_tuple(op.batched()(*_restored(signature, tensors, template), dims))
            return made, tuple(0 if isinstance(m, torch.Tensor) else None for m in made)

    defaults = _bound(op._opoverload, (), {})  # Dynamo, which traces the call, cannot read a schema

    def call(*args: Any, **kwargs: Any) -> Any:
        values = {**defaults, **dict(zip(defaults, args)), **kwargs}  # noqa: B905: the others are defaults
        tensors, template = flatten(signature, list(values.values()))
        made = Transformed.apply(template, *tensors)
        form = signature.result.form
        return None if form == "none" else made[0] if form == "one" else list(made) if form == "list" else made

    return call


def _as_tuple(made: Any) -> tuple[Any, ...]:
    return () if made is None else tuple(made) if isinstance(made, (list, tuple)) else (made,)


def _pushforward(function: JaxFunction) -> JaxFunction:
    more = [_more(function, "tangents", "Tensor[]", "arrays"), _more(function, "wanted", "int[]", "static")]

    def call(*values: Any) -> list[Any]:
        *own, tangents, wanted = values
        of_wanted, chosen = _of_wanted(function, own, wanted)
        given = [jnp.asarray(t).astype(a.dtype) for t, a in zip(tangents, chosen, strict=True)]
        with _explaining(function):
            made = jax.jvp(of_wanted, tuple(chosen), tuple(given))[1]
        return [t for t in made if t.dtype != jax.dtypes.float0]

    return _extended(function, "jvp", more, Result("Tensor[]", "list"), call)


def _of_wanted(
    function: JaxFunction, own: Sequence[Any], wanted: Sequence[int]
) -> tuple[Callable[..., list[Any]], list[Any]]:  # fmt: skip
    """(the function's arrays as a function of some of its operands, those operands)."""
    arrays, template = flatten(function.signature, own)

    def of_wanted(*chosen: Any) -> list[Any]:
        full = list(arrays)
        for i, a in zip(wanted, chosen, strict=True):
            full[i] = a
        made = function._parts(function.call(full, template))
        return [jnp.asarray(v) for v, is_array in made if is_array]

    return of_wanted, [arrays[i] for i in wanted]


@contextlib.contextmanager
def _explaining(function: JaxFunction) -> Iterator[None]:
    try:
        yield
    except Exception as e:
        raise NotImplementedError(
            f"{function.name}: JAX cannot differentiate the function ({type(e).__name__}: {e}); give it a "
            "jax.custom_vjp, or register a gradient with register_autograd in place of differentiable=True"
        ) from e


def _pullback(function: JaxFunction) -> JaxFunction:
    more = [_more(function, "cotangents", "Tensor[]", "arrays"), _more(function, "wanted", "int[]", "static")]

    def call(*values: Any) -> list[Any]:
        *own, cotangents, wanted = values
        of_wanted, chosen = _of_wanted(function, own, wanted)
        with _explaining(function):
            results, pull = jax.vjp(of_wanted, *chosen)
            given = [_cotangent(c, r) for c, r in zip(cotangents, results, strict=True)]
            return list(pull(given))

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
