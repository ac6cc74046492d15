"""Pipelines of video and of sound."""

from __future__ import annotations

from typing import Any

import diffusers
import pipelines_text as text
import transformers as hf
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from pipelines_case import case, picture
from pipelines_dit import flow
from pipelines_unet import kl_vae

_VIDEO = {"height": 16, "width": 16, "num_frames": 9, "output_type": "np"}
_BOTH = {"prompt": "a red fox in the snow", "negative_prompt": "a red cat in the rain"}
_FRAMES = {"result": "frames"}


def _wan_vae() -> Any:
    return diffusers.AutoencoderKLWan(
        base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )


def _wan_transformer(**more: Any) -> Any:
    sizes = {
        "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 16,
        "out_channels": 16, "text_dim": text.WIDTH, "freq_dim": 64, "ffn_dim": 32, "num_layers": 2,
        "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 32,
    }  # fmt: skip
    return diffusers.WanTransformer3DModel(**{**sizes, **more})


_WAN = {**_BOTH, **_VIDEO, "max_sequence_length": 20}


@case("wan", _WAN, **_FRAMES)
def _wan() -> Any:
    return diffusers.WanPipeline(
        tokenizer=text.tokenizer(512), text_encoder=text.umt5(), vae=_wan_vae(), transformer=_wan_transformer(),
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, num_train_timesteps=1000
        ),
    )  # fmt: skip


@case("wan 2.2 (two transformers)", _WAN, **_FRAMES)
def _wan22() -> Any:
    return diffusers.WanPipeline(
        tokenizer=text.tokenizer(512), text_encoder=text.umt5(), vae=_wan_vae(), transformer=_wan_transformer(),
        transformer_2=_wan_transformer(), boundary_ratio=0.875, scheduler=flow(shift=7.0),
    )  # fmt: skip


@case("wan image to video", {**_WAN, "image": picture(1, 16)}, **_FRAMES)
def _wan_image() -> Any:
    width = text.WIDTH
    return diffusers.WanImageToVideoPipeline(
        tokenizer=text.tokenizer(512), text_encoder=text.umt5(), vae=_wan_vae(), scheduler=flow(shift=3.0),
        transformer=_wan_transformer(in_channels=36, image_dim=width),
        image_encoder=hf.CLIPVisionModelWithProjection(
            hf.CLIPVisionConfig(
                hidden_size=width, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32,
                patch_size=8, projection_dim=width,
            )
        ),
        image_processor=hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32),
    )  # fmt: skip


@case("ltx", {**_BOTH, **_VIDEO, "height": 32, "width": 32, "max_sequence_length": 20}, **_FRAMES)
def _ltx() -> Any:
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=8, cross_attention_dim=16,
        num_layers=2, caption_channels=text.WIDTH,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8, 8, 8, 8), decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1), decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False), decoder_spatio_temporal_scaling=(True, True, False, False),
        patch_size=1, patch_size_t=1, encoder_causal=True, decoder_causal=False,
    )  # fmt: skip
    return diffusers.LTXPipeline(
        scheduler=flow(use_dynamic_shifting=True), vae=vae, text_encoder=text.t5(), tokenizer=text.tokenizer(128),
        transformer=transformer,
    )  # fmt: skip


@case("hunyuan video", {**_VIDEO, "prompt": _BOTH["prompt"], "max_sequence_length": 40}, **_FRAMES)
def _hunyuan_video() -> Any:
    transformer = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, text_embed_dim=text.WIDTH, pooled_projection_dim=text.WIDTH, rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    vae = diffusers.AutoencoderKLHunyuanVideo(
        latent_channels=4, down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4, block_out_channels=(8, 8, 8, 8), layers_per_block=1,
        norm_num_groups=4,
    )  # fmt: skip
    return diffusers.HunyuanVideoPipeline(
        text_encoder=text.llama(), tokenizer=text.tokenizer(1024), transformer=transformer, vae=vae,
        scheduler=flow(shift=7.0), text_encoder_2=text.clip(77), tokenizer_2=text.tokenizer(77),
    )  # fmt: skip


@case("cogvideox", {**_BOTH, **_VIDEO, "max_sequence_length": 20}, **_FRAMES)
def _cogvideox() -> Any:
    transformer = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=text.WIDTH, num_layers=2, sample_width=2, sample_height=2, sample_frames=9, patch_size=2,
        max_text_seq_length=20, use_rotary_positional_embeddings=True,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4, up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2, scaling_factor=4.0,
    )  # fmt: skip
    return diffusers.CogVideoXPipeline(
        tokenizer=text.tokenizer(226), text_encoder=text.t5(), vae=vae, transformer=transformer,
        scheduler=diffusers.CogVideoXDDIMScheduler(),
    )  # fmt: skip


