"""Decoders of text."""

from __future__ import annotations

from architectures import Architecture


def row(name: str, model: str, *, more: bool = False, inputs: str = "text", **config: object) -> Architecture:
    return Architecture(name, "decoder", model, inputs, config, more)


TABLE = [
    row("llama", "LlamaForCausalLM", more=True),
    row("gpt2", "GPT2LMHeadModel", more=True),
    row("mistral", "MistralForCausalLM"),
    row("qwen2", "Qwen2ForCausalLM"),
    row("qwen3", "Qwen3ForCausalLM"),
    row("gemma", "GemmaForCausalLM"),
    row("gemma2", "Gemma2ForCausalLM"),
    row("gemma3_text", "Gemma3ForCausalLM", more=True),
    row("phi", "PhiForCausalLM"),
    row("phi3", "Phi3ForCausalLM"),
    row("gpt_neox", "GPTNeoXForCausalLM"),
    row("gpt_neo", "GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]], window_size=4),
    row("gptj", "GPTJForCausalLM", rotary_dim=4),
    row("gpt_bigcode", "GPTBigCodeForCausalLM"),
    row("codegen", "CodeGenForCausalLM", rotary_dim=4),
    row("bloom", "BloomForCausalLM"),
    row("falcon", "FalconForCausalLM"),
    row("mpt", "MptForCausalLM"),
    row("opt", "OPTForCausalLM"),
    row("stablelm", "StableLmForCausalLM"),
    row("starcoder2", "Starcoder2ForCausalLM"),
    row("olmo", "OlmoForCausalLM"),
    row("olmo2", "Olmo2ForCausalLM"),
    row("olmo3", "Olmo3ForCausalLM"),
    row("cohere", "CohereForCausalLM"),
    row("cohere2", "Cohere2ForCausalLM"),
    row("glm", "GlmForCausalLM"),
    row("glm4", "Glm4ForCausalLM"),
    row("granite", "GraniteForCausalLM"),
    row("helium", "HeliumForCausalLM"),
    row("nemotron", "NemotronForCausalLM"),
    row("smollm3", "SmolLM3ForCausalLM"),
    row("exaone4", "Exaone4ForCausalLM"),
    row("seed_oss", "SeedOssForCausalLM"),
    row("apertus", "ApertusForCausalLM"),
    row("arcee", "ArceeForCausalLM"),
    row("bitnet", "BitNetForCausalLM"),
    row("diffllama", "DiffLlamaForCausalLM"),
    row("ministral", "MinistralForCausalLM"),
    row("minicpm3", "MiniCPM3ForCausalLM"),
    row("nanochat", "NanoChatForCausalLM"),
    row("persimmon", "PersimmonForCausalLM"),
    row("biogpt", "BioGptForCausalLM"),
    row("ctrl", "CTRLLMHeadModel"),
    row("openai-gpt", "OpenAIGPTLMHeadModel"),
    row("xglm", "XGLMForCausalLM"),
    row("xlnet", "XLNetLMHeadModel"),
]
