"""What PyTorch's dispatcher knows of operators: their names, which kernels they have, and kernels as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

Operator = torch._ops.OpOverload
"""An operator of one overload, as ``torch.ops.aten.add.Tensor``."""

HigherOrder = torch._ops.HigherOrderOperator
"""An operator that takes graphs, as ``torch.ops.higher_order.cond``."""


def operator_names() -> list[str]:
    """All operators: ``"ns::packet.overload"``, without a suffix for the default overload."""
    return torch._C._dispatch_get_all_op_names()


def has_kernel(name: str, key: str) -> bool:
    """Whether a kernel is registered under just this dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def is_composite_implicit(name: str) -> bool:
    """Whether the operator is made of others, with their autograd: a kernel of its own would lose that."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def is_composite_nonfunctional(name: str) -> bool:
    """Whether the operator has a form in terms of others that a backend's own kernel is to replace."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutogradNonFunctional")


def composite_kernel(name: str) -> Callable[..., Any] | None:
    """The operator's form in terms of others, below autograd; None if it has none."""
    # It is reached through a backend that has no kernels of its own; those that are not functional are kept from XLA.
    backends = {"CompositeExplicitAutograd": "XLA", "CompositeExplicitAutogradNonFunctional": "IPU"}
    for key, backend in backends.items():
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return _without_keys(torch.library.get_kernel(name, backend).call_boxed, torch._C.DispatchKey.PrivateUse1)
    return None


def device_kernel(name: str) -> Callable[..., Any] | None:
    """The kernel that a custom operator has for device tpu; None if it has none of its own."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"):
        return None
    return _without_keys(torch.library.get_kernel(name, "PrivateUse1").call_boxed, torch._C.DispatchKey.PrivateUse1)


def cpu_kernel(name: str, key: str = "CPU") -> Callable[..., Any]:
    """CPU's kernel; for operators whose kernels only look at metadata, and so serve any device.

    Args:
      key: CPU, or SparseCPU, SparseCsrCPU for those of sparse tensors.
    """
    return _without_keys(torch.library.get_kernel(name, key).call_boxed, getattr(torch._C.DispatchKey, key))


def _without_keys(call: Callable[..., Any], key: Any) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(key)
    return lambda *args, **kwargs: call(keys, *args, **kwargs)


def takes_lazy_bits(name: str) -> bool:
    """Whether the operator is handed tensors with a conjugate or negative bit; all others get them carried out."""
    # PyTorch registers a fallthrough for these (aten/src/ATen/ConjugateFallback.cpp, NegateFallback.cpp).
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("Conjugate", "Negative"))


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """PyTorch's table: operator -> a Python function in terms of others."""
    import torch._refs  # noqa: F401  fills the table
    from torch._decomp import decomposition_table

    return decomposition_table


def overrideable_attention_enabled() -> bool:
    """Whether ``torch.nn.attention.sdpa_kernel`` lets the device's own attention be used."""
    return torch._C._get_overrideable_sdp_enabled()
