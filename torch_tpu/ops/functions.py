"""The functions of ``torch.tpu.ops``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from torch_tpu.ops import chips
from torch_tpu.pallas import jax_op

_LANES = 128


# Experts -----------------------------------------------------------------------------------------------------------


_assert = torch.ops.aten._assert_async.msg  # raises when the device is next waited for


def _require_devices(name: str, **tensors: torch.Tensor) -> None:
    for parameter, t in tensors.items():
        if t.device.type == "cpu":
            raise ValueError(f'{name}: parameter {parameter!r} is a tensor on cpu: pass {parameter}.to("tpu")')


def _ends(group_sizes: torch.Tensor, rows: int) -> torch.Tensor:
    """Where groups end; sizes that cannot be are an error when the device is waited for."""
    if group_sizes.dim() != 1 or group_sizes.is_floating_point() or group_sizes.dtype == torch.bool:
        raise ValueError(
            f"ragged_dot: group_sizes has to be a vector of integers, got {group_sizes.dtype} of shape "
            f"{tuple(group_sizes.shape)}"
        )
    wide = group_sizes.long()
    fits = ((wide >= 0) & (wide <= rows)).all() & (wide.sum() <= rows)  # one by one as well: a sum wraps
    _assert(fits, f"ragged_dot: group_sizes are negative, or more than the {rows} rows of lhs together")
    return torch.cumsum(group_sizes, 0, dtype=torch.int32)


def ragged_dot(lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    """Each row of ``lhs`` times the matrix of its group, as ``jax.lax.ragged_dot``; differentiable.

    On a TPU a Pallas kernel for bfloat16 and float32: no expert without rows is read. ``F.grouped_mm``, which has ends
    in place of sizes, is the same function.

    Args:
      lhs: (rows, k), rows sorted by group.
      rhs: (groups, k, n); a transposed view costs no copy.
      group_sizes: int[groups].

    Returns:
      (rows, n) of lhs's dtype; rows behind the last group are 0.

    Raises:
      ValueError: shapes do not fit; a tensor is on cpu; float8; group_sizes is not a vector of integers.
      RuntimeError: dtypes differ, or are none of float32, bfloat16, float16; a size is negative, or the sizes are more
        rows than there are (this one when the device is waited for).
    """
    _require_devices("ragged_dot", lhs=lhs, rhs=rhs, group_sizes=group_sizes)
    if lhs.dim() != 2 or rhs.dim() != 3 or lhs.shape[1] != rhs.shape[1] or group_sizes.shape != rhs.shape[:1]:
        raise ValueError(
            f"ragged_dot: expected lhs (rows, k), rhs (groups, k, n) and group_sizes (groups,), got {list(lhs.shape)}, "
            f"{list(rhs.shape)} and {list(group_sizes.shape)}"
        )
    _require_wide("ragged_dot", lhs, rhs)
    return F.grouped_mm(lhs, rhs, offs=_ends(group_sizes, lhs.shape[0]))


def _require_wide(name: str, *operands: torch.Tensor) -> None:
    """A product of float8 has scales, and a result of another type."""
    for t in operands:
        if t.is_floating_point() and t.dtype.itemsize == 1:
            raise ValueError(
                f"{name}: {t.dtype} is not supported; use torch._scaled_grouped_mm with its scales, or pass .bfloat16()"
            )


def ragged_dot_weight_grad(lhs: torch.Tensor, grad: torch.Tensor, group_sizes: torch.Tensor) -> torch.Tensor:
    """The gradient of ``ragged_dot`` by its weights: (rows, k) and (rows, n) -> (groups, k, n).

    Raises:
      ValueError: as ``ragged_dot``.
    """
    _require_devices("ragged_dot_weight_grad", lhs=lhs, grad=grad, group_sizes=group_sizes)
    _require_wide("ragged_dot_weight_grad", lhs, grad)
    return F.grouped_mm(lhs.mT, grad, offs=_ends(group_sizes, lhs.shape[0]))


# Attention ---------------------------------------------------------------------------------------------------------


@jax_op("torch_tpu::flash_attention", differentiable=True)
def _flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool, scale: float, window: int | None,
    soft_cap: float | None,
) -> jax.Array:  # fmt: skip
    chip = chips.current()
    if chip is None:
        return _attention(query, key, value, is_causal, scale, window, soft_cap)
    from torch_tpu.ops.flash_attention import kernel, sizes

    tiles = sizes.tiles(query.shape[2], key.shape[2], query.shape[3], query.dtype.itemsize, chip)
    return kernel.flash_attention(
        query, key, value, tiles=tiles, is_causal=is_causal, scale=scale, window=window, soft_cap=soft_cap
    )


def _attention(
    query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool, scale: float, window: int | None,
    soft_cap: float | None,
) -> jax.Array:  # fmt: skip
    """The same with a matrix of scores, where there is no TPU."""
    batch, heads, length, size = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], length, size)
    scores = jnp.einsum("bkgqd,bksd->bkgqs", grouped, key, preferred_element_type=jnp.float32) * scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    i, j = jnp.arange(length)[:, None], jnp.arange(key.shape[2])[None]
    seen = (j <= i) if is_causal else jnp.ones((length, key.shape[2]), bool)
    if window is not None:
        seen = seen & (j > i - window) & (j < i + window)
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    out = jnp.einsum("bkgqs,bksd->bkgqd", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    return out.astype(query.dtype).reshape(query.shape)


def splash_sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool = False,
    scale: float | None = None, window: int | None = None, soft_cap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention that never makes a matrix of scores; differentiable. On a TPU JAX's splash attention kernels.

    ``F.scaled_dot_product_attention`` takes these kernels by itself where they pay; this has what it does not: a
    window, a soft cap, float32.

    Args:
      query: (batch, heads, length, size) bfloat16 or float32.
      key, value: (batch, kv heads, keys, size); heads is a multiple of kv heads.
      is_causal: query i sees keys 0..i.
      scale: of the scores; by default 1 / sqrt(size).
      window: query i sees keys i-window+1 .. i+window-1.
      soft_cap: scores become soft_cap * tanh(scores / soft_cap).

    Raises:
      ValueError: shapes or dtypes do not fit.
    """
    _require(query.dim() == 4 and key.dim() == 4 and value.shape == key.shape, "splash_sdpa", query, key, value)
    fits = query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3] and _of_heads(query, key.shape[1])
    _require(fits, "splash_sdpa", query, key, value)
    if query.dtype not in (torch.bfloat16, torch.float32) or {key.dtype, value.dtype} != {query.dtype}:
        raise ValueError(f"splash_sdpa: expected bfloat16 or float32, all alike; got {query.dtype} and {key.dtype}")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"splash_sdpa: soft_cap={soft_cap} has to be more than 0; None is no cap")
    if window is not None and (window < 1 or query.shape[2] > key.shape[2] + window - 1):
        raise ValueError(f"splash_sdpa: window={window} leaves queries without a key; give a larger one")
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    return _flash_attention(query, key, value, is_causal, scale, window, soft_cap)


