"""A kernel repository of the published kind: the whole expert layer is one JAX function around tokamax's kernel."""

import jax
import jax.numpy as jnp
import tokamax

from torch_tpu._internal.pallas import jax_op

IMPLEMENTATION = "mosaic_tpu"
TILE = 128  # the kernel takes multiples of this many rows

# (rows, k) by (experts, n, k): weights lie as nn.Linear's do.
_BY_ROWS = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


def _ragged(lhs, rhs, group_sizes):
    return tokamax.ragged_dot_general(
        lhs, rhs, group_sizes, ragged_dot_dimension_numbers=_BY_ROWS, implementation=IMPLEMENTATION
    )


@jax_op("ragged_dot_tpu::ragged_dot")
def ragged_dot(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
    return _ragged(lhs, rhs, group_sizes)


@jax_op("ragged_dot_tpu::experts")
def _experts(hidden: jax.Array, index: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array) -> jax.Array:
    tokens, experts, k = hidden.shape[0], gate_up.shape[0], index.shape[1]
    flat = index.reshape(-1)  # an id of ``experts`` is no expert of this rank
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=experts).astype(jnp.int32)
    count = flat.shape[0]
    rows = jnp.pad(hidden[order // k], ((0, -count % TILE), (0, 0)))
    gate, up = jnp.split(_ragged(rows, gate_up, sizes), 2, -1)
    out = _ragged((jax.nn.silu(gate) * up).astype(hidden.dtype), down, sizes)[:count]
    mine = jnp.arange(count) < jnp.sum(sizes)
    out = jnp.where(mine[:, None], out * weights.reshape(-1)[order][:, None], 0)
    return jnp.zeros((tokens, hidden.shape[1]), out.dtype).at[order // k].add(out).astype(hidden.dtype)


def experts_forward(self, hidden_states, top_k_index, top_k_weights):
    return _experts(hidden_states, top_k_index, top_k_weights, self.gate_up_proj, self.down_proj)
