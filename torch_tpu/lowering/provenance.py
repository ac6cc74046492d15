"""What an array was before it was transposed, or chosen from others.

XLA folds a transpose into a product of its own, but writes one out in front of a Pallas kernel, or of a loop: for the
weights of all experts that would cost more than the product. A kernel that can read either way asks here.
"""

from __future__ import annotations

from typing import Any


def before_transposes(x: Any) -> tuple[Any, tuple[int, ...]]:
    """(y, permutation) with ``x == jnp.transpose(y, permutation)``, as far back as the trace says."""
    order = tuple(range(x.ndim))
    while True:
        made_by = getattr(x, "parent", None)  # of a JAX tracer: the equation that made it
        if made_by is None or getattr(made_by.primitive, "name", "") != "transpose":
            return x, order
        x, inner = made_by.in_tracers[0], made_by.params["permutation"]
        order = tuple(inner[i] for i in order)


def matrices(x: Any) -> tuple[Any, bool]:
    """A stack of matrices, or where it is the transposes of one: that stack, and True."""
    y, order = before_transposes(x)
    plain = tuple(range(x.ndim))
    if order == plain:
        return y, False
    if order == (*plain[:-2], plain[-1], plain[-2]):
        return y, True
    return x, False


def chosen(x: Any) -> tuple[Any, Any] | None:
    """(stack, index) with ``x == stack[index]``, where a stack of matrices was indexed by one vector; else None.

    The matrices of ``stack`` are transposed where those of ``x`` were, after they had been chosen.
    """
    copied, turned = matrices(x)
    made_by = getattr(copied, "parent", None)
    if x.ndim != 3 or made_by is None or getattr(made_by.primitive, "name", "") != "gather":
        return None
    stack, index = made_by.in_tracers[:2]
    dims, taken = made_by.params["dimension_numbers"], tuple(made_by.params["slice_sizes"])
    whole = stack.ndim == 3 and taken == (1, *stack.shape[1:]) and index.shape == (x.shape[0], 1)
    if not whole or dims.start_index_map != (0,) or dims.collapsed_slice_dims != (0,) or dims.offset_dims != (1, 2):
        return None
    return (stack.transpose(0, 2, 1) if turned else stack), index[:, 0]