def _of_heads(query: torch.Tensor, kv_heads: int) -> bool:
    """Whether the heads of a query (its second dimension) are as many for each head of keys."""
    return kv_heads > 0 and query.shape[1] % kv_heads == 0


def _require(fits: bool, name: str, *tensors: torch.Tensor) -> None:
    if not fits:
        raise ValueError(f"{name}: shapes do not fit: {', '.join(str(list(t.shape)) for t in tensors)}")


@jax_op("torch_tpu::paged_attention")
def _paged_attention(
    query: jax.Array, key_pages: jax.Array, value_pages: jax.Array, lengths: jax.Array, page_indices: jax.Array,
    scale: float,
) -> jax.Array:  # fmt: skip
    from torch_tpu.ops.paged_cache import reference

    if chips.current() is None:
        out = reference.paged_attention(
            jnp, query, key_pages, value_pages, lengths, page_indices, scale, jnp.float32
        )  # fmt: skip
        return out.astype(query.dtype)
    from torch_tpu.ops.paged_cache import kernel

    return kernel.paged_attention(query, key_pages, value_pages, lengths, page_indices, scale).astype(query.dtype)


@jax_op("torch_tpu::ragged_paged_attention")
def _ragged_paged_attention(
    query: jax.Array, pages: jax.Array, lengths: jax.Array, page_indices: jax.Array, starts: jax.Array,
    count: jax.Array, scale: float,
) -> jax.Array:  # fmt: skip
    from torch_tpu.ops.paged_cache import reference

    if chips.current() is None:
        out = reference.ragged_paged_attention(
            jnp, query, pages, lengths, page_indices, starts, count, scale, jnp.float32
        )
        return out.astype(query.dtype)
    from torch_tpu.ops.paged_cache import kernel

    return kernel.ragged_paged_attention(query, pages, lengths, page_indices, starts, count, scale)


@jax_op("torch_tpu::pages_fit", x64=True)
def _pages_fit(lengths: jax.Array, indices: jax.Array, pages: int, page: int) -> jax.Array:
    return jnp.all((indices >= 0) & (indices < pages)) & jnp.all((lengths > 0) & (lengths <= indices.shape[1] * page))


@jax_op("torch_tpu::sequences_fit", x64=True)
def _sequences_fit(
    lengths: jax.Array, indices: jax.Array, starts: jax.Array, count: jax.Array, pages: int, page: int, tokens: int
) -> jax.Array:
    """Of the sequences that there are: the others' lengths and starts are anything."""
    there = jnp.arange(lengths.shape[0]) < count[0]
    new = jnp.diff(starts)
    each = (new >= 0) & (new <= lengths) & (lengths <= indices.shape[1] * page) & (starts[1:] <= tokens)
    fits = jnp.all(each | ~there) & (starts[0] == 0) & (count[0] >= 0) & (count[0] <= lengths.shape[0])
    return fits & jnp.all((indices >= 0) & (indices < pages))


def _require_integers(name: str, **tensors: torch.Tensor) -> None:
    for parameter, t in tensors.items():
        if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool:
            raise ValueError(f"{name}: {parameter} has to hold integers, got {t.dtype}")


