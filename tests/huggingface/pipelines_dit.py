"""Image pipelines around a diffusion transformer."""

from __future__ import annotations

from typing import Any

import diffusers
import pipelines_text as text
from pipelines_case import case, mask, picture
from pipelines_unet import kl_vae

_IMAGE = {"height": 32, "width": 32, "output_type": "np"}
_PROMPT = {"prompt": "a red fox in the snow"}
_BOTH = {**_PROMPT, "negative_prompt": "a red cat in the rain"}


def flow(**more: Any) -> diffusers.FlowMatchEulerDiscreteScheduler:
    return diffusers.FlowMatchEulerDiscreteScheduler(**more)


def _sd3(kind: Any = diffusers.StableDiffusion3Pipeline, **more: Any) -> Any:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=2 * text.WIDTH, caption_projection_dim=16, pooled_projection_dim=2 * text.WIDTH,
        out_channels=4, pos_embed_max_size=16, qk_norm="rms_norm", dual_attention_layers=(0,),
    )  # fmt: skip
    return kind(
        transformer=transformer, scheduler=flow(shift=3.0),
        vae=kl_vae(shift_factor=0.06, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=text.clip_projected(), tokenizer=text.tokenizer(20), text_encoder_2=text.clip_projected(),
        tokenizer_2=text.tokenizer(20), text_encoder_3=_wide_t5(), tokenizer_3=text.tokenizer(20), **more,
    )  # fmt: skip


def _wide_t5() -> Any:
    import transformers

    config = transformers.T5Config(
        vocab_size=text.VOCABULARY, d_model=2 * text.WIDTH, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0
    )
    return transformers.T5EncoderModel(config)


case("stable-diffusion-3", {**_BOTH, **_IMAGE, "max_sequence_length": 20})(_sd3)


@case("sd3 image to image", {**_BOTH, **_IMAGE, "max_sequence_length": 20, "image": picture(1), "strength": 0.8})
def _sd3_image_to_image() -> Any:
    return _sd3(diffusers.StableDiffusion3Img2ImgPipeline)


def _flux(kind: Any = diffusers.FluxPipeline, channels: int = 16, **more: Any) -> Any:
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=channels, out_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=text.WIDTH, pooled_projection_dim=text.WIDTH,
        guidance_embeds=True, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return kind(
        transformer=transformer, scheduler=flow(use_dynamic_shifting=True), text_encoder=text.clip(),
        vae=kl_vae(shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
        tokenizer=text.tokenizer(20), text_encoder_2=text.t5(), tokenizer_2=text.tokenizer(20), **more,
    )  # fmt: skip


_FLUX = {**_PROMPT, **_IMAGE, "max_sequence_length": 20}
case("flux", _FLUX)(_flux)


@case("flux image to image", {**_FLUX, "image": picture(1), "strength": 0.8})
def _flux_image_to_image() -> Any:
    return _flux(diffusers.FluxImg2ImgPipeline)


@case("flux inpainting", {**_FLUX, "image": picture(1), "mask_image": mask(), "strength": 0.8})
def _flux_inpaint() -> Any:
    return _flux(diffusers.FluxInpaintPipeline)


@case("flux control", {**_FLUX, "control_image": picture(2)})
def _flux_control() -> Any:
    return _flux(diffusers.FluxControlPipeline, channels=32)


@case("flux ControlNet", {**_FLUX, "control_image": picture(2), "controlnet_conditioning_scale": 0.6})
def _flux_controlnet() -> Any:
    net = diffusers.FluxControlNetModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=text.WIDTH, pooled_projection_dim=text.WIDTH, guidance_embeds=True,
        axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    return _flux(diffusers.FluxControlNetPipeline, controlnet=net)


def flux2_vae() -> Any:
    return diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, sample_size=32, layers_per_block=1,
    )  # fmt: skip


def _flux2_transformer(layers: int, guidance: bool) -> Any:
    return diffusers.Flux2Transformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=layers * text.WIDTH, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance,
    )  # fmt: skip


_FLUX2_LAYERS = ("to_q", "to_k", "to_v", "to_qkv_mlp_proj")
_FLUX2 = {**_FLUX, "max_sequence_length": 64, "text_encoder_out_layers": (1, 2, 3)}


@case("flux2 klein", _FLUX2, lora=_FLUX2_LAYERS)
def _flux2_klein() -> Any:
    return diffusers.Flux2KleinPipeline(
        scheduler=flow(use_dynamic_shifting=True), vae=flux2_vae(), text_encoder=text.qwen3(), is_distilled=False,
        tokenizer=text.tokenizer(512), transformer=_flux2_transformer(3, False),
    )  # fmt: skip


@case("flux2 klein with an image", {**_FLUX2, "image": picture(1, 64)}, lora=_FLUX2_LAYERS)
def _flux2_klein_edit() -> Any:
    return _flux2_klein()


@case("flux2", _FLUX2, lora=_FLUX2_LAYERS)
def _flux2() -> Any:
    return diffusers.Flux2Pipeline(
        scheduler=flow(use_dynamic_shifting=True), vae=flux2_vae(), text_encoder=text.mistral3(),
        tokenizer=text.tokenizer(512), transformer=_flux2_transformer(3, True),
    )  # fmt: skip


