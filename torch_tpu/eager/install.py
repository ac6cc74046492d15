"""Registering eager's kernels with the dispatcher.

Every overload that a lowering can serve gets a small stub by name, which builds the real kernel when the operator is
first called: two thousand kernels are not built for the fifty that a program uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_tpu.binding import dispatcher
from torch_tpu.binding.registration import overriding, register, register_fallback
from torch_tpu.eager import (  # fakes, unique: for what they declare
    copies,
    fakes,  # noqa: F401
    fallback,
    foreach,
    kernels,
    metadata,
    sdpa,
    sparse,
    spec,
    special,
    unique,  # noqa: F401
)
from torch_tpu.lowering import registry

_COPIES = {
    "empty.memory_format": copies.empty,
    "empty_strided": copies.empty_strided,
    "_efficientzerotensor": copies.empty,  # memory never written reads as zeros
    "resize_": copies.resize_,
    "copy_": copies.copy_,
    "_copy_from": copies.copy_from,
    "_copy_from_and_resize": copies.copy_from_and_resize,
    "_to_copy": copies.to_copy,
    "clone": copies.clone,
    "_local_scalar_dense": copies.local_scalar_dense,
    "as_strided": metadata.as_strided,
    "as_strided_": metadata.as_strided_,
    "view": metadata.view,
    "_reshape_alias": metadata.reshape_alias,
    "unfold": metadata.unfold,
    "view_as_complex": metadata.view_as_complex,
    "view_as_real": metadata.view_as_real,
    "set_.source_Storage_storage_offset": metadata.set_storage_offset,
    "set_.source_Storage": metadata.set_storage,
    "set_.source_Tensor": metadata.set_tensor,
    "set_": metadata.set_empty,
}


def _served_names() -> list[str]:
    """Overloads of aten that a lowering may serve: of a lowering's packet, or of its mutating or out= form."""
    packets = {name.partition(".")[0] for name in registry.names() if name.startswith("aten::")}
    packets |= {p.removesuffix("_functional") for p in packets}
    packets |= {p + "_" for p in packets}
    return [
        name
        for name in dispatcher.operator_names()
        if name.partition(".")[0] in packets and not dispatcher.is_composite_implicit(name)
    ]


def install() -> None:
    """Register everything. Called once, when the device is first used."""
    registry.load_all()
    own = {f"aten::{n}" for n in (*_COPIES, *special.KERNELS)}
    served = _served_names()
    with overriding():
        for name in served:
            if name not in own:
                register(name, _stub(name))
        for name, kernel in (*_COPIES.items(), *special.KERNELS.items()):
            register(f"aten::{name}", kernel)
        for name in foreach.names():
            register(name, _foreach_stub(name))
        register("aten::scaled_dot_product_attention", sdpa.scaled_dot_product_attention, key="AutogradPrivateUse1")
    copies.device_copy_ = special.derived("aten::copy_")
    copies.device_to_copy = special.derived("aten::_to_copy")
    register_fallback(fallback.handle, "PrivateUse1")
    _install_sparse(served)


def _install_sparse(names: list[str]) -> None:
    """Sparse tensors, and an error for nested ones."""
    with overriding():
        for name, kernel in sparse.DENSE.items():
            register(f"aten::{name}", kernel)
        for key, kernels_of in (("SparsePrivateUse1", sparse.COO), ("SparseCsrPrivateUse1", sparse.CSR)):
            for name, kernel in kernels_of.items():
                register(f"aten::{name}", kernel, key=key)
            register_fallback(sparse.on_host, key)
        for name in names:
            # PyTorch has forms of these in terms of others, which compressed tensors get too but cannot take.
            if dispatcher.is_composite_nonfunctional(name) and name.removeprefix("aten::") not in sparse.CSR:
                register(name, sparse.host_kernel(name), key="SparseCsrPrivateUse1")
    register_fallback(sparse.refuse_nested, "NestedTensorPrivateUse1")


def kernel_for(name: str) -> Callable[..., Any] | None:
    """The kernel of ``"aten::name.overload"``, built from its lowering; None if no lowering serves it."""
    op = spec.find(name)
    found = spec.spec_for(op) if op is not None else None
    return None if found is None else kernels.build(found)


def _foreach_stub(name: str) -> Callable[..., Any]:
    def make() -> Callable[..., Any]:
        op = spec.find(name)
        assert op is not None
        return foreach.kernel_for(op, _without_lowering(name))

    return _lazily(name, make)


def _stub(name: str) -> Callable[..., Any]:
    return _lazily(name, lambda: kernel_for(name) or _without_lowering(name))


def _lazily(name: str, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """A kernel that makes the real one at the first call, and registers it in its place."""
    real: list[Callable[..., Any]] = []

    def stub(*args: Any, **kwargs: Any) -> Any:
        if not real:
            made = make()
            real.append(made)
            with overriding():
                register(name, made)
        return real[0](*args, **kwargs)

    return stub


def _without_lowering(name: str) -> Callable[..., Any]:
    """What an overload does that shares a packet with a lowering but is not served by it."""
    op = spec.find(name)
    assert op is not None
    composite = dispatcher.composite_kernel(name)
    if composite is not None:
        return composite
    return lambda *args, **kwargs: fallback.handle(op, *args, **kwargs)
