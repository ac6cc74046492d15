"""What one line of the pipeline sweep is, and the table that the files of cases fill."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import diffusers
import numpy
import PIL.Image
import torch


@dataclasses.dataclass(frozen=True)
class Case:
    """A pipeline with tiny random components.

    ``make`` builds it on the CPU under a fixed seed; ``call`` are arguments besides the generator; ``denoiser`` names
    the component that runs once a step (empty: none that PEFT or ``compile`` is asked of); ``result`` names the output.
    """

    name: str
    make: Callable[[], diffusers.DiffusionPipeline]
    call: dict[str, Any]
    denoiser: str = "transformer"
    result: str = "images"
    lora: tuple[str, ...] = ("to_q", "to_k", "to_v")
    steps: int = 4
    groups: str = "block_level"  # of group offloading; "leaf_level" where blocks are called piece by piece
    tiled: dict[str, Any] = dataclasses.field(default_factory=dict)  # arguments of the VAE's enable_tiling


CASES: dict[str, Case] = {}


def case(name: str, call: dict[str, Any], **more: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Adds the function that builds a pipeline to the table."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        if name in CASES:
            raise ValueError(f"two cases are named {name}")
        CASES[name] = Case(name, make, call, **more)
        return make

    return add


def build(case: Case) -> diffusers.DiffusionPipeline:
    """The pipeline of a case, the same at each call, with no parameter that leaves a part of it without effect."""
    torch.manual_seed(0)
    pipe = case.make()
    with torch.no_grad():
        for component in pipe.components.values():
            for p in component.parameters() if isinstance(component, torch.nn.Module) else ():
                if p.numel() > 1 and p.is_floating_point() and float(p.std()) == 0:
                    p.add_(torch.randn_like(p), alpha=0.05)
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(seed: int, size: int = 32) -> PIL.Image.Image:
    random = numpy.random.default_rng(seed)
    coarse = PIL.Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=numpy.uint8))
    return coarse.resize((size, size), PIL.Image.Resampling.BICUBIC)


def mask(size: int = 32) -> PIL.Image.Image:
    half = numpy.zeros((size, size), numpy.uint8)
    half[:, size // 2 :] = 255
    return PIL.Image.fromarray(half)
