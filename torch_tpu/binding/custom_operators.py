"""Operators of ``torch.library`` whose kernel on device tpu is made from a lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from torch_tpu.binding.registration import leave_alone, overriding


def register(opdef: CustomOpDef, check: Callable[[Mapping[str, Any]], None]) -> Callable[[], None]:
    """Give the operator its kernel for tpu, and one for every other device that raises what ``check`` does.

    An operator without tensors runs on tpu.

    Returns:
      What lets go of the kernel: the next call makes it from the lowering that there is then.
    """
    op = opdef._opoverload
    names = [a.name for a in op._schema.arguments]
    built: list[Callable[..., Any]] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not built:
            built.append(_build(op))
        return built[0](*args, **kwargs)

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        check(dict(zip(names, args, strict=False)) | kwargs)
        return kernel(*args, **kwargs)

    for made, key in ((kernel, "PrivateUse1"), (elsewhere, "CompositeExplicitAutograd")):
        leave_alone(made)
        with overriding():
            opdef._lib.impl(opdef._name, made, key)
    return built.clear


def _build(op: Any) -> Callable[..., Any]:
    from torch_tpu.binding import loading
    from torch_tpu.eager import kernels, spec

    loading.load()
    found = spec.spec_for(op)
    assert found is not None
    return kernels.build(found)


def number_of(symbol: Any, like: torch.SymInt) -> torch.SymInt:
    """The symbolic number that is ``symbol`` alone, from one made of it."""
    env = like.node.shape_env
    return env.create_symintnode(symbol, hint=int(env.backed_var_to_val[symbol]))
