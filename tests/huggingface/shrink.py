"""Tiny configurations of any model of Transformers, from its configuration class alone.

A field is found by its name, or by the standard name that the class maps to it (``n_embd`` is the ``hidden_size`` of
GPT-2). What the rule does not know keeps its default, and a family's entry says what it needs besides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 64
LENGTH = 8  # of the sequences that the cells run
IMAGE = 16

_VOCABULARIES = "vocab_size src_vocab_size tgt_vocab_size decoder_vocab_size entity_vocab_size"
_SIZES: dict[int | float, str] = {
    # Small enough to compile fast, large enough that two heads and two key heads are told apart.
    32: """hidden_size d_model n_embd embed_dim embedding_size word_embed_proj_dim decoder_hidden_size lstm_dim
           encoder_hidden_size text_hidden_size projection_dim hidden_dim entity_emb_size""",
    2: """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers
          num_decoder_layers depth num_attention_layers encoder_num_layers num_key_value_heads num_kv_heads
          num_experts_per_tok moe_topk num_experts_per_token top_k_experts moe_k decoder_num_layers num_levels""",
    4: """num_attention_heads num_heads n_head encoder_attention_heads decoder_attention_heads num_local_experts
          num_experts n_routed_experts moe_num_experts num_encoder_heads n_heads encoder_num_heads sliding_window
          encoder_num_attention_heads decoder_num_attention_heads patch_size num_decoder_heads
          mamba_d_state state_size sqr_window""",
    8: """head_dim attention_head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim d_kv mamba_d_head global_head_dim
          mamba_head_dim linear_key_head_dim linear_value_head_dim mamba_num_heads
          mamba_n_heads chunk_size linear_head_dim mamba_chunk_size ssm_state_size""",
    16: """moe_intermediate_size kv_lora_rank q_lora_rank image_size expert_ffn_hidden_size attention_bottleneck
           shared_expert_intermediate_size mamba_dt_rank time_step_rank index_head_dim""",
    48: """intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner n_inner ffn_hidden_size
           intermediate_size_mlp ffn_hidden_dim moe_shared_expert_intermediate_size encoder_intermediate_size
           decoder_intermediate_size dim_feedforward""",
    64: f"""max_position_embeddings n_positions n_ctx max_seq_len max_source_positions max_target_positions
            max_sequence_length model_max_length block_size encoder_max_position_embeddings
            {_VOCABULARIES}""",
    # Weights as large as trained ones are: with the usual 0.02 a tiny model is all but linear.
    0.2: "initializer_range init_std",
}
_OF: dict[str, int | float] = {name: size for size, names in _SIZES.items() for name in names.split()}
_OPTIONAL = {"sliding_window", "n_inner", "q_lora_rank", "ffn_hidden_size"}  # None says that the model has none
_FREE = 40  # ids of special tokens from here on, ordinary ones below


def tiny(kind: type[PreTrainedConfig], **overrides: Any) -> PreTrainedConfig:
    """An instance of ``kind`` made small; ``overrides`` win, dictionaries of sub-configurations entry by entry."""
    return kind(**_arguments(kind, overrides, iter(range(_FREE, VOCABULARY))))


def _arguments(kind: type[PreTrainedConfig], overrides: Mapping[str, Any], free: Any) -> dict[str, Any]:
    standard = {ours: name for name, ours in (getattr(kind, "attribute_map", None) or {}).items()}
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        size = _OF.get(field.name, _OF.get(standard.get(field.name, "")))
        default = field.default
        if size is not None and not isinstance(default, (list, tuple, dict)):
            if default is None and field.name in _OPTIONAL:
                continue
            arguments[field.name] = type(default)(size) if isinstance(default, (int, float)) else size
        elif field.name.endswith(("_token_id", "_token_index", "_start_token")) and isinstance(default, int):
            plain = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}.get(field.name)
            arguments[field.name] = plain if plain is not None else next(free)
        elif isinstance(default, float) and any(
            w in field.name for w in ("dropout", "pdrop", "layerdrop", "drop_path")
        ):
            arguments[field.name] = 0.0
    heads = [_default(kind, n) for n in ("num_key_value_heads", "num_attention_heads")]
    if heads[0] is not None and heads[0] == heads[1]:  # latent attention has as many of one as of the other
        arguments["num_key_value_heads"] = arguments["num_attention_heads"]
    for name, default in _parts(kind).items():
        part = {k: v for k, v in dict(overrides.get(name) or {}).items() if k != "model_type"}
        named = (overrides.get(name) or {}).get("model_type")
        inner = CONFIG_MAPPING[named] if named else type(default)
        arguments[name] = {"model_type": inner.model_type, **_arguments(inner, part, free)}
    return {**arguments, **{k: v for k, v in overrides.items() if k not in _parts(kind) or v is None}}


def _default(kind: type[PreTrainedConfig], name: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    return fields[name].default if name in fields else None


def _parts(kind: type[PreTrainedConfig]) -> dict[str, PreTrainedConfig]:
    """Sub-configurations that an instance has when nothing is said."""
    if not getattr(kind, "sub_configs", None):
        return {}
    plain = kind()
    found = {name: getattr(plain, name, None) for name in kind.sub_configs}
    return {name: part for name, part in found.items() if isinstance(part, PreTrainedConfig)}
