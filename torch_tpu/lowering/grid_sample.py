"""Sampling an image at the points of a grid, and making affine grids.

The image is read as rows of channels, one gather a neighbour. Gradients are JAX's, of the same formula: a gather's
transpose is a scatter-add, and clipping has no gradient where it acts (bounds included), as in PyTorch.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_tpu.lowering.norm import common_type, widen
from torch_tpu.lowering.registry import register
from torch_tpu.lowering.upsample import cubic_weights

_LINEAR, _NEAREST, _CUBIC = 0, 1, 2  # interpolation_mode
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2  # padding_mode


def _unnormalize(x: Any, size: int, align_corners: bool) -> Any:
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _clip(x: Any, size: int) -> Any:
    return lax.clamp(jnp.zeros((), x.dtype), x, jnp.asarray(max(size - 1, 0), x.dtype))


def _reflect(x: Any, size: int, align_corners: bool) -> Any:
    """Mirrored at the centres of the border pixels (align_corners) or at their outer edges."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(x)
    x = x - low
    x = jnp.where(x < 0, -x, x)
    extra, flips = lax.rem(x, jnp.asarray(span, x.dtype)), jnp.floor(x / span)
    return jnp.where(lax.rem(flips, jnp.asarray(2, x.dtype)) == 0, extra + low, span - extra + low)


def _padded(x: Any, size: int, padding_mode: int, align_corners: bool) -> Any:
    if padding_mode == _BORDER:
        return _clip(x, size)
    if padding_mode == _REFLECTION:
        return _clip(_reflect(x, size, align_corners), size)
    return x


def _read(rows: Any, sizes: Sequence[int], place: Sequence[Any]) -> Any:
    """Values of ``rows`` (batch, pixels, channels) at whole coordinates (batch, ...), 0 outside: one gather."""
    inside = functools.reduce(operator.and_, [(p >= 0) & (p < n) for p, n in zip(place, sizes, strict=True)])
    flat = jnp.zeros(place[0].shape, jnp.int32)
    for p, n in zip(place, sizes, strict=True):
        flat = flat * n + jnp.where(inside, p, 0).astype(jnp.int32)
    found = jax.vmap(lambda r, i: r.at[i].get(mode="promise_in_bounds"))(rows, flat)
    return jnp.where(inside[..., None], found, 0)


def _combine(rows: Any, sizes: Sequence[int], places: Sequence[Any], weights: Sequence[Any]) -> Any:
    """The weighted sum over neighbours: for each dimension their coordinates and weights, (batch, points, k)."""
    dims = len(sizes)
    shape = (*places[0].shape[:2], *(p.shape[2] for p in places))

    def spread(x: Any, d: int) -> Any:
        x = x.reshape(*x.shape[:2], *(x.shape[2] if e == d else 1 for e in range(dims)))
        return jnp.broadcast_to(x, shape).reshape(*shape[:2], -1)

    weight = functools.reduce(operator.mul, [spread(w, d) for d, w in enumerate(weights)])
    values = _read(rows, sizes, [spread(p, d) for d, p in enumerate(places)])
    return jnp.sum(values * weight[..., None], axis=2)


def _linear(rows: Any, sizes: Sequence[int], at: Sequence[Any]) -> Any:
    low = [jnp.floor(x) for x in at]
    weights = [jnp.stack([f + 1 - x, x - f], axis=-1) for x, f in zip(at, low, strict=True)]
    return _combine(rows, sizes, [jnp.stack([f, f + 1], axis=-1) for f in low], weights)


def _cubic(rows: Any, sizes: Sequence[int], at: Sequence[Any], padding_mode: int, align_corners: bool) -> Any:
    """Each of the 16 neighbours is padded on its own."""
    low = [jnp.floor(x) for x in at]
    weights = [jnp.stack(cubic_weights(x - f), axis=-1) for x, f in zip(at, low, strict=True)]
    places = []
    for f, n in zip(low, sizes, strict=True):
        place = f[..., None] + jnp.arange(-1, 3).astype(f.dtype)
        places.append(lax.stop_gradient(jnp.round(_padded(place, n, padding_mode, align_corners))))
    return _combine(rows, sizes, places, weights)


def _sample(x: Any, grid: Any, mode: int, padding_mode: int, align_corners: bool) -> Any:
    sizes, dims = x.shape[2:], x.ndim - 2
    if (mode, dims) == (_CUBIC, 3) or mode not in (_LINEAR, _NEAREST, _CUBIC):
        raise NotImplementedError(
            f"grid_sampler_{dims}d: interpolation_mode={mode}; supported: 0 (linear), 1 (nearest), 2 (cubic, 2d only)"
        )
    batch, channels, out = x.shape[0], x.shape[1], grid.shape[1:-1]
    points = math.prod(out)
    if 0 in (batch, channels, points, math.prod(sizes)):
        return jnp.zeros((batch, channels, *out), x.dtype)
    rows = jnp.swapaxes(x.reshape(batch, channels, -1), 1, 2)
    grid = grid.reshape(batch, points, dims)
    # The grid's last dimension is x, y(, z): the reverse of the image's dimensions.
    at = [_unnormalize(grid[..., dims - 1 - d], n, align_corners) for d, n in enumerate(sizes)]
    if mode == _CUBIC:
        y = _cubic(rows, sizes, at, padding_mode, align_corners)
    else:
        at = [_padded(p, n, padding_mode, align_corners) for p, n in zip(at, sizes, strict=True)]
        y = _linear(rows, sizes, at) if mode == _LINEAR else _read(rows, sizes, [jnp.round(p) for p in at])
    return jnp.swapaxes(y, 1, 2).reshape(batch, channels, *out)


@register("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def grid_sampler(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    input, grid = common_type(input, grid)
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners)


@register("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Any,
    input: Any,
    grid: Any,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of input (None where not asked for) and grid."""
    grad, x, grid = common_type(grad_output, input, grid)

    def sample(x: Any, grid: Any) -> Any:
        return _sample(x, grid, interpolation_mode, padding_mode, align_corners)

    grad_input, grad_grid = jax.vjp(sample, x, grid)[1](grad)
    return (grad_input if output_mask[0] else None), grad_grid


@register("aten::affine_grid_generator")
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool) -> Any:
    """(batch, ..., dims): each point of [-1, 1]^dims through its affine map, the x coordinate first."""
    wide = widen(theta)
    dims = len(size) - 2
    total: Any = wide[:, :, dims].reshape(theta.shape[0], *[1] * dims, dims)
    for d, n in enumerate(reversed(size[2:])):
        points = np.linspace(-1, 1, n) if n > 1 else np.zeros(n)
        if not align_corners:
            points = points * ((n - 1) / n if n else 0)
        shape = [1] * (dims + 2)
        shape[dims - d] = n
        total = total + points.reshape(shape).astype(wide.dtype) * wide[:, :, d].reshape(-1, *[1] * dims, dims)
    return jnp.broadcast_to(total, (theta.shape[0], *size[2:], dims))
