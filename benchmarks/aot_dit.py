"""A step of a diffusion transformer (DiT-XL/2, 8 latents of 64 x 64, bfloat16): by hand in JAX, and Diffusers' class.

Used by ``aot_reference.py``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from aot_vit import attend, dense  # beside this file

WIDTH, HEADS, SIZE, PATCH, CHANNELS, SIDE, CLASSES, BATCH = 1152, 16, 72, 2, 4, 64, 1000, 8
BF16 = jnp.bfloat16


def arguments(layers: int) -> tuple[Any, ...]:
    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, BF16)

    def dense(n: int, m: int) -> dict[str, Any]:
        return {"w": of(m, n), "b": of(m)}

    def layer() -> dict[str, Any]:
        return {
            "time1": dense(256, WIDTH), "time2": dense(WIDTH, WIDTH), "classes": of(CLASSES + 1, WIDTH),
            "modulate": dense(WIDTH, 6 * WIDTH), "q": dense(WIDTH, WIDTH), "k": dense(WIDTH, WIDTH),
            "v": dense(WIDTH, WIDTH), "o": dense(WIDTH, WIDTH), "up": dense(WIDTH, 4 * WIDTH),
            "down": dense(4 * WIDTH, WIDTH),
        }  # fmt: skip

    params = {
        "patch": {"w": of(WIDTH, CHANNELS, PATCH, PATCH), "b": of(WIDTH)},
        "position": jax.ShapeDtypeStruct((1, (SIDE // PATCH) ** 2, WIDTH), jnp.float32),
        "layers": [layer() for _ in range(layers)], "out1": dense(WIDTH, 2 * WIDTH),
        "out2": dense(WIDTH, PATCH * PATCH * CHANNELS),
    }  # fmt: skip
    ids = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    return params, of(BATCH, CHANNELS, SIDE, SIDE), ids, ids


def norm(x, eps):
    wide = x.astype(jnp.float32)
    return ((wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + eps)).astype(x.dtype)


def condition(p, steps, labels):
    frequencies = jnp.exp(-np.log(10000) / (128 - 1) * jnp.arange(128, dtype=jnp.float32))
    angles = steps[:, None].astype(jnp.float32) * frequencies
    waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1).astype(BF16)
    return dense(p["time2"], jax.nn.silu(dense(p["time1"], waves))) + p["classes"][labels]


def forward(params, latents, steps, labels):
    x = jax.lax.conv_general_dilated(
        latents, params["patch"]["w"], (PATCH, PATCH), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    x = x.reshape(BATCH, WIDTH, -1).transpose(0, 2, 1) + params["patch"]["b"]
    x = (x + params["position"]).astype(BF16)
    for p in params["layers"]:
        parts = dense(p["modulate"], jax.nn.silu(condition(p, steps, labels)))[:, None]
        shift1, scale1, gate1, shift2, scale2, gate2 = jnp.split(parts, 6, -1)
        x = x + gate1 * attend(p, norm(x, 1e-6) * (1 + scale1) + shift1, HEADS, SIZE)
        h = norm(x, 1e-5) * (1 + scale2) + shift2
        x = x + gate2 * dense(p["down"], jax.nn.gelu(dense(p["up"], h), approximate=True))
    shift, scale = jnp.split(dense(params["out1"], jax.nn.silu(condition(params["layers"][0], steps, labels))), 2, -1)
    x = dense(params["out2"], norm(x, 1e-6) * (1 + scale[:, None]) + shift[:, None])
    side = SIDE // PATCH
    x = x.reshape(BATCH, side, side, PATCH, PATCH, CHANNELS)
    return jnp.einsum("nhwpqc->nchpwq", x).reshape(BATCH, CHANNELS, SIDE, SIDE)


def programs(layers: int) -> Any:
    """Diffusers' DiTTransformer2DModel, captured as torch.compile would."""
    from diffusers import DiTTransformer2DModel

    from torch_tpu.aot import models
    from torch_tpu.aot.plan import capture

    with torch.device("meta"), models.default_dtype(torch.bfloat16):
        model = DiTTransformer2DModel(num_layers=layers, sample_size=SIDE).eval()
        latents = torch.empty(BATCH, CHANNELS, SIDE, SIDE, dtype=torch.bfloat16)
        ids = torch.empty(BATCH, dtype=torch.int64)
    return capture(model, (latents,), {"timestep": ids, "class_labels": ids, "return_dict": False})
