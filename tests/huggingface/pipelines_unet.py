"""Pipelines around a UNet: Stable Diffusion 1.5 and XL with their relatives, Kandinsky, Stable Cascade."""

from __future__ import annotations

from typing import Any

import diffusers
import pipelines_text as text
from diffusers.pipelines.deprecated.wuerstchen import PaellaVQModel
from pipelines_case import case, mask, picture

_WIDTHS = (8, 16)
_IMAGE = {"height": 32, "width": 32, "output_type": "np"}
_PROMPT = {"prompt": "a red fox in the snow", "negative_prompt": "a red cat in the rain"}


def kl_vae(channels: int = 4, **more: Any) -> diffusers.AutoencoderKL:
    return diffusers.AutoencoderKL(
        block_out_channels=_WIDTHS, norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=channels, sample_size=32, **more,
    )  # fmt: skip


def _unet(channels: int = 4, width: int = text.WIDTH, **more: Any) -> diffusers.UNet2DConditionModel:
    return diffusers.UNet2DConditionModel(
        block_out_channels=_WIDTHS, norm_num_groups=4, layers_per_block=1, sample_size=16, in_channels=channels,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=width, attention_head_dim=4, **more,
    )  # fmt: skip


def ddim() -> diffusers.DDIMScheduler:
    return diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    )  # fmt: skip


def stable_diffusion(kind: Any = diffusers.StableDiffusionPipeline, channels: int = 4, **more: Any) -> Any:
    return kind(
        vae=kl_vae(), text_encoder=text.clip(), tokenizer=text.tokenizer(20), unet=_unet(channels), scheduler=ddim(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False, **more,
    )  # fmt: skip


_SD = {"denoiser": "unet"}
case("stable-diffusion-1.5", {**_PROMPT, **_IMAGE}, **_SD)(stable_diffusion)


@case("sd-1.5 image to image", {**_PROMPT, "image": picture(1), "strength": 0.8, "output_type": "np"}, **_SD)
def _image_to_image() -> Any:
    return stable_diffusion(diffusers.StableDiffusionImg2ImgPipeline)


@case("sd-1.5 inpainting", {**_PROMPT, **_IMAGE, "image": picture(1), "mask_image": mask()}, **_SD)
def _inpaint() -> Any:
    return stable_diffusion(diffusers.StableDiffusionInpaintPipeline, channels=9)


def _controlnet_model(**more: Any) -> diffusers.ControlNetModel:
    return diffusers.ControlNetModel(
        block_out_channels=_WIDTHS, norm_num_groups=4, layers_per_block=1, in_channels=4, attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), conditioning_embedding_out_channels=_WIDTHS, **more,
    )  # fmt: skip


@case("sd-1.5 ControlNet", {**_PROMPT, **_IMAGE, "image": picture(2)}, **_SD)
def _controlnet() -> Any:
    net = _controlnet_model(cross_attention_dim=text.WIDTH)
    return stable_diffusion(diffusers.StableDiffusionControlNetPipeline, controlnet=net)


@case("sd-1.5 IP adapter", {**_PROMPT, **_IMAGE, "ip_adapter_image": picture(3)}, **_SD)
def _adapter() -> Any:
    import torch
    import transformers

    extractor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
    pipe = diffusers.StableDiffusionPipeline(
        vae=kl_vae(), text_encoder=text.clip(), tokenizer=text.tokenizer(20), unet=_unet(), scheduler=ddim(),
        safety_checker=None, feature_extractor=extractor, image_encoder=text.clip_image(),
        requires_safety_checker=False,
    )  # fmt: skip
    weights = {"image_proj": {}, "ip_adapter": {}}
    width, tokens = text.WIDTH, 4
    weights["image_proj"] = {
        "proj.weight": torch.randn(tokens * width, width) * 0.1, "proj.bias": torch.zeros(tokens * width),
        "norm.weight": torch.ones(width), "norm.bias": torch.zeros(width),
    }  # fmt: skip
    key = 1
    for name, processor in pipe.unet.attn_processors.items():
        del processor
        if name.endswith("attn2.processor"):
            for side in ("to_k_ip", "to_v_ip"):
                weights["ip_adapter"][f"{key}.{side}.weight"] = torch.randn(_WIDTHS[-1], width) * 0.1
            key += 2
    pipe.unet._load_ip_adapter_weights([weights])
    pipe.set_ip_adapter_scale(0.7)
    return pipe


def stable_diffusion_xl(kind: Any = diffusers.StableDiffusionXLPipeline, channels: int = 4, **more: Any) -> Any:
    unet = _unet(
        channels, 2 * text.WIDTH, use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=6 * 8 + text.WIDTH,
        transformer_layers_per_block=(1, 2),
    )  # fmt: skip
    scheduler = diffusers.EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="leading", steps_offset=1
    )
    return kind(
        vae=kl_vae(force_upcast=False), text_encoder=text.clip(), text_encoder_2=text.clip_projected(),
        tokenizer=text.tokenizer(20), tokenizer_2=text.tokenizer(20), unet=unet, scheduler=scheduler, **more,
    )  # fmt: skip


case("stable-diffusion-xl", {**_PROMPT, **_IMAGE}, **_SD)(stable_diffusion_xl)


