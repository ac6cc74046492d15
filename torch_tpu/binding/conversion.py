"""``x.data = y`` between host and device, and through it the conversion of modules.

For CPU and CUDA, ``Module.to`` puts new data under the same ``Parameter`` objects: ties stay, an optimizer built before
trains what the module has, and views, graphs and weak references that others hold do not matter. PyTorch knows host
and PrivateUse1 tensors as incompatible, and would make new objects. Here they are made compatible: assigning ``data``
across puts the new tensor's C++ object under the old Python object, with gradient and hooks taken along.
"""

from __future__ import annotations

from typing import Any

import torch

_base_data: Any = torch._C.TensorBase.data
_compatible = torch._has_compatible_shallow_copy_type  # type: ignore[attr-defined]
_swap = torch._C._swap_tensor_impl  # type: ignore[attr-defined]
_PLAIN = {"tpu", "cpu"}


def _crosses(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one is on tpu and the other on the host, and both are plain strided tensors; ``a`` is the one that gets
    the other's data, and no result of operators."""
    if a.device.type == b.device.type or {a.device.type, b.device.type} != _PLAIN:
        return False
    python = torch._C.DispatchKey.Python
    plain = all(t.layout == torch.strided and not torch._C._dispatch_keys(t).has(python) for t in (a, b))
    return plain and a.is_leaf


def _stale(*grads: Any) -> None:
    raise RuntimeError(
        "backward reached a parameter that was moved between cpu and tpu after this graph was recorded; "
        "run the forward pass again"
    )


def _replace(t: torch.Tensor, value: torch.Tensor) -> None:
    """``t`` becomes ``value``'s data; the Python object stays."""
    new = value.detach()
    if t.requires_grad:
        with torch._C.DisableTorchFunctionSubclass():  # a lazy module's parameter refuses every operator
            torch.autograd.graph.get_gradient_edge(t).node.register_prehook(_stale)
        new.requires_grad_()
    if t.grad is not None:
        _give(new, t.grad)
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(t, hooks):
            setattr(new, hooks, getattr(t, hooks))
    _swap(t, new)


def _give(new: torch.Tensor, grad: torch.Tensor) -> None:
    """``grad`` as the gradient of ``new``. It may have another shape: sharded training puts other data under a
    parameter than its gradient belongs to, which PyTorch allows where ``data`` is assigned."""
    with torch.no_grad():
        grad = grad.to(new.device, new.dtype)
    if grad.shape == new.shape:
        new.grad = grad
        return
    data = new.detach()
    _base_data.__set__(new, torch.empty_like(grad))
    new.grad = grad
    _base_data.__set__(new, data)


def _get_data(self: torch.Tensor) -> torch.Tensor:
    return _base_data.__get__(self)


def _set_data(self: torch.Tensor, value: torch.Tensor) -> None:
    if isinstance(value, torch.Tensor) and _crosses(self, value):
        _replace(self, value)
    else:
        _base_data.__set__(self, value)


def _has_compatible_shallow_copy_type(input: torch.Tensor, from_: torch.Tensor) -> bool:
    return _compatible(input, from_) or _crosses(input, from_)


def install() -> None:
    torch.Tensor.data = property(_get_data, _set_data, doc=_base_data.__doc__)  # type: ignore[assignment,misc]
    torch._has_compatible_shallow_copy_type = _has_compatible_shallow_copy_type  # type: ignore[attr-defined]
