"""Write a Pallas kernel, test it on a laptop, use it in a Transformers model, compile it for a TPU.

    pip install 'torch-tpu[demo,tpu]'
    python examples/kernels/rms_norm.py

No TPU is needed: without one the kernel is interpreted, and libtpu compiles it for a chip that is not there. On a TPU
the same file runs the compiled kernel.
"""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas as pl
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from torch_tpu.pallas import interpret, jax_op

# The kernel ------------------------------------------------------------------------------------------------------

BLOCK = 64  # rows at a time: a multiple of 8, small enough that two blocks in and two out fit VMEM


def _kernel(x_ref, weight_ref, out_ref, *, eps: float) -> None:
    x = x_ref[...].astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    out_ref[...] = (x * scale * weight_ref[...].astype(jnp.float32)).astype(out_ref.dtype)


@jax_op("example::rms_norm")
def rms_norm(x: jax.Array, weight: jax.Array, eps: float = 1e-6) -> jax.Array:
    """Root mean square normalization of the last dimension: ``x / sqrt(mean(x^2) + eps) * weight``.

    Args:
      x: (..., features).
      weight: (features,).
    """
    rows = x.reshape(-1, x.shape[-1])
    n, features = rows.shape
    if n == 0:
        return x
    block = min(BLOCK, pl.cdiv(n, 8) * 8)
    padded = jnp.pad(rows, ((0, pl.cdiv(n, block) * block - n), (0, 0)))
    out = pl.pallas_call(
        functools.partial(_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(padded.shape, x.dtype),
        grid=(padded.shape[0] // block,),
        in_specs=[pl.BlockSpec((block, features), lambda i: (i, 0)), pl.BlockSpec((1, features), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((block, features), lambda i: (i, 0)),
        name="rms_norm",
    )(padded, weight[None])
    return out[:n].reshape(x.shape)


# Its gradient, in PyTorch (``jax_op(..., differentiable=True)`` derives it where JAX can differentiate the function) --


def _save(ctx, inputs, output) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):
    x, weight = (t.float() for t in ctx.saved_tensors)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
    unit, g = x * scale, grad.float()
    scaled = g * weight
    grad_x = scale * (scaled - unit * (scaled * unit).mean(-1, keepdim=True))
    return grad_x.to(grad.dtype), (g * unit).flatten(0, -2).sum(0).to(grad.dtype), None


rms_norm.register_autograd(_backward, setup_context=_save)


# Test it on a laptop ---------------------------------------------------------------------------------------------


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def check(rows: int, features: int, dtype: torch.dtype = torch.float32) -> float:
    """The largest error of the kernel and its gradients against float64, in units of the dtype's precision."""
    torch.manual_seed(rows)
    x, weight, grad = torch.randn(rows, features), torch.randn(features), torch.randn(rows, features)
    mine = [t.to("tpu", dtype).requires_grad_() for t in (x, weight)]
    theirs = [t.detach().cpu().double().requires_grad_() for t in mine]
    out, exact = rms_norm(*mine), reference(*theirs)
    found = [out, *torch.autograd.grad(out, mine, grad.to("tpu", dtype))]
    wanted = [exact, *torch.autograd.grad(exact, theirs, grad.to(dtype).double())]
    pairs = [(f.detach().cpu().double(), w.detach()) for f, w in zip(found, wanted, strict=True)]
    errors = [(f - w).abs().max() / w.abs().max() for f, w in pairs]
    return float(max(errors)) / torch.finfo(dtype).eps


# Use it in a model -----------------------------------------------------------------------------------------------


def use_in(model: torch.nn.Module) -> int:
    """Let every RMS normalization of a Llama model be the kernel; how many there are."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)

    layers = [m for m in model.modules() if isinstance(m, LlamaRMSNorm)]
    for layer in layers:
        layer.forward = types.MethodType(forward, layer)
    return len(layers)


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


# Compile it for a chip -------------------------------------------------------------------------------------------


def plan(topology: str = "v6e-1", rows: int = 8192, features: int = 4096):
    """What the TPU's compiler says of the kernel: VMEM, time at best."""
    x = torch.empty(rows, features, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(features, dtype=torch.bfloat16, device="meta")
    return torch.tpu.aot.compile(rms_norm, (x, weight), topology=topology, title=f"rms_norm {rows} x {features}")


def main() -> None:
    print("error against float64, in units of precision:")
    for rows, features, dtype in ((5, 128, torch.float32), (64, 256, torch.float32), (100, 128, torch.bfloat16)):
        print(f"  {rows} x {features} {dtype}: {check(rows, features, dtype):.1f}")
    with interpret(detect_races=True):
        check(130, 128)
    print("  no races")

    model, ids = tiny_llama(), torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        wanted = model(ids).logits
        count = use_in(model.to("tpu"))
        eager = model(ids.to("tpu")).logits.cpu()
        compiled = torch.compile(model, fullgraph=True)(ids.to("tpu")).logits.cpu()
    print(f"Llama with {count} kernels: eager differs from PyTorch on CPU by {(eager - wanted).abs().max():.1e}, "
          f"compiled by {(compiled - wanted).abs().max():.1e}")  # fmt: skip
    try:
        print(plan())
    except torch.tpu.aot.LibtpuMissingError as e:
        print(e)


if __name__ == "__main__":
    main()
