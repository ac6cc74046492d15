"""``transformers.pipeline(device="tpu")``: tasks of text, images and sound give CPU's answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pipelines_text as text
import pytest
import torch
import transformers as hf
from pipelines_case import picture


@pytest.fixture(autouse=True)
def no_fallback() -> Iterator[None]:
    hf.logging.set_verbosity_error()
    before = torch.tpu.fallback_counts()
    yield
    assert torch.tpu.fallback_counts() == before


_SIZES: dict[str, Any] = {
    "vocab_size": text.VOCABULARY + 1, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "pad_token_id": 0, "max_position_embeddings": 128,
}  # fmt: skip
_BERT = hf.BertConfig(**_SIZES, num_labels=3, label2id={"entailment": 0, "neutral": 1, "contradiction": 2})
_VIT = hf.ViTConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
    num_labels=3,
)  # fmt: skip
_WAV2VEC = hf.Wav2Vec2Config(
    vocab_size=text.VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=2, num_labels=3, feat_extract_norm="group", classifier_proj_size=16, pad_token_id=0,
)  # fmt: skip
_DPT = hf.DPTConfig(
    hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
    backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, is_hybrid=False,
)  # fmt: skip
_CLIP = hf.CLIPConfig(
    text_config={**_SIZES, "eos_token_id": text.EOS},
    vision_config={
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32,
        "patch_size": 8,
    },
    projection_dim=16,
)  # fmt: skip
_tokens = functools.partial(text.tokenizer, 64, mask_token="<mask>")
_pixels = functools.partial(hf.ViTImageProcessorPil, size={"height": 32, "width": 32})
_depth_pixels = functools.partial(hf.DPTImageProcessorPil, size={"height": 32, "width": 32})
_SOUND = numpy.sin(numpy.arange(4000) / 7).astype(numpy.float32)


def _llama() -> Any:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_SIZES))


Task = tuple[Callable[[], Any], dict[str, Callable[[], Any]], Any, dict[str, Any]]
TASKS: dict[str, Task] = {
    "text-generation": (
        _llama, {"tokenizer": _tokens}, ["a red fox", "the snow is deep"],
        {"max_new_tokens": 8, "do_sample": False, "batch_size": 2},
    ),
    "fill-mask": (lambda: hf.BertForMaskedLM(_BERT), {"tokenizer": _tokens}, "a red <mask> here", {"top_k": 3}),
    "text-classification": (
        lambda: hf.BertForSequenceClassification(_BERT), {"tokenizer": _tokens}, ["a fox", "deep snow"],
        {"top_k": None},
    ),
    "token-classification": (
        lambda: hf.BertForTokenClassification(_BERT), {"tokenizer": _tokens}, "a fox", {"ignore_labels": []},
    ),
    "zero-shot-classification": (
        lambda: hf.BertForSequenceClassification(_BERT), {"tokenizer": _tokens}, "a fox",
        {"candidate_labels": ["animal", "weather"]},
    ),
    "feature-extraction": (lambda: hf.BertModel(_BERT), {"tokenizer": _tokens}, "a fox", {}),
    "image-classification": (
        lambda: hf.ViTForImageClassification(_VIT), {"image_processor": _pixels}, picture(1), {"top_k": 3},
    ),
    "image-feature-extraction": (lambda: hf.ViTModel(_VIT), {"image_processor": _pixels}, picture(1), {}),
    "depth-estimation": (lambda: hf.DPTForDepthEstimation(_DPT), {"image_processor": _depth_pixels}, picture(1), {}),
    "zero-shot-image-classification": (
        lambda: hf.CLIPModel(_CLIP), {"tokenizer": _tokens, "image_processor": _pixels}, picture(1),
        {"candidate_labels": ["fox", "snow"]},
    ),
    "automatic-speech-recognition": (
        lambda: hf.Wav2Vec2ForCTC(_WAV2VEC), {"tokenizer": _tokens, "feature_extractor": hf.Wav2Vec2FeatureExtractor},
        _SOUND, {},
    ),
    "audio-classification": (
        lambda: hf.Wav2Vec2ForSequenceClassification(_WAV2VEC), {"feature_extractor": hf.Wav2Vec2FeatureExtractor},
        _SOUND, {"top_k": 3},
    ),
}  # fmt: skip


def _equal(got: Any, expected: Any) -> None:
    """The same answer: words alike, numbers within 1e-4."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            _equal(got[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for g, e in zip(got, expected):
            _equal(g, e)
    elif isinstance(expected, float | torch.Tensor | numpy.ndarray | numpy.floating):
        torch.testing.assert_close(torch.as_tensor(got).cpu(), torch.as_tensor(expected), rtol=1e-4, atol=1e-4)
    elif hasattr(expected, "getdata"):
        numpy.testing.assert_allclose(numpy.asarray(got, float), numpy.asarray(expected, float), atol=1)
    else:
        assert got == expected


_ALWAYS = ["text-generation", "fill-mask", "image-classification", "automatic-speech-recognition"]


@pytest.mark.parametrize("task", [t if t in _ALWAYS else pytest.param(t, marks=pytest.mark.more) for t in TASKS])
def test_a_pipeline_answers_as_on_cpu(task):
    make, parts, inputs, options = TASKS[task]
    answers = {}
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        pipe = hf.pipeline(task, model=make().eval(), **{k: v() for k, v in parts.items()}, device=device)
        assert pipe.device.type == pipe.model.device.type == device
        answers[device] = pipe(inputs, **options)
    _equal(answers["tpu"], answers["cpu"])


def test_device_map_auto_is_the_device(tmp_path):
    hf.BertModel(_BERT).save_pretrained(tmp_path)
    _tokens().save_pretrained(tmp_path)
    pipe = hf.pipeline("feature-extraction", model=str(tmp_path), device_map="auto")
    assert pipe.device.type == pipe.model.device.type == "tpu"
    assert len(pipe("a fox")[0]) == 6


def test_quantization_that_needs_another_library_is_refused_by_name(tmp_path):
    """What bitsandbytes and its like do with kernels of their own: an error that says what is missing, no crash."""
    _llama().save_pretrained(tmp_path)
    for config, name in (
        (hf.BitsAndBytesConfig(load_in_4bit=True), "bitsandbytes"),
        (hf.GPTQConfig(bits=4), "gptqmodel|optimum"),
        (hf.EetqConfig(), "EETQ"),
        (hf.FbgemmFp8Config(), "fbgemm|CUDA|GPU"),
    ):
        with pytest.raises((ImportError, RuntimeError, ValueError), match=name):
            hf.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config, device_map="tpu")
