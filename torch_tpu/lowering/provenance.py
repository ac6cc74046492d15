"""What an array was before it was transposed.

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
