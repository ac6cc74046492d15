"""Operators of ``torch.library`` whose kernel on device tpu is made from a lowering."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.binding.registration import leave_alone, overriding
from torch_tpu.runtime import buffers


def register(
    opdef: CustomOpDef, check: Callable[[Mapping[str, Any]], None], donated: Callable[[], frozenset[str]],
    own: Callable[[list[str]], Callable[..., Any] | None],
) -> Callable[[], None]:  # fmt: skip
    """Give the operator its kernel for tpu, and one for every other device that raises what ``check`` does.

    An operator without tensors runs on tpu.

    Args:
      donated: the parameters whose memory the results may take; a tensor whose memory was taken says so when read.
      own: the kernel, for the names of parameters, where it is not made from the lowering.

    Returns:
      What lets go of the kernel: the next call makes it from the lowering that there is then.
    """
    op = opdef._opoverload
    names = [a.name for a in op._schema.arguments]
    built: list[tuple[Callable[..., Any], tuple[int, ...]]] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not built:
            built.append((own(names) or _build(op), tuple(i for i, n in enumerate(names) if n in donated())))
        run, given_away = built[0]
        held = [array for i in given_away for array in _held_by_others(args[i])]  # what is held here is not taken
        result = run(*args, **kwargs)
        del held
        for i in given_away:
            _give_away(args[i], names[i], opdef._qualname)
        return result

    def elsewhere(*args: Any, **kwargs: Any) -> Any:
        check(dict(zip(names, args, strict=False)) | kwargs)
        return kernel(*args, **kwargs)

    for made, key in ((kernel, "PrivateUse1"), (elsewhere, "CompositeExplicitAutograd")):
        leave_alone(made)
        with overriding():
            opdef._lib.impl(opdef._name, made, key)
    return built.clear


def override(opdef: CustomOpDef, key: str, kernel: Callable[..., Any]) -> None:
    """Put ``kernel(keys, *args, **kwargs)`` in the place of what ``torch.library`` registered for a dispatch key."""
    with overriding():
        opdef._lib.impl(opdef._name, kernel, key, with_keyset=True)


_SOLE = 2  # a storage's users: the one tensor, and the Python object that carries the buffer
_users = torch._C._storage_Use_Count  # type: ignore[attr-defined]


def _held_by_others(given: Any) -> list[Any]:
    """The arrays of those tensors whose storage another tensor has too: a view, or what a backward pass reads."""
    return [b.array for t, b in _buffers(given) if _users(t.untyped_storage()._cdata) > _SOLE]


def _buffers(given: Any) -> Iterator[tuple[torch.Tensor, buffers.Buffer]]:
    """The tensors of an argument that have a buffer, with it."""
    for t in given if isinstance(given, (list, tuple)) else [given]:
        if t is not None and (buffer := binding_tensor.buffer_of(t)) is not None:
            yield t, buffer


def _give_away(given: Any, parameter: str, operator: str) -> None:
    for _, buffer in _buffers(given):
        if buffer.array is not None and buffer.array.is_deleted():
            buffer.defer(
                buffers.Gone(
                    f"the tensor has no values: its memory was donated to {operator} (parameter {parameter!r}); pass a "
                    "clone to keep it"
                )
            )


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
