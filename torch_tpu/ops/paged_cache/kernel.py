"""Attention of new tokens to a cache that lies in pages, by JAX's kernels (``jax.experimental.pallas.ops.tpu``)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import paged_attention as jax_paged
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as jax_ragged

_VMEM = 32 << 20
_PAGES_OF_A_STEP, _QUERIES_OF_A_STEP = 8, 32


def _pages_of_a_step(pages: int) -> int:
    """Pages that one step fetches: they have to divide the pages of a sequence."""
    return next(n for n in range(min(_PAGES_OF_A_STEP, pages), 0, -1) if pages % n == 0)


def paged_attention(query: Any, key_pages: Any, value_pages: Any, lengths: Any, page_indices: Any, scale: float) -> Any:
    """One token of each sequence: (batch, heads, size) -> the same.

    Args:
      key_pages, value_pages: (kv heads, pages, page size, size).
      lengths: int32[batch], tokens in the cache of each sequence.
      page_indices: int32[batch, pages of a sequence].
    """
    with jax.enable_x64(False):
        query = (query.astype(jnp.float32) * scale).astype(query.dtype)
        return jax_paged.paged_attention(
            query, key_pages, value_pages, lengths, page_indices,
            pages_per_compute_block=_pages_of_a_step(page_indices.shape[1]),
        )  # fmt: skip


def ragged_paged_attention(
    query: Any, pages: Any, lengths: Any, page_indices: Any, starts: Any, count: Any, scale: float
) -> Any:
    """Any number of tokens of each sequence, causal: prefill and decode in one batch.

    Args:
      query: (tokens, heads, size), sequence after sequence.
      pages: (pages, page size, 2 * kv heads, size), keys and values in turn.
      lengths: int32[sequences], tokens in the cache, the new ones among them.
      page_indices: int32[sequences, pages of a sequence].
      starts: int32[sequences + 1], where each sequence's tokens start.
      count: int32[1], how many of the sequences there are.
    """
    with jax.enable_x64(False):
        return jax_ragged.ragged_paged_attention(
            query, pages, lengths, page_indices, starts, count, sm_scale=scale,
            num_kv_pages_per_block=_pages_of_a_step(page_indices.shape[1]), num_queries_per_block=_QUERIES_OF_A_STEP,
            vmem_limit_bytes=_VMEM,
        )  # fmt: skip
