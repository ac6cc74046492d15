"""Attention of one sequence, compiled by libtpu for a TPU that is not attached: XLA's own against the flash kernels.

    python benchmarks/flash_attention.py [--lengths 512,1024,2048,4096] [--chip v6e] [--masks none,mask]

32 heads of 64, 8 of keys, bfloat16. Bytes (HBM only) and the FLOPs of products are read off the compiled module, those
of a loop as often as it runs. ``roofline``: the larger of the FLOPs by the chip's peak and the bytes by its bandwidth.
A splash kernel declares no FLOPs: its time is that of its bytes, beside which ``products`` has the time of all scores'
products (a causal kernel skips about half).
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp

from torch_tpu.aot import hlo
from torch_tpu.aot.chips import topology
from torch_tpu.lowering import attention
from torch_tpu.ops import checking, chips, flash_attention

HEADS, KV_HEADS, SIZE = 32, 8, 64


def programs(is_causal: bool) -> dict[tuple[str, str], Any]:
    """(pass, path) -> function of query, key, value[, gradient][, mask]."""

    def xla(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        with chips.partitioned():
            return attention.fused_attention(q, k, v, mask, 0.0, is_causal)[:2]

    def xla_back(q: Any, k: Any, v: Any, g: Any, mask: Any = None) -> Any:
        with chips.partitioned():
            out, lse = attention.fused_attention(q, k, v, mask, 0.0, is_causal)[:2]
            wanted = (True, True, True, False)
            return attention.fused_attention_backward(
                g, q, k, v, mask, wanted, out, lse, None, None, 0, 0, 0.0, is_causal, None, None
            )[:3]  # fmt: skip

    def ours(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return flash_attention.forward(q, k, v, mask, is_causal, None)

    def ours_back(q: Any, k: Any, v: Any, g: Any, mask: Any = None) -> Any:
        return flash_attention.backward(g, q, k, v, mask, is_causal, None)

    return {
        ("forward", "XLA"): xla, ("forward", "kernel"): ours,
        ("backward", "XLA"): xla_back, ("backward", "kernel"): ours_back,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", default="512,1024,2048,4096")
    parser.add_argument("--chip", default="v6e")
    parser.add_argument("--masks", default="none")
    args = parser.parse_args()
    where = topology(checking.CHIPS[args.chip]).chip
    print("| mask | tokens | pass | path | HBM MB | GFLOP | work memory MB | roofline us | products us |")
    print("|---" * 9 + "|")
    for kind in args.masks.split(","):
        for length in map(int, args.lengths.split(",")):
            for (step, path), fn in programs(kind == "none").items():
                q, kv = ((1, HEADS, length, SIZE), jnp.bfloat16), ((1, KV_HEADS, length, SIZE), jnp.bfloat16)
                shapes: list[tuple[Any, Any]] = [q, kv, kv, *([q] if step == "backward" else [])]
                shapes += [((1, 1, length, length), jnp.bool_)] if kind != "none" else []
                found = checking.compiled(fn, shapes, args.chip)
                costs = hlo.Module(found.text).costs()
                nbytes, flops = hlo.total(costs, "hbm_bytes"), hlo.total(costs, "flops")
                us = 1e6 * max(flops / where.flops("bf16"), nbytes / where.hbm_bandwidth)
                products = 2 * HEADS * length * length * SIZE * (2 if step == "forward" else 5)
                figures = (
                    nbytes / 1e6,
                    flops / 1e9,
                    found.temp_bytes / 1e6,
                    us,
                    1e6 * products / where.flops("bf16"),
                )
                shown = " | ".join(f"{x:.0f}" for x in figures)
                print(f"| {kind} | {length} | {step} | {path} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
