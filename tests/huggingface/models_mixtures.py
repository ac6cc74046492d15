"""Decoders with a mixture of experts, and with latent attention."""

from __future__ import annotations

from architectures import rows

row = rows("mixture", "text")

TABLE = [
    row("mixtral", "MixtralForCausalLM", more=True),
    row("qwen2_moe", "Qwen2MoeForCausalLM"),
    row("qwen3_moe", "Qwen3MoeForCausalLM", more=True),
    row("gpt_oss", "GptOssForCausalLM"),
    row("deepseek_v2", "DeepseekV2ForCausalLM", num_key_value_heads=4, first_k_dense_replace=1),
    row("deepseek_v3", "DeepseekV3ForCausalLM", first_k_dense_replace=1, n_group=2, topk_group=1),
    row("olmoe", "OlmoeForCausalLM"),
    row("phimoe", "PhimoeForCausalLM"),
    row("granitemoe", "GraniteMoeForCausalLM"),
    row("granitemoeshared", "GraniteMoeSharedForCausalLM"),
    row("jetmoe", "JetMoeForCausalLM"),
    row(
        "dbrx",
        "DbrxForCausalLM",
        attn_config={"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        ffn_config={"hidden_size": 32},
    ),
    row("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    row("glm4_moe", "Glm4MoeForCausalLM", first_k_dense_replace=1, n_group=1, topk_group=1),
    row("dots1", "Dots1ForCausalLM", n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1),
    row("flex_olmo", "FlexOlmoForCausalLM"),
    row("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"),
    row("llama4_text", "Llama4ForCausalLM"),
    row("longcat_flash", "LongcatFlashForCausalLM", num_key_value_heads=4),
    row("minimax_m2", "MiniMaxM2ForCausalLM"),
    row("afmoe", "AfmoeForCausalLM"),
    row("laguna", "LagunaForCausalLM"),
    row("solar_open", "SolarOpenForCausalLM"),
    row("nllb-moe", "NllbMoeForConditionalGeneration", inputs="encoder_decoder"),
    row("switch_transformers", "SwitchTransformersForConditionalGeneration", inputs="encoder_decoder"),
]
