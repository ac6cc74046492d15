"""Inputs of the models of the sweep, by kind, on CPU. They depend on the configuration and a seed only."""

from __future__ import annotations

from typing import Any

import torch
from shrink import LENGTH

BATCH = 2
_ORDINARY = 40  # ids below have no special meaning, see shrink.py


def make(name: str, config: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    return globals()[name](config)


def ids(length: int = LENGTH, batch: int = BATCH) -> torch.Tensor:
    return torch.randint(3, _ORDINARY, (batch, length))


def text(config: Any) -> dict[str, Any]:
    tokens = ids()
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def text_alone(config: Any) -> dict[str, Any]:
    return {"input_ids": ids()}


def encoder_decoder(config: Any) -> dict[str, Any]:
    return {**text(config), "decoder_input_ids": ids(6)}


def image(config: Any) -> dict[str, Any]:
    size = getattr(config, "image_size", None) or 16
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return {"pixel_values": torch.randn(BATCH, getattr(config, "num_channels", 3), height, width)}


def image32(config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


def image64(config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64)}


def image_and_text(config: Any) -> dict[str, Any]:
    """CLIP and its kin: an image tower beside a text tower."""
    size = getattr(config, "vision_config", config).image_size
    return {**text(config), "pixel_values": torch.randn(BATCH, 3, size, size)}


def waveform(config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 640)}


def masked_image(config: Any) -> dict[str, Any]:
    return {**image(config), "noise": torch.rand(BATCH, (config.image_size // config.patch_size) ** 2)}


def video(config: Any) -> dict[str, Any]:
    return {"pixel_values": torch.randn(BATCH, config.num_frames, 3, config.image_size, config.image_size)}


def sam(config: Any) -> dict[str, Any]:
    size = config.vision_config.image_size
    return {"pixel_values": torch.randn(BATCH, 3, size, size), "input_points": torch.rand(BATCH, 1, 2, 2) * size}


def spectrogram(config: Any) -> dict[str, Any]:
    """Log-mel features laid out [batch, mels, frames]."""
    return {"input_features": torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions)}


def frames(config: Any) -> dict[str, Any]:
    """Features laid out [batch, frames, features]."""
    width = getattr(config, "feature_projection_input_dim", None) or config.num_mel_bins
    return {"input_features": torch.randn(BATCH, 24, width)}


def speech_to_text(config: Any) -> dict[str, Any]:
    return {**spectrogram(config), "decoder_input_ids": ids(6)}


def frames_to_text(config: Any) -> dict[str, Any]:
    width = getattr(config, "input_feat_per_channel", None) or config.num_mel_bins
    return {"input_features": torch.randn(BATCH, 24, width), "decoder_input_ids": ids(6)}


def waveform_to_text(config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 2000), "decoder_input_ids": ids(6)}


def channel_waveform(config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, 1, 640)}


def filter_bank(config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(BATCH, config.max_length, config.num_mel_bins)}


def codes(config: Any) -> dict[str, Any]:
    return {"input_ids": ids(batch=BATCH * config.num_codebooks)}


def encoder_frames(config: Any) -> dict[str, Any]:
    return {"input_features": torch.randn(BATCH, 24, config.encoder_config.num_mel_bins)}


def speecht5(config: Any) -> dict[str, Any]:
    return {
        "input_ids": ids(),
        "decoder_input_values": torch.randn(BATCH, 6, config.num_mel_bins),
        "speaker_embeddings": torch.randn(BATCH, config.speaker_embedding_dim),
    }


def text_whole(config: Any) -> dict[str, Any]:
    return {"inputs": ids(config.max_position_embeddings)}


def video_and_text(config: Any) -> dict[str, Any]:
    vision = config.vision_config
    shape = (BATCH, vision.num_frames, 3, vision.image_size, vision.image_size)
    return {**text(config), "pixel_values": torch.randn(shape)}


def patches_and_text(config: Any) -> dict[str, Any]:
    """Images cut into patches that are not all of one size: NaFlex."""
    vision = config.vision_config
    width, count = vision.num_channels * vision.patch_size**2, 8
    return {
        "input_ids": ids(),
        "pixel_values": torch.randn(BATCH, count, width),
        "pixel_attention_mask": torch.tensor([[1] * 8, [1] * 6 + [0] * 2]),
        "spatial_shapes": torch.tensor([[2, 4], [3, 2]]),
    }


def image_in_text(config: Any) -> dict[str, Any]:
    """An image whose place in the text is marked by as many special tokens as it makes features."""
    size, patch = _side(config.vision_config.image_size), _side(config.vision_config.patch_size)
    return _image_in_text(config, (size // patch) ** 2)


def pooled_in_text(config: Any) -> dict[str, Any]:
    """As above, of models that make one feature of four patches."""
    size, patch = _side(config.vision_config.image_size), _side(config.vision_config.patch_size)
    return _image_in_text(config, (size // patch) ** 2 // 4)


def queries_in_text(config: Any) -> dict[str, Any]:
    """As above, of models that ask the image a fixed number of questions."""
    return _image_in_text(config, config.num_query_tokens)


def images_in_text(config: Any) -> dict[str, Any]:
    """As above, of models whose batch has several images a text."""
    vision = config.vision_config
    scale = getattr(config, "scale_factor", None)
    latents = getattr(getattr(config, "perceiver_config", None), "resampler_n_latents", 0)
    count = latents or (vision.image_size // vision.patch_size // scale) ** 2
    given = _image_in_text(config, count)
    return {**given, "pixel_values": given["pixel_values"][:, None]}


def image_grid_in_text(config: Any) -> dict[str, Any]:
    """As above, of Qwen: patches in one row, with the grid that they come from."""
    vision = config.vision_config
    channels = getattr(vision, "in_channels", 3)
    grid, merged = 4, (4 // vision.spatial_merge_size) ** 2
    given = _image_in_text(config, merged, start=[config.vision_start_token_id])
    width = channels * vision.temporal_patch_size * vision.patch_size**2
    given["pixel_values"] = torch.randn(BATCH * grid * grid, width)
    given["image_grid_thw"] = torch.tensor([[1, grid, grid]] * BATCH)
    given["mm_token_type_ids"] = (given["input_ids"] == config.image_token_id).int()
    return given


def audio_in_text(config: Any) -> dict[str, Any]:
    audio = config.audio_config
    length = 2 * audio.max_source_positions
    count = ((length - 1) // 2 + 1 - 2) // 2 + 1
    tokens = torch.cat([ids(2), torch.full((BATCH, count), config.audio_token_id), ids(4)], 1)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "input_features": torch.randn(BATCH, audio.num_mel_bins, length),
        "feature_attention_mask": torch.ones(BATCH, length, dtype=torch.long),
    }


def _side(size: Any) -> int:
    return size[0] if isinstance(size, (list, tuple)) else size


def _image_in_text(config: Any, count: int, start: list[int] | None = None) -> dict[str, Any]:
    mark = getattr(config, "image_token_id", None) or config.image_token_index
    first = torch.tensor([start or []] * BATCH, dtype=torch.long)
    tokens = torch.cat([ids(2), first, torch.full((BATCH, count), mark), ids(4)], 1)
    size = _side(getattr(config.vision_config, "image_size", 16))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(BATCH, 3, size, size),
    }
