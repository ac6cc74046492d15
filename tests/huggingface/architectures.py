"""The architectures that the sweep runs: name, configuration class, model class and what they need besides the rule."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import shrink
import torch
import transformers


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A row of the tables.

    Args:
      kind: decoder, encoder, encoder-decoder, mixture, state-space, vision, audio or multimodal.
      model: the model's class; the configuration's is the model's own.
      config: overrides of ``shrink.tiny``.
      inputs: names a function of ``inputs.py``.
      more: also runs the checks of one architecture a kind.
    """

    name: str
    kind: str
    model: str
    inputs: str = "text"
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    more: bool = False

    @property
    def model_class(self) -> Any:
        return getattr(transformers, self.model)

    def make_config(self) -> Any:
        return shrink.tiny(self.model_class.config_class, **self.config)

    def make(self, **config: Any) -> torch.nn.Module:
        """The model on CPU in float32, with the same weights whenever it is asked for."""
        torch.manual_seed(0)
        made = self.make_config()
        for key, value in config.items():
            setattr(made, key, value)
        model = self.model_class(made).eval()
        with torch.no_grad():
            for p in model.parameters():
                if p.ndim > 1 and not bool(p.any()):  # a router's, say: all its choices would be ties
                    p.normal_(std=0.5)
        return model


def rows(kind: str, default_inputs: str) -> Callable[..., Architecture]:
    """``row(name, model, **config)`` of a table: the architectures of one kind, and what most of them are given."""

    def row(
        name: str, model: str, *, more: bool = False, inputs: str = default_inputs, **config: object
    ) -> Architecture:
        return Architecture(name, kind, model, inputs, config, more)

    return row


_TABLES = ["decoders", "encoders", "encoder_decoders", "mixtures", "state_space", "vision", "audio", "multimodal"]


def all_architectures() -> dict[str, Architecture]:
    """By name, in the order of the tables."""
    found: dict[str, Architecture] = {}
    for table in _TABLES:
        for row in importlib.import_module(f"models_{table}").TABLE:
            if row.name in found:
                raise ValueError(f"two architectures are named {row.name}")
            found[row.name] = row
    return found
