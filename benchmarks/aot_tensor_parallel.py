"""Tensor-parallel decoding on v6e-4: this package's program of a chip against a ``shard_map`` written by hand in JAX.

The decoder of ``aot_reference.py`` (the shape of Llama-3.2-1B), over four chips: the products into a block are split
over their outputs, those out of it over their inputs, the cache over its heads, embedding and head over the tokens.
No TPU is needed: what is compared is what the compiler says of the program of one chip.

    python benchmarks/aot_tensor_parallel.py [--layers 4] [--batch 8] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu is for the compiler alone

import aot_reference as one  # beside this file
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from torch_tpu.aot import hlo, layouts
from torch_tpu.aot.chips import topology
from torch_tpu.aot.compiler import LIBTPU_ENVIRONMENT, OutOfMemory, compile_program
from torch_tpu.aot.sharding import partitioning

CHIPS, AXIS = 4, "tensor"


def layer(p, x, cos, sin, mask, cache, start):
    """On one chip's heads and its part of the MLP; an all-reduce after each half."""
    batch, length, _ = x.shape
    heads = lambda y: y.reshape(batch, length, -1, one.SIZE).transpose(0, 2, 1, 3)  # noqa: E731
    h = one.rms_norm(x, p["norm1"])
    q, k, v = (heads(one.linear(h, p[n])) for n in "qkv")
    q, k = one.rotate(q, cos, sin), one.rotate(k, cos, sin)
    keys, values = (lax.dynamic_update_slice(c, n, (0, 0, start, 0)) for c, n in zip(cache, (k, v)))
    kv = keys.shape[1]
    out = one.attend(q.reshape(batch, kv, -1, length, one.SIZE), keys, values, mask)
    out = out.reshape(batch, -1, length, one.SIZE).transpose(0, 2, 1, 3).reshape(batch, length, -1)
    x = x + lax.psum(one.linear(out, p["o"]), AXIS)
    h = one.rms_norm(x, p["norm2"])
    inner = jax.nn.silu(one.linear(h, p["gate"])) * one.linear(h, p["up"])
    return x + lax.psum(one.linear(inner, p["down"]), AXIS), (keys, values)


def embedding(table, ids):
    """Rows that this chip has, zeros for the others, summed over the chips."""
    local = ids - lax.axis_index(AXIS) * table.shape[0]
    here = (local >= 0) & (local < table.shape[0])
    rows = jnp.where(here[..., None], table[jnp.where(here, local, 0)], 0)
    return lax.psum(rows, AXIS)


def step(caches, start, params, ids):
    x = embedding(params["embed"], ids)
    position = start + jnp.arange(ids.shape[1])
    cos, sin = one.angles(position)
    mask = jnp.arange(one.CACHE)[None] <= position[:, None]
    new = []
    for p, cache in zip(params["layers"], caches):
        x, cache = layer(p, x, cos, sin, mask, cache, start)
        new.append(cache)
    x = one.rms_norm(x, params["norm"])
    return new, start + ids.shape[1], one.linear(x[:, -1:], params["embed"])


def by_hand(layers: int, batch: int) -> dict[str, Any]:
    from jax.experimental import topologies

    os.environ.update(LIBTPU_ENVIRONMENT)
    where = topology("v6e-4")
    devices = topologies.get_topology_desc(where.libtpu_name, "tpu", **where.libtpu_options).devices
    mesh = jax.sharding.Mesh(np.array(devices[:CHIPS]), (AXIS,))
    outputs, inputs, whole = P(AXIS, None), P(None, AXIS), P()
    spec = {
        "q": outputs, "k": outputs, "v": outputs, "o": inputs, "gate": outputs, "up": outputs, "down": inputs,
        "norm1": whole, "norm2": whole,
    }  # fmt: skip
    heads = P(None, AXIS, None, None)
    buffer = jax.ShapeDtypeStruct((batch, one.KV, one.CACHE, one.SIZE), one.BF16)
    args = (
        [(buffer, buffer)] * layers, jax.ShapeDtypeStruct((), jnp.int32), one.weights(layers),
        jax.ShapeDtypeStruct((batch, 1), jnp.int32),
    )  # fmt: skip
    specs = ([(heads, heads)] * layers, whole, {"embed": outputs, "norm": whole, "layers": [spec] * layers}, whole)
    results = (specs[0], whole, P(None, None, AXIS))
    fn = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=results, check_vma=False)
    placed = jax.tree_util.tree_map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=jax.sharding.NamedSharding(mesh, s)), args, specs
    )
    compiled = jax.jit(fn, donate_argnums=(0, 1)).lower(*placed).compile()
    cost = dict(compiled.cost_analysis() or {})
    return _figures(compiled.as_text() or "", cost["flops"], cost["bytes accessed"])


def ours(layers: int, batch: int) -> dict[str, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from torch_tpu.aot import models
    from torch_tpu.aot.plan import capture

    config = LlamaConfig(
        hidden_size=one.HIDDEN, intermediate_size=one.INTER, num_hidden_layers=layers, num_attention_heads=one.HEADS,
        num_key_value_heads=one.KV, head_dim=one.SIZE, vocab_size=one.VOCAB, rms_norm_eps=one.EPS,
        rope_parameters={"rope_type": "default", "rope_theta": one.THETA}, tie_word_embeddings=True,
        max_position_embeddings=8192,
    )  # fmt: skip
    with torch.device("meta"), models.default_dtype(torch.bfloat16):
        model = LlamaForCausalLM(config).eval()
    cache = models.static_cache(config, batch, one.CACHE, torch.bfloat16)
    ids = torch.empty(batch, 1, dtype=torch.int64, device="meta")
    (program,) = capture(model, (ids,), {"past_key_values": cache, "logits_to_keep": 1})
    where = topology("v6e-4")
    found = compile_program(
        program, where, partitioning=partitioning(layouts.tensor_parallel(model, CHIPS), program, where)
    )
    if isinstance(found, OutOfMemory):
        raise MemoryError(found.message)
    return _figures(found.text, found.flops, found.bytes_accessed)


def _figures(text: str, flops: float, nbytes: float) -> dict[str, Any]:
    costs = hlo.Module(text).costs()
    collectives: dict[str, int] = {}
    for c in costs:
        if c.ici_bytes:
            collectives[c.opcode] = collectives.get(c.opcode, 0) + c.times
    return {
        "flops": flops, "bytes": nbytes, "hbm_bytes": hlo.total(costs, "hbm_bytes"),
        "ici_bytes": hlo.total(costs, "ici_bytes"), "collectives": collectives,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json")
    args = parser.parse_args()
    start = time.perf_counter()
    reference, found = by_hand(args.layers, args.batch), ours(args.layers, args.batch)
    ratios = {k: found[k] / reference[k] for k in ("flops", "bytes", "hbm_bytes", "ici_bytes")}
    print(f"{args.layers} layers, batch {args.batch}, v6e-4, a chip ({time.perf_counter() - start:.0f} s)")
    for name, ratio in ratios.items():
        print(f"  {name:<10} by hand {reference[name]:>14,.0f}   ours {found[name]:>14,.0f}   {ratio:.3f}x")
    print(f"  collectives: by hand {reference['collectives']}, ours {found['collectives']}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"by hand": reference, "ours": found, "ratios": ratios}, f, indent=1)
    return 0 if max(ratios["flops"], ratios["bytes"]) <= 1.05 else 1


if __name__ == "__main__":
    raise SystemExit(main())