def _require_floats(name: str, *tensors: torch.Tensor) -> None:
    for t in tensors:
        if not t.is_floating_point() or t.dtype.itemsize == 1:
            raise ValueError(f"{name}: expected query and pages of bfloat16, float16 or float32, got {t.dtype}")


def paged_attention(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, lengths: torch.Tensor,
    page_indices: torch.Tensor, *, scale: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of one new token a sequence to a cache in pages. On a TPU JAX's kernel: only pages in use are read.

    Args:
      query: (batch, heads, size); size is a multiple of 128.
      key_pages, value_pages: (kv heads, pages, page size, size).
      lengths: int32[batch], tokens in each sequence's cache, 1 at least.
      page_indices: int32[batch, pages of a sequence]; entries behind a sequence's last page are any page.
      scale: of the scores; by default 1 / sqrt(size).

    Raises:
      ValueError: shapes or dtypes do not fit.
      RuntimeError: a page index or a length is out of range (when the device is waited for).
    """
    fits = query.dim() == 3 and key_pages.dim() == 4 and value_pages.shape == key_pages.shape
    fits = fits and query.shape[2] == key_pages.shape[3] and _of_heads(query, key_pages.shape[0])
    fits = fits and lengths.shape == query.shape[:1] and page_indices.dim() == 2
    fits = fits and page_indices.shape[0] == query.shape[0]
    _require(fits, "paged_attention", query, key_pages, value_pages, lengths, page_indices)
    _require_lanes("paged_attention", query.shape[2])
    _require_integers("paged_attention", lengths=lengths, page_indices=page_indices)
    _require_floats("paged_attention", query, key_pages, value_pages)
    pages, page = key_pages.shape[1:3]
    _assert(
        _pages_fit(lengths, page_indices, pages, page),
        f"paged_attention: a page index is not one of {pages} pages, or a length is not of 1 to "
        f"{page_indices.shape[1] * page} tokens",
    )
    scale = 1 / math.sqrt(query.shape[2]) if scale is None else scale
    return _paged_attention(query, key_pages, value_pages, lengths, page_indices, scale)


def ragged_paged_attention(
    query: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor, page_indices: torch.Tensor,
    starts: torch.Tensor, count: torch.Tensor, *, scale: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Causal attention of any number of new tokens a sequence (prefill and decode together) to a cache in pages.

    Args:
      query: (tokens, heads, size), sequence after sequence; size is a multiple of 128.
      pages: (pages, page size, 2 * kv heads, size): each head's keys, then its values. The new tokens are in it.
      lengths: int32[sequences], tokens in each cache.
      page_indices: int32[sequences, pages of a sequence].
      starts: int32[sequences + 1], where each sequence's tokens start in ``query``.
      count: int32[1], how many of the sequences there are.
      scale: of the scores; by default 1 / sqrt(size).

    Returns:
      (tokens, heads, size); rows of no sequence hold anything.

    Raises:
      ValueError: shapes or dtypes do not fit.
      RuntimeError: page indices, lengths, starts or the count cannot be (when the device is waited for).
    """
    fits = query.dim() == 3 and pages.dim() == 4 and query.shape[2] == pages.shape[3] and pages.shape[2] % 2 == 0
    fits = fits and _of_heads(query, pages.shape[2] // 2) and count.shape == (1,)
    fits = fits and (starts.dim(), lengths.dim(), page_indices.dim()) == (1, 1, 2)
    fits = fits and starts.shape[0] == lengths.shape[0] + 1 == page_indices.shape[0] + 1
    _require(fits, "ragged_paged_attention", query, pages, lengths, page_indices, starts, count)
    _require_lanes("ragged_paged_attention", query.shape[2])
    whole = {"lengths": lengths, "page_indices": page_indices, "starts": starts, "count": count}
    _require_integers("ragged_paged_attention", **whole)
    _require_floats("ragged_paged_attention", query, pages)
    _assert(
        _sequences_fit(*whole.values(), pages.shape[0], pages.shape[1], query.shape[0]),
        f"ragged_paged_attention: a page index is not one of {pages.shape[0]} pages, a length is more than "
        f"{page_indices.shape[1] * pages.shape[1]} tokens or less than its new ones, starts do not ascend from "
        f"0 to {query.shape[0]} at most, or count is more than {lengths.shape[0]}",
    )
    scale = 1 / math.sqrt(query.shape[2]) if scale is None else scale
    return _ragged_paged_attention(query, pages, lengths, page_indices, starts, count, scale)


def _require_lanes(name: str, size: int) -> None:
    if size % _LANES:
        raise ValueError(f"{name}: a head's size has to be a multiple of {_LANES}, got {size}; pad query and pages")


# Others ------------------------------------------------------------------------------------------------------------


@jax_op("torch_tpu::optimization_barrier", differentiable=True)
def _optimization_barrier(tensors: Sequence[jax.Array]) -> list[jax.Array]:
    return list(jax.lax.optimization_barrier(tuple(tensors)))


def optimization_barrier(*tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """The tensors, behind a barrier that XLA moves nothing across: what makes them is not fused with what uses them."""
    out = tuple(_optimization_barrier(list(tensors)))
    return out[0] if len(out) == 1 else out
