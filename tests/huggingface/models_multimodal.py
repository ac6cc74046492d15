"""Models of text beside images, audio or both."""

from __future__ import annotations

from architectures import rows

row = rows("multimodal", "image_and_text")

_CLIP = {"model_type": "clip_vision_model", "image_size": 16, "patch_size": 8}

_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}}

TABLE = [
    row("clip", "CLIPModel", more=True),
    row("siglip", "SiglipModel"),
    row("siglip2", "Siglip2Model", inputs="patches_and_text"),
    row("altclip", "AltCLIPModel"),
    row("chinese_clip", "ChineseCLIPModel"),
    row(
        "x_clip",
        "XCLIPModel",
        inputs="video_and_text",
        vision_config={
            "num_frames": 2,
            "mit_hidden_size": 32,
            "mit_intermediate_size": 32,
            "mit_num_attention_heads": 2,
            "mit_num_hidden_layers": 1,
        },
        prompt_num_attention_heads=2,
    ),
    row("metaclip_2", "MetaClip2Model"),
    row(
        "align",
        "AlignModel",
        projection_dim=80,
        vision_config={"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 80},
    ),
    row(
        "groupvit",
        "GroupViTModel",
        projection_intermediate_dim=32,
        vision_config={"depths": [1, 1, 1], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 0]},
    ),
    row("owlvit", "OwlViTModel"),
    row("blip", "BlipForConditionalGeneration"),
    row(
        "blip-2",
        "Blip2ForConditionalGeneration",
        inputs="queries_in_text",
        num_query_tokens=4,
        image_token_index=50,
        image_text_hidden_size=16,
    ),
    row("git", "GitForCausalLM", inputs="image_and_text"),
    row("vilt", "ViltModel", max_image_length=-1),
    row("llava", "LlavaForConditionalGeneration", more=True, inputs="image_in_text", vision_config=_CLIP),
    row(
        "vipllava",
        "VipLlavaForConditionalGeneration",
        inputs="image_in_text",
        vision_config=_CLIP,
        vision_feature_layers=[-2, -1],
    ),
    row("paligemma", "PaliGemmaForConditionalGeneration", inputs="image_in_text"),
    row("gemma3", "Gemma3ForConditionalGeneration", inputs="pooled_in_text", mm_tokens_per_image=4),
    row(
        "idefics2",
        "Idefics2ForConditionalGeneration",
        inputs="images_in_text",
        perceiver_config={
            "resampler_n_latents": 4,
            "resampler_depth": 1,
            "resampler_n_heads": 2,
            "resampler_head_dim": 8,
        },
    ),
    row("idefics3", "Idefics3ForConditionalGeneration", inputs="images_in_text"),
    row("smolvlm", "SmolVLMForConditionalGeneration", inputs="images_in_text"),
    row("qwen2_vl", "Qwen2VLForConditionalGeneration", inputs="image_grid_in_text", text_config=_MROPE),
    row(
        "qwen2_5_vl",
        "Qwen2_5_VLForConditionalGeneration",
        inputs="image_grid_in_text",
        text_config=_MROPE,
        vision_config={"out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]},
    ),
    row(
        "qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        inputs="image_grid_in_text",
        text_config={"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}},
        vision_config={"out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    ),
    row(
        "internvl",
        "InternVLForConditionalGeneration",
        inputs="pooled_in_text",
        image_seq_length=4,
        vision_config={"image_size": [16, 16], "patch_size": [4, 4]},
    ),
    row("aya_vision", "AyaVisionForConditionalGeneration", inputs="pooled_in_text"),
    row("mllama", "MllamaForCausalLM", inputs="text"),
    row(
        "qwen2_audio",
        "Qwen2AudioForConditionalGeneration",
        inputs="audio_in_text",
        audio_config={"num_mel_bins": 8, "max_source_positions": 16},
    ),
    row(
        "perceiver",
        "PerceiverForMaskedLM",
        inputs="text_whole",
        max_position_embeddings=8,
        num_latents=4,
        d_latents=32,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
        qk_channels=32,
        v_channels=32,
    ),
]
