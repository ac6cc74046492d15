"""ViT-B/16 on 64 images in bfloat16: by hand in JAX, and Transformers' own class. Used by ``aot_reference.py``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

HIDDEN, INTER, HEADS, SIZE, PATCH, IMAGE, CLASSES, BATCH, EPS = 768, 3072, 12, 64, 16, 224, 1000, 64, 1e-12
BF16 = jnp.bfloat16


def arguments(layers: int) -> tuple[Any, ...]:
    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, BF16)

    def dense(n: int, m: int) -> dict[str, Any]:
        return {"w": of(m, n), "b": of(m)}

    def norm() -> dict[str, Any]:
        return {"w": of(HIDDEN), "b": of(HIDDEN)}

    def layer() -> dict[str, Any]:
        return {
            "norm1": norm(), "q": dense(HIDDEN, HIDDEN), "k": dense(HIDDEN, HIDDEN), "v": dense(HIDDEN, HIDDEN),
            "o": dense(HIDDEN, HIDDEN), "norm2": norm(), "up": dense(HIDDEN, INTER), "down": dense(INTER, HIDDEN),
        }  # fmt: skip

    patches = (IMAGE // PATCH) ** 2
    params = {
        "patch": {"w": of(HIDDEN, 3, PATCH, PATCH), "b": of(HIDDEN)}, "first": of(1, 1, HIDDEN),
        "position": of(1, patches + 1, HIDDEN), "layers": [layer() for _ in range(layers)], "norm": norm(),
        "head": dense(HIDDEN, CLASSES),
    }  # fmt: skip
    return params, of(BATCH, 3, IMAGE, IMAGE)


def dense(p, x):
    return jnp.einsum("...i,oi->...o", x, p["w"]) + p["b"]


def layer_norm(p, x):
    wide = x.astype(jnp.float32)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(variance + EPS) * p["w"] + p["b"]).astype(x.dtype)


def attend(p, x, count=HEADS, size=SIZE):
    heads = lambda y: y.reshape(*y.shape[:2], count, size).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = heads(dense(p["q"], x)), heads(dense(p["k"], x)), heads(dense(p["v"], x))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) / np.sqrt(size)
    weights = jax.nn.softmax(scores, -1).astype(q.dtype)
    out = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
    return dense(p["o"], out.transpose(0, 2, 1, 3).reshape(x.shape))


def forward(params, images):
    x = jax.lax.conv_general_dilated(
        images, params["patch"]["w"], (PATCH, PATCH), "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
    )
    x = x.reshape(BATCH, HIDDEN, -1).transpose(0, 2, 1) + params["patch"]["b"]
    x = jnp.concatenate([jnp.broadcast_to(params["first"], (BATCH, 1, HIDDEN)), x], 1) + params["position"]
    for p in params["layers"]:
        x = x + attend(p, layer_norm(p["norm1"], x))
        h = jax.nn.gelu(dense(p["up"], layer_norm(p["norm2"], x)), approximate=False)
        x = x + dense(p["down"], h)
    return dense(params["head"], layer_norm(params["norm"], x)[:, 0])


def programs(layers: int) -> Any:
    """Transformers' ViTForImageClassification, captured as torch.compile would."""
    from transformers import ViTConfig, ViTForImageClassification

    from torch_tpu.aot import models
    from torch_tpu.aot.plan import capture

    config = ViTConfig(num_hidden_layers=layers, num_labels=CLASSES)
    with torch.device("meta"), models.default_dtype(torch.bfloat16):
        model = ViTForImageClassification(config).eval()
        images = torch.empty(BATCH, 3, IMAGE, IMAGE, dtype=torch.bfloat16)
    return capture(model, (images,), {})
