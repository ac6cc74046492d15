"""One layer of experts in decode, compiled by libtpu for a TPU that is not attached: what it computes and reads.

    python benchmarks/moe_decode.py [qwen3 mixtral] [--batches 1,8,16,32,64] [--paths grouped,batched,ragged,tokamax]
                                    [--topology v6e-1] [--json out.json]

Layers: ``qwen3`` as in Qwen3-30B-A3B (2048 wide, 128 experts of 768, 8 a token), ``mixtral`` as in Mixtral-8x7B (4096
wide, 8 experts of 14336, 2 a token), bfloat16. Each path is the same PyTorch program with another product of experts:

=========  ====================================================================================================
grouped    Transformers' own "grouped_mm" experts, unmodified
batched    Transformers' own "batched_mm" experts, unmodified: what ``generate`` changes to for decode
ragged     "grouped_mm" with ``jax.lax.ragged_dot_general``: the stock lowering of XLA:TPU
tokamax    "grouped_mm" with tokamax's Mosaic kernel, given the weights as they lie
=========  ====================================================================================================

Columns: the compiler's FLOPs and bytes as it says them; bytes of the "module" are read off the compiled program (HBM
only; a kernel counts as it declares: all experts that its rows could hit). Bytes of weights are counted by hand: the
experts that are hit, in expectation, for tokens that take their experts at random (``ragged``: all); where the program
copies weights, each copy is read, written and read again. ``us`` is the roofline time of the compiler's FLOPs and of
the bytes of weights and rows by hand; for ``tokamax`` these assume that it reads each hit expert once.
"tiles" are the FLOPs with rows filled up to whole registers of 16, "passes" how
often a tile of 256 x 256 weights is put into the matrix unit, by the least that its instruction allows (it takes 16
rows): both by hand, for tokens that choose at random.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers.integrations import moe
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import torch_tpu.aot as aot
from torch_tpu.aot.chips import topology
from torch_tpu.ops.grouped_matmul import sizes
from torch_tpu.pallas import jax_op

LAYERS: dict[str, tuple[Any, Any, int]] = {
    "qwen3": (
        Qwen3MoeExperts,
        Qwen3MoeConfig(hidden_size=2048, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
        8,
    ),
    "mixtral": (
        MixtralExperts,
        MixtralConfig(hidden_size=4096, num_local_experts=8, num_experts_per_tok=2, intermediate_size=14336),
        2,
    ),
}
PATHS = ("grouped", "batched", "ragged", "tokamax")
_BY_N = jax.lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))


def _sizes(ends: jax.Array) -> jax.Array:
    return jnp.diff(ends, prepend=jnp.zeros((1,), ends.dtype))


@jax_op("torch_tpu_bench::ragged")
def ragged(x: jax.Array, weight: jax.Array, ends: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot_general(x, weight, _sizes(ends), _BY_N, preferred_element_type=x.dtype)


@jax_op("torch_tpu_bench::tokamax")
def by_tokamax(x: jax.Array, weight: jax.Array, ends: jax.Array) -> jax.Array:
    import tokamax

    return tokamax.ragged_dot_general(x, weight, _sizes(ends), _BY_N, implementation="mosaic_tpu")


@contextlib.contextmanager
def _product(path: str) -> Iterator[None]:
    """Transformers' grouped product replaced by another one."""
    op = {"ragged": ragged, "tokamax": by_tokamax}.get(path)
    before = moe._grouped_mm
    if op is not None:
        moe._grouped_mm = lambda x, weight, offs: op(x, weight.transpose(-2, -1), offs)  # as it lies: (experts, n, k)
    try:
        yield
    finally:
        moe._grouped_mm = before


