"""Models for ``torch-tpu plan``: presets and config files, built with no memory and no weights.

Presets are architecture numbers as published with the models; the classes are Transformers' and Diffusers' own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_LLAMA3 = {
    "model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        **_LLAMA3, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "head_dim": 64, "tie_word_embeddings": True, "rope_parameters": {**_LLAMA3["rope_parameters"], "factor": 32.0},
    },
    "llama-3.1-8b": {
        **_LLAMA3, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    "llama-3.1-70b": {
        **_LLAMA3, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "hidden_act": "silu",
        "sliding_window": None, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "flux": {
        "_class_name": "FluxTransformer2DModel", "patch_size": 1, "in_channels": 64, "num_layers": 19,
        "num_single_layers": 38, "attention_head_dim": 128, "num_attention_heads": 24, "joint_attention_dim": 4096,
        "pooled_projection_dim": 768, "guidance_embeds": True, "axes_dims_rope": [16, 56, 56],
    },
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Call:
    """A model and one call of it, all on device meta."""

    title: str
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    items: int
    unit: str
    loss: Callable[[Any], torch.Tensor] | None = None


def config_of(name: str) -> dict[str, Any]:
    """The config of a preset, or of a ``config.json`` or the folder that has one.

    Raises:
      ValueError: neither; the message lists the presets.
    """
    if name.lower() in PRESETS:
        return dict(PRESETS[name.lower()])
    path = pathlib.Path(name)
    path = path / "config.json" if path.is_dir() else path
    if path.is_file():
        found = json.loads(path.read_text())
        if isinstance(found, dict) and ("model_type" in found or "_class_name" in found):
            return found
        raise ValueError(f"{path}: no config of a model: it has neither model_type nor _class_name")
    raise ValueError(f"no model {name!r}: give one of {', '.join(PRESETS)}, or the path of a config.json")


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def static_cache(config: Any, batch: int, length: int, dtype: torch.dtype) -> Any:
    """Transformers' static KV cache for a batch, allocated on device meta."""
    from transformers import StaticCache

    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    with torch.device("meta"):
        cache = StaticCache(config=config, max_cache_len=length)
        cache.early_initialization(batch, heads, size, dtype, torch.device("meta"))
    return cache


def call(name: str, mode: str, *, batch: int, length: int, cache: int, dtype: torch.dtype) -> Call:
    """What ``torch-tpu plan`` compiles: a decode step, a prefill, or the loss of a training step.

    Args:
      mode: ``decode`` (one token a sequence), ``prefill`` or ``train`` (``length`` tokens a sequence).
      cache: positions of the static KV cache.
    """
    config = config_of(name)
    if "_class_name" in config:
        return _diffusion(name, config, mode, batch=batch, length=length, dtype=dtype)
    return _language(name, config, mode, batch=batch, length=length, cache=cache, dtype=dtype)


def _need(package: str, what: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{what} needs {package}, which is not installed: pip install 'torch-tpu[plan]'")


def _language(
    name: str, config: dict[str, Any], mode: str, *, batch: int, length: int, cache: int, dtype: torch.dtype
) -> Call:
    _need("transformers", "planning a language model")
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {k: v for k, v in config.items() if k != "model_type"}
    made = AutoConfig.for_model(config["model_type"], **options)
    with torch.device("meta"), default_dtype(dtype):
        model = AutoModelForCausalLM.from_config(made)
    model.requires_grad_(mode == "train").train(mode == "train")
    tokens = 1 if mode == "decode" else length
    ids = torch.empty(batch, tokens, dtype=torch.int64, device="meta")
    title = f"{name}, {str(dtype).removeprefix('torch.')}, {mode}, batch {batch}"
    if mode == "train":
        return Call(f"{title} x {length}", model, (ids,), {"labels": ids, "use_cache": False}, batch * length, "tokens")
    kept = static_cache(made, batch, cache, dtype)
    title += f", cache {cache}" + (f", {length} tokens" if mode == "prefill" else "")
    kwargs = {"past_key_values": kept, "logits_to_keep": 1}
    return Call(title, model, (ids,), kwargs, batch * tokens, "tokens")


def _diffusion(
    name: str, config: dict[str, Any], mode: str, *, batch: int, length: int, dtype: torch.dtype
) -> Call:  # fmt: skip
    """A denoising step: ``length`` latent tokens (a 1024 x 1024 image has 4096) and 512 tokens of text."""
    _need("diffusers", "planning a diffusion model")
    import diffusers

    kind = config["_class_name"]
    if kind != "FluxTransformer2DModel":
        raise ValueError(f"plan: diffusion model {kind}; supported: FluxTransformer2DModel")
    if mode == "train":
        raise ValueError("plan: a diffusion model has no training step here; use --mode prefill (a denoising step)")
    options = {k: v for k, v in config.items() if not k.startswith("_")}
    with torch.device("meta"), default_dtype(dtype):
        model = diffusers.FluxTransformer2DModel(**options)  # type: ignore[reportPrivateImportUsage]
        model = model.requires_grad_(False).eval()
        kwargs = {
            "hidden_states": torch.empty(batch, length, options["in_channels"], dtype=dtype),
            "encoder_hidden_states": torch.empty(batch, 512, options["joint_attention_dim"], dtype=dtype),
            "pooled_projections": torch.empty(batch, options["pooled_projection_dim"], dtype=dtype),
            "timestep": torch.empty(batch, dtype=dtype), "img_ids": torch.empty(length, 3, dtype=dtype),
            "txt_ids": torch.empty(512, 3, dtype=dtype), "return_dict": False,
        }  # fmt: skip
        if options.get("guidance_embeds"):
            kwargs["guidance"] = torch.empty(batch, dtype=torch.float32)
    title = f"{name}, {str(dtype).removeprefix('torch.')}, denoising step, batch {batch}, {length} latent tokens"
    return Call(title, model, (), kwargs, batch, "steps")
