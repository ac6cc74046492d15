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
from torch.autograd import forward_ad

from torch_tpu.binding import derivatives
from torch_tpu.pallas.function import At, JaxFunction, flatten
from torch_tpu.pallas.operator import JaxOp, defined
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
    """Give the operator derivatives of its function by JAX, forward and backward, each an operator that has some in its
    turn: under autograd, in forward mode and under ``torch.func``."""
    function = op.function
    signature = function.signature
    pulled = functools.cache(lambda: _differentiated(_pullback(function)))
    pushed = functools.cache(lambda: _differentiated(_pushforward(function)))

    class Differentiated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, template: Any, keys: Any, modes: derivatives.Modes, *tensors: Any) -> Any:
            # PyTorch turns both off here; they are what the levels of ``torch.func`` below this one find.
            with derivatives.in_modes(modes):
                made = _as_tuple(op.below_autograd(keys, _restored(signature, tensors, template)))
            ctx.template, ctx.modes, ctx.continuous = template, modes, [_continuous(m) for m in made]
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)
            ctx.mark_non_differentiable(*(m for m in made if isinstance(m, torch.Tensor) and not _continuous(m)))
            return made

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            tensors = list(ctx.saved_tensors)
            wanted = [i for i, t in enumerate(tensors) if ctx.needs_input_grad[3 + i] and _continuous(t)]
            given = [g for g in grads if isinstance(g, torch.Tensor)]  # a number among the results has none
            values = _restored(signature, tensors, ctx.template)
            found = dict(zip(wanted, pulled()(*values, given, wanted), strict=True)) if wanted else {}
            return None, None, None, *(found.get(i) for i in range(len(tensors)))

        @staticmethod
        def jvp(ctx: Any, _: Any, keys: Any, modes: Any, *tangents: Any) -> Any:
            tensors = list(ctx.saved_tensors)
            wanted = [i for i, t in enumerate(tangents) if t is not None and _continuous(tensors[i])]
            with derivatives.forward_mode(ctx.modes[1]):  # for the levels below: this one has its tangents
                primals = [forward_ad.unpack_dual(t).primal for t in tensors]
                values = _restored(signature, primals, ctx.template)
                made = iter(pushed()(*values, [tangents[i] for i in wanted], wanted))
            return tuple(next(made) if has else None for has in ctx.continuous)

    apply = derivatives.at_one_level(Differentiated)

    def call(keys: Any, values: Sequence[Any]) -> Any:
        tensors, template = flatten(signature, values)
        made = apply(template, keys, derivatives.modes(), *tensors)
        form = signature.result.form
        return None if form == "none" else made[0] if form == "one" else list(made) if form == "list" else made

    op.differentiated = call


def _differentiated(function: JaxFunction) -> JaxOp:
    op = defined(function)
    differentiate(op)
    return op


def _continuous(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())


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


def _restored(signature: Signature, arrays: Sequence[torch.Tensor], template: Sequence[Any]) -> list[Any]:
    return [
        [arrays[a.place] for a in at] if p.kind == "arrays" and at is not None
        else arrays[at.place] if isinstance(at, At) else list(at) if isinstance(at, tuple) else at
        for p, at in zip(signature.parameters, template, strict=True)
    ]  # fmt: skip
