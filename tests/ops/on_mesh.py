"""Run by ``test_kernels``: flash attention on each device's heads and part of the batch, over four devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_tpu.ops import checking, chips, flash_attention
from torch_tpu.ops.flash_attention import reference
from torch_tpu.runtime import interpretation, platform

BATCH, HEADS, KV_HEADS, LENGTH, KEYS, SIZE = 2, 4, 2, 150, 140, 64
SPLIT = chips.Split({"data": 2, "tensor": 2}, ("data",))


def both(query: Any, key: Any, value: Any, grad: Any, *mask: Any, is_causal: bool) -> tuple[Any, ...]:
    seen = mask[0] if mask else None
    out, _ = flash_attention.forward(query, key, value, seen, is_causal, None)
    return out, *flash_attention.backward(grad, query, key, value, seen, is_causal, None)


def over_mesh(is_causal: bool, operands: list[Any]) -> list[Any]:
    """Result and gradients of the program for a TPU, its kernels interpreted, over this process's devices."""
    mesh = Mesh(np.array(platform.devices()[:4]).reshape(2, 2), ("data", "tensor"))
    laid = [NamedSharding(mesh, PartitionSpec(*(n if d > 1 else None for n, d in zip(mesh.axis_names, o.shape))))
            for o in operands]  # fmt: skip
    with jax.enable_x64(True):
        with (
            interpretation.lowering_for("tpu", "v6e"), interpretation.seen_as("v6e"), chips.partitioned(True, SPLIT),
        ):  # fmt: skip
            traced = jax.jit(lambda *a: both(*a, is_causal=is_causal)).trace(*operands)
        # Chips that are simulated would wait for each other's turn.
        run = interpretation.interpreted(traced.jaxpr, interpretation.Options(mode="plain"))
        with jax.set_mesh(mesh):
            out = jax.jit(run, in_shardings=laid)(*map(jax.device_put, operands, laid))
    assert out[0].sharding.spec == PartitionSpec("data", "tensor"), out[0].sharding
    return out


def check(shape: tuple[int, ...] | None, is_causal: bool, dtype: str, tolerance: float) -> None:
    rng = np.random.default_rng(0)
    shapes = [(HEADS, LENGTH), (KV_HEADS, KEYS), (KV_HEADS, KEYS), (HEADS, LENGTH)]
    arrays = [jnp.asarray(rng.standard_normal((BATCH, *s, SIZE)), dtype) for s in shapes]
    options: dict[str, Any] = {"is_causal": is_causal, "scale": SIZE**-0.5}
    operands = list(arrays)
    if shape is not None:
        mask = rng.random(shape) < 0.5
        mask[0, 0, LENGTH // 3 % shape[2]] = shape[2] == 1  # a query that sees nothing
        operands.append(jnp.asarray(mask))
        options["mask"] = np.broadcast_to(mask, (*shape[:2], LENGTH, KEYS))
    q, k, v, grad = (np.asarray(x, np.float64) for x in arrays)
    want = [reference.flash_attention(q, k, v, **options), *reference.gradients(q, k, v, grad, **options)]
    errors = [checking.error(g, w) for g, w in zip(over_mesh(is_causal, operands), want, strict=True)]
    assert max(errors) < tolerance, (shape, is_causal, errors)


if __name__ == "__main__":
    platform.devices()  # it makes as many as the environment says
    check(None, True, "float32", 5e-6)
    check((2, 1, LENGTH, KEYS), False, "bfloat16", 2e-2)
    check((1, 4, LENGTH, KEYS), True, "float32", 5e-6)
    check((1, 1, 1, KEYS), False, "float32", 5e-6)
    print("done")
