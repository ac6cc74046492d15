"""State-space, linear-attention and recurrent models, and hybrids of them with attention."""

from __future__ import annotations

from architectures import rows

row = rows("state-space", "text")

_TWO = ["linear_attention", "full_attention"]
_FOUR = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
_CONVOLUTION = ["conv", "full_attention"]

TABLE = [
    row("mamba", "MambaForCausalLM", more=True),
    row("mamba2", "Mamba2ForCausalLM", num_heads=8, expand=2, n_groups=2),
    row("falcon_mamba", "FalconMambaForCausalLM"),
    row("jamba", "JambaForCausalLM", more=True, attn_layer_period=2, attn_layer_offset=1),
    row("bamba", "BambaForCausalLM", attn_layer_indices=[1]),
    row("zamba", "ZambaForCausalLM", num_hidden_layers=4, n_mamba_heads=2, layers_block_type=_FOUR),
    row("zamba2", "Zamba2ForCausalLM", num_hidden_layers=4, layers_block_type=_FOUR, n_mamba_heads=8),
    row("falcon_h1", "FalconH1ForCausalLM", mamba_d_ssm=64),
    row("granitemoehybrid", "GraniteMoeHybridForCausalLM", layer_types=_TWO),
    row(
        "nemotron_h",
        "NemotronHForCausalLM",
        n_groups=2,
        layers_block_type=["linear_attention", "moe", "full_attention"],
    ),
    row("recurrent_gemma", "RecurrentGemmaForCausalLM", num_hidden_layers=3, attention_window_size=4),
    row("rwkv", "RwkvForCausalLM"),
    row("xlstm", "xLSTMForCausalLM", num_blocks=2, hidden_size=128),
    row("qwen3_next", "Qwen3NextForCausalLM", layer_types=_TWO, linear_num_key_heads=2, linear_num_value_heads=4),
    row("lfm2", "Lfm2ForCausalLM", layer_types=_CONVOLUTION),
    row("lfm2_moe", "Lfm2MoeForCausalLM", layer_types=_CONVOLUTION, num_dense_layers=1),
    row("minimax", "MiniMaxForCausalLM"),
    row("olmo_hybrid", "OlmoHybridForCausalLM", layer_types=_TWO),
    row("kimi_linear", "KimiLinearForCausalLM", layer_types=_TWO, linear_num_heads=4),
]
