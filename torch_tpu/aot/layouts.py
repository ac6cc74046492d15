"""Tensor-parallel layouts of a model, from the plan that the model itself has.

Transformers and Diffusers say of their models which products are split over their outputs ("colwise") and which over
their inputs ("rowwise"), so that one all-reduce follows each pair. The same rules as ``Shardings`` let XLA's
partitioner make the program of every chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_tpu.aot.sharding import Partition, Shardings

AXIS = "tensor"
_OUTPUTS = ("colwise", "colwise_gather_output", "colwise_rep", "embedding_rowwise", "packed_colwise")
_EXPERTS = "grouped_gemm"  # of whole experts, along the first dimension
_INPUTS = ("rowwise", "rowwise_rep", "packed_rowwise")


def tensor_parallel(model: torch.nn.Module, size: int, *, whole_experts: bool = False) -> Shardings:
    """How ``size`` chips hold a model: weights by its plan (those of every expert too), a static cache by heads.

    Args:
      whole_experts: expert parallel: a chip has some of the experts, whole, by the model's plan for that.

    Raises:
      ValueError: the model has no plan, or its sizes are no multiples of ``size``.
    """
    plan = _plan_of(model)
    if not plan:
        raise ValueError(f"{type(model).__name__} has no tensor-parallel plan; give shardings of your own")
    rules: dict[str, Partition] = {}
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    experts = (getattr(model, "ep_plan", None) or {}) if whole_experts else {}
    if whole_experts and not experts:
        raise ValueError(f"{type(model).__name__} has no expert-parallel plan; give shardings of your own")
    for name, shape in shapes.items():
        style = _style(experts, name) or _style(plan, name)
        found = (AXIS, None, None) if style == _EXPERTS else _partition(style, shape)
        if found is not None:
            at = found.index(AXIS)
            if shape[at] % size:
                raise ValueError(f"{name} of shape {list(shape)} cannot be split over {size} chips along {at}")
            rules[name] = found
    heads = _cache_heads(model)
    if heads and heads % size == 0:
        rules |= {"*past_key_values*.keys": (None, AXIS), "*past_key_values*.values": (None, AXIS)}
    split = AXIS if whole_experts else None
    return Shardings({AXIS: size}, rules, optional=tuple(rules), experts=split)  # not every call reads every weight


def _plan_of(model: Any) -> Mapping[str, Any]:
    return getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}


def _style(plan: Mapping[str, Any], name: str) -> str:
    """What a plan says of a parameter; empty for nothing. It names modules, with ``*`` for a number, or parameters."""
    general = ".".join("*" if part.isdigit() else part for part in name.split("."))
    for key, style in plan.items():
        pattern = ".".join("*" if part.isdigit() else part for part in key.split("."))
        if general in (pattern, f"{pattern}.weight", f"{pattern}.bias"):
            return style if isinstance(style, str) else _named(style)
    return ""


def _named(style: Any) -> str:
    """The rule of an object that stands for one: Diffusers has packed layers of its own."""
    kind = type(style).__name__.lower()
    return "packed_rowwise" if "rowwise" in kind else "packed_colwise" if "colwise" in kind else ""


def _partition(style: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
    """A weight is (outputs, inputs), with experts before them."""
    before = (None,) * (len(shape) - 2)
    if style in _OUTPUTS:
        return (AXIS,) if len(shape) == 1 else (*before, AXIS, None)
    if style in _INPUTS and len(shape) > 1:  # a bias is added once, after the sum
        return (*before, None, AXIS)
    return None


def _cache_heads(model: Any) -> int:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        return 0
    text = config.get_text_config(decoder=True)
    return getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", 0)
