"""Programs of this package against the same computation written by hand in JAX, both compiled by libtpu for v6e-1.

A Llama-architecture decoder of 1.2 billion weights in bfloat16 (the shape of Llama-3.2-1B: 16 layers, 2048 wide, 32
heads of 64 and 8 for keys and values, 128256 tokens, tied embeddings): decode of 1 and 64 sequences with a static
cache of 2048, prefill of 2048 tokens, a training step of 4 x 2048 with AdamW. No TPU is needed: what is compared is
what the compiler says of the two programs.

    python benchmarks/aot_reference.py [decode1 decode64 prefill train] [--layers 16] [--int64] [--json out.json]

``vit`` is a batch of 64 images of 224 x 224 through ViT-B/16 (``aot_vit.py``; --layers counts its twelve), ``dit`` a
step of DiT-XL/2 (``aot_dit.py``; it has 28). ``--int64`` gives the reference token ids and the cache's length in the
type that PyTorch has for them; JAX's own is int32.

The reference is idiomatic JAX: grouped-query attention without repeated keys, float32 softmax and norms, one jitted
training step, attention recomputed in the backward pass (jax.checkpoint). Ours is Transformers' unmodified
LlamaForCausalLM through AOTAutograd; its training step is the three programs that torch.compile runs. "work memory" is
what the step needs beside weights, optimizer state, cache and inputs: temporaries, and between programs activations
and gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu is for the compiling process alone

import aot_dit  # beside this file
import aot_vit
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import torch

import torch_tpu.aot as aot
from torch_tpu.aot import hlo
from torch_tpu.aot.chips import topology
from torch_tpu.aot.compiler import OutOfMemory, compile_program
from torch_tpu.aot.program import Program
from torch_tpu.runtime import interpretation

HIDDEN, INTER, HEADS, KV, SIZE, VOCAB, EPS, THETA = 2048, 8192, 32, 8, 64, 128256, 1e-5, 500000.0
CACHE = 2048
BF16 = jnp.bfloat16
IMAGES = {"vit": aot_vit, "dit": aot_dit}


# The reference ---------------------------------------------------------------------------------------------------


def weights(layers: int) -> dict[str, Any]:
    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, BF16)

    layer = lambda: {  # noqa: E731
        "q": of(HEADS * SIZE, HIDDEN), "k": of(KV * SIZE, HIDDEN), "v": of(KV * SIZE, HIDDEN),
        "o": of(HIDDEN, HEADS * SIZE), "gate": of(INTER, HIDDEN), "up": of(INTER, HIDDEN), "down": of(HIDDEN, INTER),
        "norm1": of(HIDDEN), "norm2": of(HIDDEN),
    }  # fmt: skip
    return {"embed": of(VOCAB, HIDDEN), "norm": of(HIDDEN), "layers": [layer() for _ in range(layers)]}


def rms_norm(x, weight):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + EPS)).astype(x.dtype) * weight


def rotate(x, cos, sin):
    half = SIZE // 2
    return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def angles(position):
    inverse = 1.0 / THETA ** (jnp.arange(0, SIZE, 2, dtype=jnp.float32) / SIZE)
    a = position[:, None].astype(jnp.float32) * inverse
    a = jnp.concatenate([a, a], -1)
    return jnp.cos(a).astype(BF16), jnp.sin(a).astype(BF16)


def linear(x, w):
    return jnp.einsum("...i,oi->...o", x, w)


def attend(q, k, v, mask):
    """q (batch, kv heads, group, length, size); k, v (batch, kv heads, keys, size); mask (length, keys)."""
    scores = jnp.einsum("bkgqd,bktd->bkgqt", q, k, preferred_element_type=jnp.float32) / np.sqrt(SIZE)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1).astype(q.dtype)
    return jnp.einsum("bkgqt,bktd->bkgqd", weights, v)


def layer(p, x, cos, sin, mask, cache, start, attention):
    batch, length, _ = x.shape
    h = rms_norm(x, p["norm1"])
    heads = lambda y, n: y.reshape(batch, length, n, SIZE).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = heads(linear(h, p["q"]), HEADS), heads(linear(h, p["k"]), KV), heads(linear(h, p["v"]), KV)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    if cache is not None:
        keys, values = (jax.lax.dynamic_update_slice(c, n, (0, 0, start, 0)) for c, n in zip(cache, (k, v)))
        cache, k, v = (keys, values), keys, values
    out = attention(q.reshape(batch, KV, HEADS // KV, length, SIZE), k, v, mask)
    x = x + linear(out.reshape(batch, HEADS, length, SIZE).transpose(0, 2, 1, 3).reshape(batch, length, -1), p["o"])
    h = rms_norm(x, p["norm2"])
    return x + linear(jax.nn.silu(linear(h, p["gate"])) * linear(h, p["up"]), p["down"]), cache


def hidden(params, ids, caches, start, attention=attend):
    x, length = params["embed"][ids], ids.shape[1]
    position = start + jnp.arange(length)
    cos, sin = angles(position)
    keys = jnp.arange(caches[0][0].shape[2] if caches is not None else length)
    mask = keys[None] <= position[:, None]
    new = []
    for i, p in enumerate(params["layers"]):
        x, c = layer(p, x, cos, sin, mask, caches[i] if caches is not None else None, start, attention)
        new.append(c)
    return rms_norm(x, params["norm"]), new


def generate_step(caches, start, params, ids):
    """Decode or prefill: logits of the last token, and the cache with the new tokens in it."""
    x, caches = hidden(params, ids, caches, start)
    return caches, start + ids.shape[1], linear(x[:, -1:], params["embed"])


def loss_of(params, ids):
    x, _ = hidden(params, ids, None, 0, jax.checkpoint(attend))
    logits = linear(x, params["embed"]).astype(jnp.float32)
    picked = jnp.take_along_axis(logits[:, :-1], ids[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits[:, :-1], -1) - picked)


def train_step(params, first, second, step, ids, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, decay=0.01):
    loss, grads = jax.value_and_grad(loss_of)(params, ids)
    step = step + 1

    def update(p, m, v, g):
        p32, g = p.astype(jnp.float32), g.astype(jnp.float32)
        m = b1 * m.astype(jnp.float32) + (1 - b1) * g
        v = b2 * v.astype(jnp.float32) + (1 - b2) * g * g
        change = m / (1 - b1**step) / (jnp.sqrt(v / (1 - b2**step)) + eps)
        return (p32 * (1 - lr * decay) - lr * change).astype(p.dtype), m.astype(p.dtype), v.astype(p.dtype)

    leaves, tree = jax.tree_util.tree_flatten(params)
    rest = [jax.tree_util.tree_leaves(t) for t in (first, second, grads)]
    new = [update(*each) for each in zip(leaves, *rest)]
    return (*(jax.tree_util.tree_unflatten(tree, part) for part in zip(*new)), step, loss)


def integer() -> Any:
    """The type of token ids and lengths: int32, with --int64 int64."""
    return jnp.zeros((), int).dtype


def reference(case: str, layers: int) -> tuple[Any, tuple[Any, ...], int]:
    """The function, its arguments, and how many of them it overwrites."""
    if case in IMAGES:
        return IMAGES[case].forward, IMAGES[case].arguments(layers), 0
    params = weights(layers)
    if case == "train":
        step = jax.ShapeDtypeStruct((), jnp.float32)
        return train_step, (params, params, params, step, jax.ShapeDtypeStruct((4, 2048), integer())), 4
    batch, length = {"decode1": (1, 1), "decode64": (64, 1), "prefill": (1, 2048)}[case]
    buffer = jax.ShapeDtypeStruct((batch, KV, CACHE, SIZE), BF16)
    caches = [(buffer, buffer) for _ in range(layers)]
    ids = jax.ShapeDtypeStruct((batch, length), integer())
    return generate_step, (caches, jax.ShapeDtypeStruct((), integer()), params, ids), 2


def compile_reference(case: str, layers: int) -> dict[str, float]:
    fn, args, overwritten = reference(case, layers)
    leaves, tree = jax.tree_util.tree_flatten(args)
    donated = tuple(range(len(jax.tree_util.tree_leaves(args[:overwritten]))))
    flat = jax.jit(
        lambda *xs: jax.tree_util.tree_leaves(fn(*tree.unflatten(xs))), donate_argnums=donated, keep_unused=True
    )
    exported = jax.export.export(flat, platforms=("tpu",))(*leaves)
    program = Program(f"{case} in JAX", (), (), donated, bytes(exported.serialize()), 0.0)
    found = compile_program(program, topology("v6e-1"))
    if isinstance(found, OutOfMemory):
        sys.exit(f"the reference of {case} does not fit: {found.message}")
    _keep(f"{case}-jax", found.text)
    module = hlo.Module(found.text)
    return _figures(
        [found.flops],
        [found.bytes_accessed],
        [hlo.total(module.costs(), "hbm_bytes")],
        found.temp_bytes,
        len(module.aliases()),
    )


# Ours ------------------------------------------------------------------------------------------------------------


def compile_ours(case: str, layers: int) -> dict[str, float]:
    with interpretation.lowering_for("tpu", "v6e"):  # with the kernels that programs for it have
        programs = IMAGES[case].programs(layers) if case in IMAGES else _decoder(case, layers)
    return _compiled(case, programs)


def _decoder(case: str, layers: int) -> list[Program]:
    from transformers import LlamaConfig, LlamaForCausalLM

    from torch_tpu.aot import models
    from torch_tpu.aot.plan import capture

    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTER, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KV, head_dim=SIZE, vocab_size=VOCAB, rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    with torch.device("meta"), models.default_dtype(torch.bfloat16):
        model = LlamaForCausalLM(config)
    if case == "train":
        model.train()
        ids = torch.empty(4, 2048, dtype=torch.int64, device="meta")
        return capture(model, (ids,), {"labels": ids, "use_cache": False}, train=True, optimizer=torch.optim.AdamW)
    model.eval()
    batch, length = {"decode1": (1, 1), "decode64": (64, 1), "prefill": (1, 2048)}[case]
    cache = models.static_cache(config, batch, CACHE, torch.bfloat16)
    ids = torch.empty(batch, length, dtype=torch.int64, device="meta")
    return capture(model, (ids,), {"past_key_values": cache, "logits_to_keep": 1})


def _compiled(case: str, programs: list[Program]) -> dict[str, float]:
    found = []
    for p in programs:
        compiled = compile_program(p, topology("v6e-1"))
        if isinstance(compiled, OutOfMemory):
            sys.exit(f"{case} of ours does not fit: {p.name}: {compiled.message}")
        _keep(f"{case}-{p.name}", compiled.text)
        found.append(compiled)
    modules = [hlo.Module(c.text) for c in found]
    between = ("activations", "gradients")
    work = max(
        c.temp_bytes + sum(v.nbytes for v in (*p.operands, *p.results[len(p.donated):]) if v.role in between)
        for p, c in zip(programs, found, strict=True)
    )  # fmt: skip
    return _figures(
        [c.flops for c in found], [c.bytes_accessed for c in found],
        [hlo.total(m.costs(), "hbm_bytes") for m in modules],
        work, sum(len(m.aliases()) for m in modules),
    )  # fmt: skip


def _figures(
    flops: list[float], compiler: list[float], nbytes: list[float], work: int, aliases: int
) -> dict[str, float]:
    return {"flops": sum(flops), "bytes": sum(compiler), "hbm_bytes": sum(nbytes), "work": work, "aliases": aliases}


_folder: str | None = None


def _keep(name: str, text: str) -> None:
    if _folder:
        with open(f"{_folder}/{name}.hlo", "w") as f:
            f.write(text)


def main() -> int:
    global _folder
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["decode1", "decode64", "prefill", "train"])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--int64", action="store_true", help="64-bit integers in the reference, as PyTorch has")
    parser.add_argument("--json", help="file to write the figures to")
    parser.add_argument("--keep", help="folder to write the compiled modules to")
    args = parser.parse_args()
    _folder = args.keep
    aot.compiler.require_libtpu()
    out: dict[str, Any] = {}
    print(f"{'case':<10} {'':<6} {'GFLOP':>12} {'bytes GiB':>12} {'HBM GiB':>12} {'work MiB':>12} {'in place':>9}")
    for case in args.cases:
        with jax.enable_x64(args.int64):
            theirs = compile_reference(case, args.layers)
        ours = compile_ours(case, args.layers)
        ratio = {k: ours[k] / theirs[k] if theirs[k] else float("nan") for k in ours}
        out[case] = {"jax": theirs, "ours": ours, "ratio": ratio}
        for who, f in (("JAX", theirs), ("ours", ours)):
            print(
                f"{case:<10} {who:<6} {f['flops'] / 1e9:>12.3f} {f['bytes'] / 2**30:>12.4f} "
                f"{f['hbm_bytes'] / 2**30:>12.4f} "
                f"{f['work'] / 2**20:>12.2f} {f['aliases']:>9.0f}"
            )
        print(
            f"{case:<10} {'ratio':<6} "
            + " ".join(f"{ratio[k]:>12.3f}" for k in ("flops", "bytes", "hbm_bytes", "work")),
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as f:
            json.dump(out, f, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
