"""Tokenizers and text encoders of the pipeline sweep: real classes, random weights of a few channels, no downloads."""

from __future__ import annotations

from typing import Any

import transformers as hf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

PAD, EOS, BOS, UNKNOWN = 0, 1, 2, 3
_SPECIAL = ["<pad>", "</s>", "<s>", "<unk>"]
VOCABULARY = len(_SPECIAL) + 96
WIDTH = 16
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_CHAT = "{% for m in messages %}{{ m['content'] if m['content'] is string else m['content'][0]['text'] }}\n{% endfor %}"


def tokenizer(length: int, **options: Any) -> hf.PreTrainedTokenizerFast:
    """One token a character, and the end token: prompt templates with a fixed number of tokens get long enough."""
    letters = ["\n", *map(chr, range(32, 127))]
    vocabulary = {token: i for i, token in enumerate([*_SPECIAL, *letters])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", bos_token="<s>", unk_token="<unk>",
        model_max_length=length, model_input_names=["input_ids", "attention_mask"], chat_template=_CHAT, **options,
    )  # fmt: skip


def t5_tokenizer(length: int) -> hf.T5Tokenizer:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), *((c, -2.0) for c in _ALPHABET)]
    return hf.T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=length)


def roberta_tokenizer(length: int) -> hf.RobertaTokenizer:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *_ALPHABET]
    return hf.RobertaTokenizer(vocab={p: i for i, p in enumerate(pieces)}, merges=[], model_max_length=length)


def _sizes(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, **more,
    }  # fmt: skip


def clip(length: int = 20, **more: Any) -> hf.CLIPTextModel:
    return hf.CLIPTextModel(hf.CLIPTextConfig(**_sizes(max_position_embeddings=length, **more)))


def clip_projected(length: int = 20, **more: Any) -> hf.CLIPTextModelWithProjection:
    config = hf.CLIPTextConfig(**_sizes(max_position_embeddings=length, projection_dim=WIDTH, **more))
    return hf.CLIPTextModelWithProjection(config)


def clip_image() -> hf.CLIPVisionModelWithProjection:
    config = hf.CLIPVisionConfig(
        hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32,
        patch_size=8, projection_dim=WIDTH,
    )  # fmt: skip
    return hf.CLIPVisionModelWithProjection(config)


def _t5_config(kind: Any) -> Any:
    return kind(
        vocab_size=VOCABULARY + 100, d_model=WIDTH, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=PAD,
        eos_token_id=EOS, feed_forward_proj="gated-gelu",
    )  # fmt: skip


def t5() -> hf.T5EncoderModel:
    return hf.T5EncoderModel(_t5_config(hf.T5Config))


def umt5() -> hf.UMT5EncoderModel:
    return hf.UMT5EncoderModel(_t5_config(hf.UMT5Config))


def gemma2() -> hf.Gemma2Model:
    return hf.Gemma2Model(hf.Gemma2Config(**_sizes(num_key_value_heads=1, head_dim=8, max_position_embeddings=512)))


def llama() -> hf.LlamaModel:
    return hf.LlamaModel(hf.LlamaConfig(**_sizes(num_key_value_heads=1, max_position_embeddings=1024)))


def qwen3(layers: int = 3) -> hf.Qwen3ForCausalLM:
    sizes = _sizes(num_key_value_heads=1, head_dim=8, max_position_embeddings=512)
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**{**sizes, "num_hidden_layers": layers}))


def qwen3_base() -> hf.Qwen3Model:
    return hf.Qwen3Model(hf.Qwen3Config(**_sizes(num_key_value_heads=1, head_dim=8, max_position_embeddings=512)))


def qwen2_5_vl() -> hf.Qwen2_5_VLForConditionalGeneration:
    text = _sizes(
        num_key_value_heads=1, max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
    )  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": WIDTH, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = hf.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    return hf.Qwen2_5_VLForConditionalGeneration(config)


def mistral3() -> hf.Mistral3ForConditionalGeneration:
    text = {
        "model_type": "mistral",
        **_sizes(num_key_value_heads=1, head_dim=8, max_position_embeddings=1024),
        "num_hidden_layers": 3,
    }
    vision = {
        "model_type": "pixtral", "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    config = hf.Mistral3Config(text_config=text, vision_config=vision, image_token_index=UNKNOWN, spatial_merge_size=2)
    return hf.Mistral3ForConditionalGeneration(config)
