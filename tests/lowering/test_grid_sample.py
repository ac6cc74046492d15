"""Grid sampling, its gradients and affine grids against PyTorch on CPU."""

import jax.numpy as jnp
import pytest
import torch
from harness import check

from torch_tpu.lowering import grid_sample


def make(shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("align", [True, False])
def test_2d(dtype, mode, padding, align):
    x, grid = make((2, 3, 5, 6), dtype), make((2, 4, 7, 2), dtype, 1)
    check("aten::grid_sampler_2d", x, grid, mode, padding, align)
    check("aten::grid_sampler_2d_backward", make((2, 3, 4, 7), dtype, 2), x, grid, mode, padding, align, [True, True])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("align", [True, False])
def test_3d(dtype, mode, padding, align):
    x, grid = make((2, 2, 3, 5, 4), dtype), make((2, 2, 3, 4, 3), dtype, 1)
    check("aten::grid_sampler_3d", x, grid, mode, padding, align)
    grad = make((2, 2, 2, 3, 4), dtype, 2)
    check("aten::grid_sampler_3d_backward", grad, x, grid, mode, padding, align, [True, True])


@pytest.mark.parametrize("padding", [0, 1, 2])
def test_exact_positions_and_corners(padding):
    """Whole pixels and the borders themselves: ties of rounding, clipped gradients."""
    line = torch.linspace(-1.5, 1.5, 13)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)[None]
    x = make((1, 2, 5, 5))
    for mode in (0, 1):
        check("aten::grid_sampler_2d", x, grid, mode, padding, True)
    check("aten::grid_sampler_2d_backward", make((1, 2, 13, 13)), x, grid, 0, padding, True, [True, True])


def test_one_pixel_and_empty():
    check("aten::grid_sampler_2d", make((1, 2, 1, 1)), make((1, 3, 3, 2)), 0, 2, True)
    check("aten::grid_sampler_2d", make((0, 2, 3, 3)), make((0, 3, 3, 2)), 0, 0, True)


def test_output_mask():
    x, grid = jnp.ones((1, 1, 2, 2)), jnp.zeros((1, 1, 1, 2))
    got = grid_sample.grid_sampler_backward(jnp.ones((1, 1, 1, 1)), x, grid, 0, 0, True, (False, True))
    assert got[0] is None and got[1].shape == grid.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("align", [True, False])
def test_affine_grid(dtype, align):
    check("aten::affine_grid_generator", make((2, 2, 3), dtype), [2, 3, 4, 5], align)
    check("aten::affine_grid_generator", make((2, 2, 3), dtype), [2, 3, 1, 5], align)
    check("aten::affine_grid_generator", make((2, 3, 4), dtype), [2, 3, 2, 4, 5], align)
