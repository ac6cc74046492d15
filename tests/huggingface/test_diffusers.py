"""The part of the pipeline sweep that is always run, and that its comparison sees faults."""

from __future__ import annotations

import diffusers
import pytest
import torch
from pipelines_all import CASES
from pipelines_checks import CHECKS, TOLERANCE, Different, Times, expect
from pipelines_schedulers import SCHEDULERS, compare_scheduler

diffusers.utils.logging.set_verbosity_error()
_CELLS = {
    "stable-diffusion-1.5": ["eager", "compiled", "tiling", "sequential offload", "lora"],
    "flux": ["compiled", "group offload"],
}
_SCHEDULERS = [
    "DDIMScheduler", "EulerAncestralDiscreteScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler",
    "FlowMatchEulerDiscreteScheduler", "PNDMScheduler", "DPMSolverSDEScheduler", "AmusedScheduler", "RePaintScheduler",
]  # fmt: skip


@pytest.mark.parametrize(("name", "check"), [(n, c) for n, of in _CELLS.items() for c in of])
def test_a_pipeline_is_cpu_s(name: str, check: str) -> None:
    fallbacks = torch.tpu.fallback_counts()
    CHECKS[check](CASES[name], Times())
    assert torch.tpu.fallback_counts() == fallbacks


@pytest.mark.parametrize("name", _SCHEDULERS)
def test_a_scheduler_is_cpu_s(name: str) -> None:
    fallbacks = torch.tpu.fallback_counts()
    compare_scheduler(name)
    assert torch.tpu.fallback_counts() == fallbacks


def test_the_tables_name_what_the_sweep_must_have() -> None:
    kinds = (
        "stable-diffusion-1.5 stable-diffusion-xl stable-diffusion-3 flux flux2 qwen-image sana pixart wan ltx hunyuan "
        "cogvideox auraflow z-image cascade kandinsky audio ControlNet image-to-image inpainting"
    ).replace("image-to-image", "image to image")
    for kind in ("image to image", *kinds.replace("image to image", "").split()):
        assert any(kind in name for name in CASES), kind
    assert len(SCHEDULERS) > 50


def test_a_wrong_image_is_seen() -> None:
    case, image = CASES["flux"], torch.rand(1, 8, 8, 3)
    expect(case, image, image + 0.5 * TOLERANCE)
    with pytest.raises(Different, match="differs by"):
        expect(case, image, image + 2 * TOLERANCE * (torch.arange(192).view(1, 8, 8, 3) == 77))
    with pytest.raises(Different, match="shape"):
        expect(case, image, image[:, :4])


def test_a_generator_of_the_device_draws_the_same_images_again() -> None:
    from pipelines_case import build

    pipe = build(CASES["stable-diffusion-1.5"]).to("tpu")
    arguments = {**CASES["stable-diffusion-1.5"].call, "num_inference_steps": 2}
    images = [
        torch.as_tensor(pipe(**arguments, generator=torch.Generator("tpu").manual_seed(seed)).images)
        for seed in (1, 1, 2)
    ]
    assert torch.equal(images[0], images[1])
    assert not torch.allclose(images[0], images[2], atol=0.01)
