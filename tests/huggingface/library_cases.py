"""Transformers' own tests of every model (``tests/test_modeling_common.py``), on the tiny models of the sweep.

``library_sweep.py`` has pytest collect this file in a folder where the library's ``tests`` can be imported.
"""

from __future__ import annotations

import os
import unittest
from typing import Any

import inputs
import torch
import transformers
from architectures import Architecture, all_architectures
from tests.test_modeling_common import ModelTesterMixin  # pyright: ignore[reportMissingImports]
from transformers.testing_utils import torch_device

_MADE_BY_TESTS = {"attention_mask", "decoder_input_ids", "decoder_attention_mask"}  # from the main input


class _Tester:
    """What the library's tests ask of a model's own file of tests."""

    batch_size = inputs.BATCH
    is_training = True
    num_masks = 1  # of the patches of an image

    def __init__(self, row: Architecture):
        self.row = row
        config = self.get_config()
        text = config.get_text_config()
        self.hidden_size = getattr(text, "hidden_size", 32)
        self.num_hidden_layers = getattr(text, "num_hidden_layers", 2)
        self.num_attention_heads = getattr(text, "num_attention_heads", 4)
        image, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
        if isinstance(image, int) and isinstance(patch, int):
            self.image_size, self.patch_size, self.mask_length = image, patch, (image // patch) ** 2
        tokens, encoded, decoded = self._lengths(config)
        self.seq_length = decoded or tokens or inputs.LENGTH  # that of the labels
        self.encoder_seq_length = encoded or tokens or inputs.LENGTH
        self.decoder_seq_length = decoded or self.seq_length

    def _lengths(self, config: Any) -> list[int | None]:
        """Of the model's, its encoder's and its decoder's sequences: patches of an image, frames of a sound, tokens."""
        model = self.row.model_class(config).eval()
        try:
            with torch.no_grad():
                made = model(**inputs.make(self.row.inputs, config), output_hidden_states=True)
        except (TypeError, ValueError):  # without hidden states
            made = None
        states = [getattr(made, f"{of}hidden_states", None) for of in ("", "encoder_", "decoder_")]
        return [s[0].shape[1] if isinstance(s, (tuple, list)) and s and s[0].ndim == 3 else None for s in states]

    def get_config(self) -> Any:
        return self.row.make_config()

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        config = self.get_config()
        given = inputs.make(self.row.inputs, config)
        return config, {k: v.to(torch_device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def _besides_main(row: Architecture, config: Any) -> tuple[str, ...]:
    """The inputs that a model cannot do without, besides its main one."""
    given, main = inputs.make(row.inputs, config), row.model_class.main_input_name
    try:
        with torch.no_grad():
            row.model_class(config).eval()(**{main: given[main]})
    except Exception:  # whatever the model says of what it misses
        return tuple(k for k, v in given.items() if isinstance(v, torch.Tensor) and k not in _MADE_BY_TESTS | {main})
    return ()


def _case(row: Architecture) -> type[unittest.TestCase]:
    base = transformers.MODEL_MAPPING.get(row.model_class.config_class, None)
    config = row.make_config()

    class Case(ModelTesterMixin, unittest.TestCase):  # noqa: F821
        all_model_classes = tuple(dict.fromkeys(c for c in (base, row.model_class) if isinstance(c, type)))
        is_encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
        test_resize_embeddings = hasattr(config.get_text_config(), "vocab_size")
        additional_model_inputs = _besides_main(row, config)

        def setUp(self) -> None:
            self.model_tester = _Tester(row)

    Case.__name__ = Case.__qualname__ = "TestModel"
    return Case


TestModel = _case(all_architectures()[os.environ["SWEEP_MODEL"]])
del ModelTesterMixin  # pytest would collect it
