"""Attention against its reference, interpreted, forward and backward; and compiled by libtpu at realistic sizes.

python -m torch_tpu.ops.flash_attention.validate [--cases 12] [--chips v5e,v5p,v6e]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_tpu.ops import checking
from torch_tpu.ops.flash_attention import kernel, reference, sizes

# The largest difference by the largest value. bfloat16 weights of the values are rounded once more than the result.
TOLERANCE = {"float32": 5e-6, "bfloat16": 2e-2}


@dataclasses.dataclass(frozen=True)
class Case:
    heads: int
    kv_heads: int
    length: int
    keys: int
    size: int
    dtype: str
    is_causal: bool = False
    window: int | None = None
    soft_cap: float | None = None
    seed: int = 0
    masks: tuple[int, int] | None = None  # of the two sequences (1: both have one), of the heads (1: all have one)

    @property
    def options(self) -> dict[str, Any]:
        scale = self.size**-0.5
        return {"is_causal": self.is_causal, "window": self.window, "soft_cap": self.soft_cap, "scale": scale}


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Lengths that are no multiples of a tile, other lengths of keys, grouped heads, windows, caps."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        kv, length = int(rng.integers(1, 3)), int(rng.integers(1, 300))
        window = int(rng.integers(1, length + 1)) if i % 3 == 2 else None
        keys = length if window is not None else int(rng.integers(1, 300))
        yield Case(
            kv * int(rng.integers(1, 3)), kv, length, keys, int(rng.choice([32, 64, 80, 128])),
            "bfloat16" if i % 2 else "float32", bool(rng.integers(2)), window, 5.0 if i % 4 == 3 else None, i,
        )  # fmt: skip
        if i % 3 == 0:
            heads = 2 * int(rng.integers(1, 3))
            yield Case(
                heads, 2, length, keys, 64, "bfloat16" if i % 2 else "float32", bool(rng.integers(2)), seed=i,
                masks=(int(rng.integers(1, 3)), heads if rng.integers(2) else 1),
            )  # fmt: skip


def check(case: Case, mode: str = "simulate") -> dict[str, float]:
    """Errors of the result and of the three gradients, by the largest value."""
    rng = np.random.default_rng(case.seed)
    shapes = [(case.heads, case.length), *[(case.kv_heads, case.keys)] * 2]
    batch = 2 if case.masks else 1
    q, k, v = (jnp.asarray(rng.standard_normal((batch, *s, case.size)), case.dtype) for s in shapes)
    grad = jnp.asarray(rng.standard_normal(q.shape), case.dtype)
    tiles, mask = sizes.Tiles(128, 128), _mask(case, rng)

    def masked(q: Any, k: Any, v: Any, grad: Any, mask: Any) -> Any:
        options: dict[str, Any] = {"tiles": tiles, "is_causal": case.is_causal, "scale": case.options["scale"]}
        out, _ = kernel.with_logsumexp(q, k, v, mask, **options)
        return out, *kernel.gradients(grad, q, k, v, mask, **options)

    def both(q: Any, k: Any, v: Any, grad: Any) -> Any:
        out, pull = jax.vjp(lambda *a: kernel.flash_attention(*a, tiles=tiles, **case.options), q, k, v)
        return out, *pull(grad)

    if mask is None:
        got = checking.interpreted(both, q, k, v, grad, mode=mode)
    else:
        got = checking.interpreted(masked, q, k, v, grad, jnp.asarray(mask), mode=mode)
    wide = [np.asarray(x, np.float64) for x in (q, k, v, grad)]
    options = case.options | {"mask": mask}
    want = [reference.flash_attention(*wide[:3], **options), *reference.gradients(*wide, **options)]
    return {n: checking.error(g, w) for n, g, w in zip(("out", "query", "key", "value"), got, want, strict=True)}


def _mask(case: Case, rng: np.random.Generator) -> np.ndarray | None:
    """Bool, with a query that sees nothing, and a sequence of which the first half is padding."""
    if case.masks is None:
        return None
    mask = rng.random((*case.masks, case.length, case.keys)) < 0.5
    mask[:, :, case.length // 3] = False
    mask[-1, :, :, : case.keys // 2] = False
    return mask


# name -> batch, heads, kv heads, length, keys, size, causal
REALISTIC: dict[str, tuple[int, int, int, int, int, int, bool]] = {
    "Llama-3.2-1B prefill, 2048": (1, 32, 8, 2048, 2048, 64, True),
    "Llama-3-8B prefill, 8192": (1, 32, 8, 8192, 8192, 128, True),
    "a diffusion transformer, 4096": (2, 24, 24, 4096, 4096, 128, False),
    "1500 of 80": (2, 20, 20, 1500, 1500, 80, False),
}


def compile_for(chip: str, name: str) -> list[Any]:
    """libtpu's verdict, forward and backward in one program. Raises CompilerError where it refuses."""
    batch, heads, kv_heads, length, keys, size, is_causal = REALISTIC[name]
    tiles = sizes.tiles(length, keys, size, 2, chip)

    def both(q: Any, k: Any, v: Any, grad: Any) -> Any:
        out, pull = jax.vjp(
            lambda *a: kernel.flash_attention(*a, tiles=tiles, is_causal=is_causal, scale=size**-0.5), q, k, v
        )
        return out, *pull(grad)

    def masked(q: Any, k: Any, v: Any, grad: Any, mask: Any) -> Any:
        options: dict[str, Any] = {"tiles": tiles, "is_causal": False, "scale": size**-0.5}
        return kernel.with_logsumexp(q, k, v, mask, **options), kernel.gradients(grad, q, k, v, mask, **options)

    q, kv = ((batch, heads, length, size), jnp.bfloat16), ((batch, kv_heads, keys, size), jnp.bfloat16)
    mask = ((batch, 1, length, keys), jnp.bool_)
    return [checking.compiled(both, [q, kv, kv, q], chip), checking.compiled(masked, [q, kv, kv, q, mask], chip)]


def main() -> int:
    parts = ("without a mask", "with one")
    return checking.main(cases, 12, check, lambda case: TOLERANCE[case.dtype], REALISTIC, compile_for, parts)


if __name__ == "__main__":
    raise SystemExit(main())