def measure(layer: str, batch: int, path: str, where: str) -> dict[str, Any]:
    kind, config, top = LAYERS[layer]
    config._experts_implementation = "batched_mm" if path == "batched" else "grouped_mm"
    with torch.device("meta"):
        experts = kind(config).bfloat16()
    hidden = torch.empty(batch, config.hidden_size, dtype=torch.bfloat16, device="meta")
    index = torch.empty(batch, top, dtype=torch.int64, device="meta")
    weight = torch.empty(batch, top, dtype=torch.bfloat16, device="meta")
    with _product(path), torch.no_grad():
        report = aot.compile(experts, (hidden, index, weight), topology=where)
    program = report.programs[0]
    k, wide, groups = config.hidden_size, experts.gate_up_proj.shape[1], experts.gate_up_proj.shape[0]
    rows = batch * top
    an_expert = 2 * (k * wide + k * wide // 2)
    hit = groups * (1 - (1 - top / groups) ** batch)
    read = groups if path == "ragged" else hit
    if program.hbm_bytes > 2 * groups * an_expert:  # copies are made: read, written, and read again
        read = 3 * (rows if path == "batched" else groups)
    chip = topology(where).chip
    useful = 2 * rows * (k * wide + k * wide // 2)
    multiplied, passes = _multiplied(batch, top, groups)
    nbytes = read * an_expert + 4 * rows * (2 * k + wide + wide // 2)  # each row is written once, and read once
    return {
        "layer": layer, "batch": batch, "path": path, "useful": useful, "flops": program.flops,
        "mxu": multiplied / rows * useful, "passes": passes, "compiler_bytes": program.compiler_bytes,
        "hlo_bytes": program.hbm_bytes, "weights": read * an_expert, "hit": hit * an_expert, "all": groups * an_expert,
        "us": 1e6 * max(program.flops / chip.flops("bf16"), nbytes / chip.hbm_bandwidth),
        "largest": [(o.label, o.flops, o.hbm_bytes) for o in program.largest[:6]],
    }  # fmt: skip


def _multiplied(batch: int, top: int, groups: int, draws: int = 200) -> tuple[float, float]:
    """Of this package's kernel: rows that are multiplied, in whole parts of which a group's first and last are partly
    its neighbours' (a group starts anywhere in a part); and parts, by the fewest that hold each group's rows."""
    part, rng, parts, least = sizes.row_part(batch * top, groups, 2), np.random.default_rng(0), 0, 0
    for _ in range(draws):
        chosen = np.concatenate([rng.choice(groups, top, replace=False) for _ in range(batch)])
        count = np.bincount(chosen, minlength=groups)
        stop = np.cumsum(count)[count > 0]
        count = count[count > 0]
        parts += int(((stop - 1) // part - (stop - count) // part + 1).sum())
        least += int((-(-count // part)).sum())
    return parts * part / draws, parts / least


def table(found: list[dict[str, Any]]) -> str:
    head = (
        "layer", "batch", "path", "GFLOP useful", "GFLOP (compiler)", "GFLOP (tiles, by hand)", "passes",
        "MB (compiler)", "MB (module)", "MB weights (by hand)", "MB of experts hit", "us",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for r in found:
        tiles = f"{r['mxu'] / 1e9:.2f} | {r['passes']:.2f}" if r["path"] in ("grouped", "batched") else "- | -"
        megabytes = [r[n] / 1e6 for n in ("compiler_bytes", "hlo_bytes", "weights", "hit")]
        lines.append(
            f"| {r['layer']} | {r['batch']} | {r['path']} | {r['useful'] / 1e9:.2f} | {r['flops'] / 1e9:.2f} | "
            f"{tiles} | "
            + " | ".join(f"{m:.0f}" for m in megabytes) + f" | {r['us']:.0f} |"
        )  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--batches", default="1,8,16,32,64")
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--topology", default="v6e-1")
    parser.add_argument("--json")
    args = parser.parse_args()
    del sys.argv[1:]  # tokamax reads it too, and says what it has no tuned sizes for
    logging.getLogger("absl").setLevel(logging.ERROR)
    found = []
    for layer in args.layers:
        for batch in map(int, args.batches.split(",")):
            for path in args.paths.split(","):
                try:
                    found.append(measure(layer, batch, path, args.topology))
                except Exception as e:
                    print(f"{layer} {batch} {path}: {type(e).__name__}: {e}"[:500], file=sys.stderr)
                    continue
                print(table(found[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(found))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(found, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
