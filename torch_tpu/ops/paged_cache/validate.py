"""Attention over pages against its reference, interpreted; and compiled by libtpu at realistic sizes.

python -m torch_tpu.ops.paged_cache.validate [--cases 6] [--chips v5e,v5p,v6e]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from torch_tpu.ops import checking
from torch_tpu.ops.paged_cache import kernel, reference

TOLERANCE = 2e-2  # bfloat16: weights of the values are rounded once more than the result


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    heads: int
    kv_heads: int
    pages: int  # of a sequence
    page: int  # tokens in one
    seed: int


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    rng = np.random.default_rng(seed)
    for i in range(count):
        kv = int(rng.choice([1, 2, 4]))
        yield Case(int(rng.integers(1, 5)), kv * int(rng.choice([8, 16])), kv, int(rng.integers(1, 10)), 16, i)


def check(case: Case, mode: str = "simulate") -> dict[str, float]:
    """Errors of both kernels, by the largest value."""
    rng = np.random.default_rng(case.seed)
    size, total = 128, case.batch * case.pages
    make = lambda *s: jnp.asarray(rng.standard_normal(s), jnp.bfloat16)  # noqa: E731
    lengths = jnp.asarray(rng.integers(1, case.pages * case.page + 1, case.batch), jnp.int32)
    index = jnp.asarray(rng.permutation(total).reshape(case.batch, case.pages), jnp.int32)
    scale = size**-0.5
    query = make(case.batch, case.heads, size)
    keys, values = (make(case.kv_heads, total, case.page, size) for _ in range(2))

    def one(q: Any, k: Any, v: Any, n: Any, i: Any) -> Any:
        return kernel.paged_attention(q, k, v, n, i, scale)

    got = checking.interpreted(one, query, keys, values, lengths, index, mode=mode)
    q, k, v = (np.asarray(x, np.float64) for x in (query, keys, values))
    n, i = np.asarray(lengths), np.asarray(index)
    want = reference.paged_attention(np, q, k, v, n, i, scale, np.float64)
    return {"paged": checking.error(got, want), "ragged": _check_ragged(case, lengths, index, rng, mode)}


def _check_ragged(case: Case, lengths: Any, index: Any, rng: np.random.Generator, mode: str) -> float:
    """Some of each sequence's tokens are new: one, all, or any number; the last sequence may not be there."""
    size, scale = 128, 128**-0.5
    new = np.array([rng.integers(1, min(int(n), 20) + 1) for n in lengths])
    starts = np.concatenate([[0], np.cumsum(new)])
    count = max(case.batch - case.seed % 2, 1)
    tokens = int(starts[count])
    query = jnp.asarray(rng.standard_normal((tokens, case.heads, size)), jnp.bfloat16)
    pages = jnp.asarray(
        rng.standard_normal((case.batch * case.pages, case.page, 2 * case.kv_heads, size)), jnp.bfloat16
    )
    operands = [query, pages, lengths, index, jnp.asarray(starts, jnp.int32), jnp.asarray([count], jnp.int32)]

    def several(q: Any, p: Any, n: Any, i: Any, s: Any, c: Any) -> Any:
        return kernel.ragged_paged_attention(q, p, n, i, s, c, scale)

    got = checking.interpreted(several, *operands, mode=mode)
    q, p = (np.asarray(x, np.float64) for x in operands[:2])
    n, i, s, c = (np.asarray(x) for x in operands[2:])
    want = reference.ragged_paged_attention(np, q, p, n, i, s, c, scale, np.float64)
    return checking.error(got, want)


# name -> batch, heads, kv heads, pages of a sequence, tokens in a page
REALISTIC: dict[str, tuple[int, int, int, int, int]] = {
    "Llama-3-8B, 64 sequences of 2048": (64, 32, 8, 128, 16),
    "Qwen3-30B-A3B, 16 sequences of 8192": (16, 32, 4, 128, 64),
}


def compile_for(chip: str, name: str) -> list[Any]:
    """libtpu's verdict on both kernels. Raises CompilerError where it refuses."""
    batch, heads, kv_heads, pages, page = REALISTIC[name]
    half, whole, size = jnp.bfloat16, jnp.int32, 128
    cache = ((kv_heads, batch * pages, page, size), half)
    rest = [((batch,), whole), ((batch, pages), whole)]
    scale = size**-0.5

    def one(q: Any, k: Any, v: Any, n: Any, i: Any) -> Any:
        return kernel.paged_attention(q, k, v, n, i, scale)

    def several(q: Any, p: Any, n: Any, i: Any, s: Any, c: Any) -> Any:
        return kernel.ragged_paged_attention(q, p, n, i, s, c, scale)

    pairs = ((batch * pages, page, 2 * kv_heads, size), half)
    ends = [((batch + 1,), whole), ((1,), whole)]
    return [
        checking.compiled(one, [((batch, heads, size), half), cache, cache, *rest], chip),
        checking.compiled(several, [((512, heads, size), half), pairs, *rest, *ends], chip),
    ]


def main() -> int:
    return checking.main(cases, 6, check, lambda case: TOLERANCE, REALISTIC, compile_for, ("paged", "ragged"))


if __name__ == "__main__":
    raise SystemExit(main())