@case("mochi", {**_BOTH, **_VIDEO, "num_frames": 7, "max_sequence_length": 20}, **_FRAMES)
def _mochi() -> Any:
    transformer = diffusers.MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
        in_channels=12, out_channels=None, text_embed_dim=text.WIDTH, time_embed_dim=4, activation_fn="swiglu",
        max_sequence_length=20,
    )  # fmt: skip
    vae = diffusers.AutoencoderKLMochi(
        latent_channels=12, out_channels=3, encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32), layers_per_block=(1, 1, 1, 1, 1),
    )  # fmt: skip
    return diffusers.MochiPipeline(
        scheduler=flow(), vae=vae, text_encoder=text.t5(), tokenizer=text.tokenizer(256), transformer=transformer
    )


@case(
    "animatediff",
    {**_BOTH, "height": 32, "width": 32, "num_frames": 4, "output_type": "np"},
    denoiser="unet",
    **_FRAMES,
)
def _animatediff() -> Any:
    from pipelines_unet import _unet, ddim

    adapter = diffusers.MotionAdapter(
        block_out_channels=(8, 16), motion_layers_per_block=1, motion_norm_num_groups=2, motion_num_attention_heads=2
    )
    return diffusers.AnimateDiffPipeline(
        vae=kl_vae(), text_encoder=text.clip(), tokenizer=text.tokenizer(20), unet=_unet(), motion_adapter=adapter,
        scheduler=ddim(),
    )  # fmt: skip


@case("stable audio", {**_BOTH, "audio_end_in_s": 0.01, "output_type": "pt"}, result="audios")
def _stable_audio() -> Any:
    transformer = diffusers.StableAudioDiTModel(
        sample_size=8, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        num_key_value_attention_heads=1, out_channels=4, cross_attention_dim=16, time_proj_dim=8,
        global_states_input_dim=2 * text.WIDTH, cross_attention_input_dim=text.WIDTH,
    )  # fmt: skip
    vae = diffusers.AutoencoderOobleck(
        encoder_hidden_size=8, downsampling_ratios=[2, 4], channel_multiples=[1, 2], decoder_channels=8,
        decoder_input_channels=4, audio_channels=2, sampling_rate=4000,
    )  # fmt: skip
    return diffusers.StableAudioPipeline(
        vae=vae, text_encoder=text.t5(), tokenizer=text.tokenizer(20), transformer=transformer,
        projection_model=StableAudioProjectionModel(
            text_encoder_dim=text.WIDTH, conditioning_dim=text.WIDTH, min_value=0, max_value=32
        ),
        scheduler=diffusers.EDMDPMSolverMultistepScheduler(
            solver_order=2, prediction_type="v_prediction", sigma_data=1.0, sigma_schedule="exponential"
        ),
    )  # fmt: skip


@case(
    "audioldm2", {**_BOTH, "audio_length_in_s": 0.1, "max_new_tokens": 4, "output_type": "pt"}, denoiser="unet",
    result="audios",
)  # fmt: skip
def _audioldm2() -> Any:
    width = text.WIDTH
    unet = diffusers.AudioLDM2UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, sample_size=16, in_channels=4,
        out_channels=4, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=(None, width, width),
        attention_head_dim=4,
    )  # fmt: skip
    clap = hf.ClapModel(
        hf.ClapConfig(
            text_config={
                "vocab_size": text.VOCABULARY, "hidden_size": width, "intermediate_size": 32, "num_hidden_layers": 2,
                "num_attention_heads": 2, "pad_token_id": 0, "max_position_embeddings": 64, "projection_dim": width,
            },
            audio_config={
                "spec_size": 8, "window_size": 4, "num_mel_bins": 8, "patch_size": 2, "patch_stride": 2,
                "patch_embeds_hidden_size": width, "depths": [1, 1], "num_attention_heads": [2, 2],
                "num_hidden_layers": 2, "hidden_size": 32, "projection_dim": width,
            },
            projection_dim=width,
        )
    )  # fmt: skip
    return diffusers.AudioLDM2Pipeline(
        vae=diffusers.AutoencoderKL(
            block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2, in_channels=1,
            out_channels=1, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, sample_size=16,
        ),
        text_encoder=clap, text_encoder_2=text.t5(),
        projection_model=diffusers.AudioLDM2ProjectionModel(
            text_encoder_dim=width, text_encoder_1_dim=width, langauge_model_dim=width
        ),
        language_model=hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=width, n_layer=2, n_head=2, vocab_size=text.VOCABULARY, n_positions=128)
        ),
        tokenizer=text.roberta_tokenizer(40), tokenizer_2=text.t5_tokenizer(40),
        feature_extractor=hf.ClapFeatureExtractor(
            feature_size=8, hop_length=160, sampling_rate=16000, max_length_s=1
        ),
        unet=unet,
        scheduler=diffusers.DDIMScheduler(
            beta_start=0.0015, beta_end=0.0195, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False
        ),
        vocoder=hf.SpeechT5HifiGan(
            hf.SpeechT5HifiGanConfig(
                model_in_dim=8, sampling_rate=16000, upsample_initial_channel=16, upsample_rates=[2, 2],
                upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3, 7],
                resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5]], normalize_before=False, initializer_range=0.2,
            )
        ),
    )  # fmt: skip
