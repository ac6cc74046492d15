"""What autograd and ``torch.func`` ask of an operator whose derivatives are made in Python.

Contract tests: tests/contracts/test_derivatives.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.autograd import make_autograd_impl
from torch.autograd import forward_ad

from torch_tpu.binding.custom_operators import CustomOpDef
from torch_tpu.binding.dispatcher import Operator

Modes = tuple[bool, bool]
"""Whether gradients are recorded, and whether tangents are."""

forward_mode = forward_ad._set_fwd_grad_enabled
"""A block in which tangents are recorded, or not."""


def registered(opdef: CustomOpDef) -> Callable[..., Any]:
    """PyTorch's own kernel of autograd for it, ``kernel(keys, *args, **kwargs)``: by ``register_autograd``."""
    return make_autograd_impl(opdef._opoverload, opdef)  # pyright: ignore[reportArgumentType]


def below(op: Operator, keys: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The operator by what the dispatcher has behind autograd for these keys."""
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keys & torch._C._after_autograd_keyset, *args, **kwargs)


def asked_for(args: Sequence[Any]) -> bool:
    """Whether a call with these arguments is to be differentiated, in either direction."""
    return (torch.is_grad_enabled() and torch._C._any_requires_grad(*args)) or forward_ad._current_level >= 0


def modes() -> Modes:
    return torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()


@contextlib.contextmanager
def in_modes(modes: Modes) -> Iterator[None]:
    with torch.set_grad_enabled(modes[0]), forward_mode(modes[1]):
        yield


def at_one_level(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` for the level of ``torch.func`` that the dispatcher is at.

    PyTorch refuses to apply such a class under ``torch.func``, where it may not know the level that it is called for;
    a kernel is called from level to level.
    """
    apply = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def call(*args: Any) -> Any:
        with enable_single_level_autograd_function():
            return apply(*args)

    return call
