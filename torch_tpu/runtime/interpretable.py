"""Kernels made fit for JAX 0.10's TPU interpreter, which three things are missing from.

- Views of a reference (``ref.reshape(...)``, ``ref.bitcast(...)``): it knows no view but an index
  (``'ReshapeTransform' object has no attribute 'indices'``). A load through such a view becomes a load of the reference
  itself, and the view is taken of the value, by JAX's own rules for it. A range outside of the reference is still an
  error; one that is outside of the view alone is not seen. Stores through a view stay as they are, and are refused.
- Stores with a mask into more than one dimension: each dimension's bound is taken for the first one's, and what is
  within the buffer is "out of bounds". Such a store becomes a load, a choice and a store.
- Kernels that say whether their grid's dimensions are parallel, under ``vmap``: it adds a dimension, and says
  nothing of it. The dimensions of a batch are parallel.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.pallas import primitives as pallas_primitives
from jax._src.state import discharge, indexing
from jax._src.state import primitives as state_primitives
from jax.extend import core as jax_core
from jax.extend.core import primitives


def interpretable(jaxpr: Any) -> Any:
    """The kernel's program, at any depth, as the interpreter can run it."""
    eqns = [new for eqn in jaxpr.eqns for new in _rewritten(eqn)]
    return jaxpr.replace(eqns=eqns)


def for_all_dimensions(params: Any, mapping: Any) -> Any:
    """A kernel's compiler parameters with a word for each dimension of the grid; a batch's come first."""
    said = getattr(params, "dimension_semantics", None)
    if said is None or len(said) >= len(mapping.grid):
        return params
    of_batch = ("parallel",) * (len(mapping.grid) - len(said))
    return dataclasses.replace(params, dimension_semantics=of_batch + tuple(said))


def map_programs(value: Any, fn: Callable[[Any], Any]) -> Any:
    """A parameter of an operation with ``fn`` of each program in it."""
    if isinstance(value, (list, tuple)):
        return type(value)(map_programs(v, fn) for v in value) if not hasattr(value, "_fields") else value
    if isinstance(value, jax_core.ClosedJaxpr):
        return value.replace(jaxpr=fn(value.jaxpr))
    return fn(value) if isinstance(value, jax_core.Jaxpr) else value


def _rewritten(eqn: Any) -> Iterator[Any]:
    if eqn.primitive is state_primitives.get_p:  # what ``ref[...]`` is
        yield from _load(eqn)
    elif eqn.primitive is pallas_primitives.swap_p:  # what ``pltpu.store`` is
        yield from _store(eqn)
    else:
        yield eqn.replace(params={k: map_programs(v, interpretable) for k, v in eqn.params.items()})


def _load(eqn: Any) -> Iterator[Any]:
    ref, *indices = eqn.invars
    transforms = jax.tree.unflatten(eqn.params["tree"], indices)
    views = [i for i, t in enumerate(transforms) if not isinstance(t, indexing.NDIndexer)]
    if not views:
        yield eqn
        return
    before, after = transforms[: views[0]], transforms[views[0] :]
    loaded = ref.aval.inner_aval
    for transform in before:
        loaded = transform.transform_type(loaded)
    flat, tree = jax.tree.flatten(before)
    value = jax_core.Var(loaded)
    yield eqn.replace(invars=[ref, *flat], outvars=[value], params={**eqn.params, "tree": tree})
    indices, shape = jax.tree.flatten(after)
    program = jax.make_jaxpr(functools.partial(_viewed, shape))(loaded, *(v.aval for v in indices))
    yield eqn.replace(
        primitive=primitives.closed_call_p, invars=[value, *indices], params={"call_jaxpr": program}, effects=set()
    )


def _viewed(shape: Any, value: Any, *indices: Any) -> Any:
    return discharge.transform_array(value, jax.tree.unflatten(shape, indices))


def _store(eqn: Any) -> Iterator[Any]:
    ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    if mask is None or len(value.aval.shape) < 2:
        yield eqn
        return
    choice = jax.make_jaxpr(jnp.where)(mask.aval, value.aval, value.aval)
    before, chosen = jax_core.Var(value.aval), jax_core.Var(value.aval)

    def where(this: Any, other: Any, out: Any) -> Any:
        return eqn.replace(
            primitive=primitives.closed_call_p, invars=[mask, this, other], outvars=[out],
            params={"call_jaxpr": choice}, effects=set(),
        )  # fmt: skip

    def access(primitive: Any, *operands: Any) -> Any:
        flat, tree = jax.tree.flatten((ref, transforms, *operands))
        params = {**eqn.params, "args_tree": tree}
        return eqn.replace(primitive=primitive, invars=flat, outvars=[jax_core.Var(value.aval)], params=params)

    yield access(pallas_primitives.load_p, None, None).replace(outvars=[before])
    yield where(value, before, chosen)
    yield access(pallas_primitives.swap_p, chosen, None)
    yield where(before, value, eqn.outvars[0])  # what a store with a mask gives
