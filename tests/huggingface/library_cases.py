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


class _Tester:
    """What the library's tests ask of a model's own file of tests."""

    batch_size = inputs.BATCH
    seq_length = encoder_seq_length = 8
    decoder_seq_length = 6
    is_training = True

    def __init__(self, row: Architecture):
        self.row = row
        config = self.get_config().get_text_config()
        self.hidden_size = getattr(config, "hidden_size", 32)
        self.num_hidden_layers = getattr(config, "num_hidden_layers", 2)
        self.num_attention_heads = getattr(config, "num_attention_heads", 4)

    def get_config(self) -> Any:
        return self.row.make_config()

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        config = self.get_config()
        given = inputs.make(self.row.inputs, config)
        return config, {k: v.to(torch_device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def _case(row: Architecture) -> type[unittest.TestCase]:
    base = transformers.MODEL_MAPPING.get(row.model_class.config_class, None)

    class Case(ModelTesterMixin, unittest.TestCase):  # noqa: F821
        all_model_classes = tuple(dict.fromkeys(c for c in (base, row.model_class) if isinstance(c, type)))
        is_encoder_decoder = row.inputs == "encoder_decoder"

        def setUp(self) -> None:
            self.model_tester = _Tester(row)

    Case.__name__ = Case.__qualname__ = "TestModel"
    return Case


TestModel = _case(all_architectures()[os.environ["SWEEP_MODEL"]])
del ModelTesterMixin  # pytest would collect it