@case("qwen-image", {**_BOTH, **_IMAGE, "true_cfg_scale": 2.0, "max_sequence_length": 40})
def _qwen_image() -> Any:
    channels = 4
    transformer = diffusers.QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=channels, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=text.WIDTH, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    vae = diffusers.AutoencoderKLQwenImage(
        base_dim=8, z_dim=channels, dim_mult=[1, 2, 4], num_res_blocks=1, temperal_downsample=[False, True],
        latents_mean=[0.0] * channels, latents_std=[1.0] * channels,
    )  # fmt: skip
    return diffusers.QwenImagePipeline(
        scheduler=flow(use_dynamic_shifting=True), vae=vae, text_encoder=text.qwen2_5_vl(),
        tokenizer=text.tokenizer(1024), transformer=transformer,
    )  # fmt: skip


def _dc() -> Any:
    return diffusers.AutoencoderDC(
        latent_channels=4, attention_head_dim=2, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8), encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1), decoder_layers_per_block=[1, 1], downsample_block_type="conv",
        upsample_block_type="interpolate", decoder_norm_types="rms_norm", decoder_act_fns="silu",
        scaling_factor=0.41407,
    )  # fmt: skip


_SANA = {
    **_BOTH,
    **_IMAGE,
    "max_sequence_length": 20,
    "use_resolution_binning": False,
    "complex_human_instruction": None,
}


@case("sana", _SANA)
def _sana() -> Any:
    transformer = diffusers.SanaTransformer2DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=text.WIDTH,
        sample_size=16,
    )  # fmt: skip
    return diffusers.SanaPipeline(
        tokenizer=text.tokenizer(20), text_encoder=text.gemma2(), vae=_dc(), transformer=transformer,
        scheduler=flow(shift=7.0),
    )  # fmt: skip


_PIXART = {**_BOTH, **_IMAGE, "max_sequence_length": 20, "use_resolution_binning": False, "clean_caption": False}


def _pixart(kind: Any, **more: Any) -> Any:
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=16, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, cross_attention_dim=16, caption_channels=text.WIDTH, norm_type="ada_norm_single",
        num_embeds_ada_norm=1000, **more,
    )  # fmt: skip
    return kind(
        tokenizer=text.tokenizer(20), text_encoder=text.t5(), vae=kl_vae(), transformer=transformer,
        scheduler=diffusers.DPMSolverMultistepScheduler(),
    )  # fmt: skip


@case("pixart alpha", _PIXART)
def _pixart_alpha() -> Any:
    return _pixart(diffusers.PixArtAlphaPipeline, use_additional_conditions=False)


@case("pixart sigma", _PIXART)
def _pixart_sigma() -> Any:
    return _pixart(diffusers.PixArtSigmaPipeline, use_additional_conditions=False)


@case(
    "auraflow",
    {**_BOTH, **_IMAGE, "max_sequence_length": 20},
    lora=("to_q", "to_k", "to_v", "linear_1", "out_projection"),
)
def _auraflow() -> Any:
    transformer = diffusers.AuraFlowTransformer2DModel(
        sample_size=16, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=text.WIDTH, caption_projection_dim=16, pos_embed_max_size=64,
    )  # fmt: skip
    return diffusers.AuraFlowPipeline(
        tokenizer=text.tokenizer(20), text_encoder=text.umt5(), vae=kl_vae(), transformer=transformer,
        scheduler=flow(shift=1.73),
    )  # fmt: skip


@case("z-image", {**_BOTH, **_IMAGE, "max_sequence_length": 40}, lora=("to_q", "to_k", "to_v"))
def _z_image() -> Any:
    transformer = diffusers.ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=text.WIDTH,
        axes_dims=[8, 4, 4], axes_lens=[256, 32, 32],
    )  # fmt: skip
    return diffusers.ZImagePipeline(
        scheduler=flow(shift=3.0), vae=kl_vae(shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=text.qwen3_base(), tokenizer=text.tokenizer(512), transformer=transformer,
    )  # fmt: skip


@case("lumina2", {**_BOTH, **_IMAGE, "max_sequence_length": 40})
def _lumina2() -> Any:
    transformer = diffusers.Lumina2Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, hidden_size=16, num_layers=2, num_refiner_layers=1,
        num_attention_heads=2, num_kv_heads=1, multiple_of=16, axes_dim_rope=(4, 2, 2), axes_lens=(128, 32, 32),
        cap_feat_dim=text.WIDTH, scaling_factor=1.0,
    )  # fmt: skip
    return diffusers.Lumina2Pipeline(
        transformer=transformer, scheduler=flow(), vae=kl_vae(shift_factor=0.1), text_encoder=text.gemma2(),
        tokenizer=text.tokenizer(256),
    )  # fmt: skip


@case("chroma", {**_BOTH, **_IMAGE, "max_sequence_length": 20})
def _chroma() -> Any:
    transformer = diffusers.ChromaTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=text.WIDTH, axes_dims_rope=(4, 4, 8), approximator_hidden_dim=32, approximator_layers=1,
        approximator_num_channels=16,
    )  # fmt: skip
    return diffusers.ChromaPipeline(
        transformer=transformer, scheduler=flow(), text_encoder=text.t5(), tokenizer=text.tokenizer(20),
        vae=kl_vae(shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
    )  # fmt: skip


@case("class-conditional DiT", {"class_labels": [3, 5], "output_type": "np", "guidance_scale": 2.0})
def _dit() -> Any:
    transformer = diffusers.DiTTransformer2DModel(
        sample_size=16, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, num_embeds_ada_norm=1000,
    )  # fmt: skip
    return diffusers.DiTPipeline(transformer=transformer, vae=kl_vae(), scheduler=diffusers.DDIMScheduler())
