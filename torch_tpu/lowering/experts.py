"""Grouped products whose experts lie on the devices of a mesh: each device multiplies the rows of its own experts.

XLA's partitioner cannot see that a block of rows needs one expert, so it would gather all experts' weights on every
device. Told by a ``shard_map``, it moves rows instead: a product ends with one all-reduce of its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_tpu.ops import chips


@dataclasses.dataclass(frozen=True)
class Experts:
    """Where a program's experts lie: split along ``axis`` of a mesh (axis name -> size), in order."""

    mesh: Mapping[str, int]
    axis: str

    @property
    def size(self) -> int:
        return self.mesh[self.axis]

    def _mapped(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        around = jax.sharding.get_abstract_mesh()
        named = jax.sharding.AbstractMesh(tuple(self.mesh.values()), tuple(self.mesh))
        mesh = named if around.empty else around

        def body(*parts: Any) -> Any:
            # What runs here is one device's: it may have kernels, and no other devices to think of.
            with chips.partitioned(False), over(None):
                return fn(*parts)

        return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def rows(self, product: Callable[[Any, Any, Any], Any], x: Any, weights: Any, ends: Any) -> Any:
        """``product(x, weights, ends)`` for (rows, k) and experts' weights -> (rows, n), whole on every device.

        Args:
          product: gives 0 in rows past the last end.
        """

        def own(x: Any, weights: Any, ends: Any) -> Any:
            start, mine = self._own(ends, weights.shape[0])
            y = product(jnp.roll(x, -start, axis=0), weights, mine)
            return lax.psum(jnp.roll(y, start, axis=0), self.axis)

        whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(self.axis)
        return self._mapped(own, (whole, split, whole), whole)(x, weights, ends)

    def total(self, product: Callable[[Any, Any, Any], Any], a: Any, b: Any, ends: Any) -> Any:
        """``product(a, b, ends)`` for (rows, m) and (rows, n) -> (experts, m, n), each device its own experts'."""

        def own(a: Any, b: Any, ends: Any) -> Any:
            start, mine = self._own(ends, ends.shape[0] // self.size)
            return product(jnp.roll(a, -start, axis=0), jnp.roll(b, -start, axis=0), mine)

        whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(self.axis)
        return self._mapped(own, (whole, whole, whole), split)(a, b, ends)

    def _own(self, ends: Any, count: int) -> tuple[Any, Any]:
        """(the row where this device's experts begin, where each of them ends after that row)"""
        first = lax.axis_index(self.axis).astype(jnp.int32) * count
        ends = ends.astype(jnp.int32)
        start = lax.dynamic_index_in_dim(jnp.pad(ends, (1, 0)), first, 0, keepdims=False)
        return start, lax.dynamic_slice_in_dim(ends, first, count) - start


class _State(threading.local):
    experts: Experts | None = None


_state = _State()


@contextlib.contextmanager
def over(experts: Experts | None) -> Iterator[None]:
    """Grouped products traced inside have their experts so."""
    before, _state.experts = _state.experts, experts
    try:
        yield
    finally:
        _state.experts = before


def of(groups: int) -> Experts | None:
    """Where so many experts lie; None on one device, or where they do not divide."""
    found = _state.experts
    return found if found is not None and groups % found.size == 0 else None