@case("sdxl image to image", {**_PROMPT, "image": picture(1), "strength": 0.8, "output_type": "np"}, **_SD)
def _xl_image_to_image() -> Any:
    return stable_diffusion_xl(diffusers.StableDiffusionXLImg2ImgPipeline)


@case("sdxl inpainting", {**_PROMPT, **_IMAGE, "image": picture(1), "mask_image": mask()}, **_SD)
def _xl_inpaint() -> Any:
    return stable_diffusion_xl(diffusers.StableDiffusionXLInpaintPipeline)


@case("sdxl ControlNet", {**_PROMPT, **_IMAGE, "image": picture(2)}, **_SD)
def _xl_controlnet() -> Any:
    net = _controlnet_model(
        cross_attention_dim=2 * text.WIDTH, use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=6 * 8 + text.WIDTH,
        transformer_layers_per_block=(1, 2),
    )  # fmt: skip
    return stable_diffusion_xl(diffusers.StableDiffusionXLControlNetPipeline, controlnet=net)


@case("latent consistency", {"prompt": "a red fox in the snow", **_IMAGE}, **_SD)
def _latent_consistency() -> Any:
    return diffusers.LatentConsistencyModelPipeline(
        vae=kl_vae(), text_encoder=text.clip(), tokenizer=text.tokenizer(20), unet=_unet(time_cond_proj_dim=8),
        scheduler=diffusers.LCMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def _embeds(seed: int) -> Any:
    import torch

    return torch.randn(1, text.WIDTH, generator=torch.Generator().manual_seed(seed))


@case("kandinsky-2.2 decoder", {**_IMAGE, "image_embeds": _embeds(0), "negative_image_embeds": _embeds(1)}, **_SD)
def _kandinsky() -> Any:
    unet = diffusers.UNet2DConditionModel(
        in_channels=4, out_channels=8, addition_embed_type="image", encoder_hid_dim=text.WIDTH,
        encoder_hid_dim_type="image_proj", cross_attention_dim=8, attention_head_dim=4, block_out_channels=_WIDTHS,
        norm_num_groups=4, layers_per_block=1, resnet_time_scale_shift="scale_shift", class_embed_type=None,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"), sample_size=8,
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
    )  # fmt: skip
    movq = diffusers.VQModel(
        block_out_channels=(32, 64), norm_num_groups=32, layers_per_block=1, num_vq_embeddings=12, vq_embed_dim=4,
        down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"), latent_channels=4,
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"), norm_type="spatial",
    )  # fmt: skip
    movq.decoder.conv_out.weight.data *= 0.2  # an untrained UNet leaves large latents
    scheduler = diffusers.DDPMScheduler(
        beta_start=0.00085, beta_end=0.012, clip_sample=False, thresholding=False, prediction_type="epsilon",
        variance_type="learned_range", beta_schedule="linear",
    )  # fmt: skip
    return diffusers.KandinskyV22Pipeline(unet=unet, scheduler=scheduler, movq=movq)


def _cascade_unet(**more: Any) -> diffusers.StableCascadeUNet:
    return diffusers.StableCascadeUNet(
        conditioning_dim=text.WIDTH, block_out_channels=(16, 16), num_attention_heads=(-1, 2),
        down_num_layers_per_block=(1, 1), up_num_layers_per_block=(1, 1), clip_text_pooled_in_channels=text.WIDTH,
        timestep_ratio_embedding_dim=8, clip_seq=2,
        block_types_per_layer=(
            ("SDCascadeResBlock", "SDCascadeTimestepBlock"),
            ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
        ), **more,
    )  # fmt: skip


@case(
    "stable cascade prior", {**_PROMPT, "height": 128, "width": 128, "output_type": "np"}, denoiser="prior",
    result="image_embeddings", groups="leaf_level",
)  # fmt: skip
def _cascade_prior() -> Any:
    prior = _cascade_unet(
        clip_image_in_channels=text.WIDTH, clip_text_in_channels=text.WIDTH, switch_level=(False,), in_channels=4,
        out_channels=4, dropout=(0.1, 0.1),
    )  # fmt: skip
    return diffusers.StableCascadePriorPipeline(
        tokenizer=text.tokenizer(20), text_encoder=text.clip_projected(), prior=prior, resolution_multiple=42.67,
        scheduler=diffusers.DDPMWuerstchenScheduler(),
    )  # fmt: skip


def _prior_result() -> Any:
    import torch

    return torch.randn(1, 4, 3, 3, generator=torch.Generator().manual_seed(2))


@case(
    "stable cascade decoder", {**_PROMPT, "output_type": "np", "image_embeddings": _prior_result()}, denoiser="decoder",
    groups="leaf_level",
)  # fmt: skip
def _cascade_decoder() -> Any:
    decoder = _cascade_unet(in_channels=4, out_channels=4, effnet_in_channels=4, patch_size=2)
    vqgan = PaellaVQModel(
        embed_dim=8, bottleneck_blocks=1, num_vq_embeddings=16, latent_channels=4, scale_factor=0.003
    )  # fmt: skip
    vqgan.out_block[0].bias.data += 0.5  # an untrained decoder's images are around zero, where they are cut off
    return diffusers.StableCascadeDecoderPipeline(
        decoder=decoder, tokenizer=text.tokenizer(20), text_encoder=text.clip_projected(),
        scheduler=diffusers.DDPMWuerstchenScheduler(), latent_dim_scale=10.67, vqgan=vqgan,
    )  # fmt: skip
