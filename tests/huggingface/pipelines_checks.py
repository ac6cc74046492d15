"""The checks of the pipeline sweep: the same pipeline with the same weights and seeds on CPU and on the device.

A check raises ``Different`` where the device is wrong and ``Skipped`` where the pipeline has no such thing, or CPU
itself cannot do what is asked.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import accelerate
import diffusers
import numpy
import torch
from pipelines_case import Case, build

TOLERANCE = 1e-3  # of an image's range, or of the largest element of what is no image


class Different(AssertionError):
    """The device's result is not CPU's."""


class Skipped(Exception):
    """Nothing to compare, and why."""


@dataclasses.dataclass
class Times:
    """Seconds of a call: on CPU the second one, on the device the first and the second."""

    cpu: float = 0.0
    first: float = 0.0
    again: float = 0.0


Prepare = Callable[[diffusers.DiffusionPipeline], Any]


def _nothing(pipe: diffusers.DiffusionPipeline) -> None:
    del pipe


def call(case: Case, pipe: diffusers.DiffusionPipeline, device: str, *, seed: int = 5, **more: Any) -> torch.Tensor:
    """What the pipeline makes, on the CPU and in float32."""
    arguments = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in {**case.call, **more}.items()}
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)  # what is drawn besides, from the device's own generator, is drawn from here
        result = getattr(pipe(**arguments, num_inference_steps=case.steps, generator=generator), case.result)
    if isinstance(result, list):
        result = numpy.stack([numpy.asarray(r) for r in result])
    return torch.as_tensor(result).float().cpu()


def expect(case: Case, expected: torch.Tensor, got: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    if expected.shape != got.shape:
        raise Different(f"shape {tuple(got.shape)}, CPU has {tuple(expected.shape)}")
    if not torch.isfinite(expected).all():
        raise Skipped("CPU's own result is not finite")
    scale = max(1.0, float(expected.abs().max()))
    error = float((expected - got).abs().max()) / scale
    if not error <= tolerance:
        raise Different(f"differs by {error:.2e} of {scale:.3g}")


def telling(case: Case, image: torch.Tensor) -> torch.Tensor:
    """``image``, if a fault would show in it: neither flat nor cut off at the ends of its range."""
    cut = float(((image <= 0) | (image >= 1)).float().mean())
    if float(image.std()) < 0.01 or (case.result in ("images", "frames") and cut > 0.5):
        raise AssertionError(
            f"{case.name} makes images that tell nothing: deviation {image.std():.3f}, {cut:.0%} cut off"
        )
    return image


def on_cpu(case: Case, prepare: Prepare = _nothing, times: Times | None = None, **more: Any) -> torch.Tensor:
    pipe = build(case)
    try:
        prepare(pipe)
        result = call(case, pipe, "cpu", **more)
        if times:
            start = time.perf_counter()
            call(case, pipe, "cpu", **more)
            times.cpu = time.perf_counter() - start
    except Skipped:
        raise
    except Exception as e:
        raise Skipped(f"CPU: {type(e).__name__}: {str(e).strip()[:200]}") from e
    return telling(case, result)


def on_tpu(case: Case, prepare: Prepare = _nothing, **more: Any) -> torch.Tensor:
    pipe = build(case).to("tpu")
    prepare(pipe)
    return call(case, pipe, "tpu", **more)


def denoiser(case: Case, pipe: diffusers.DiffusionPipeline) -> Any:
    return getattr(pipe, case.denoiser)


def eager(case: Case, times: Times) -> None:
    """Images equal CPU's; another seed compiles nothing."""
    expected = on_cpu(case, times=times)
    pipe = build(case).to("tpu")
    start = time.perf_counter()
    expect(case, expected, call(case, pipe, "tpu"))
    times.first = time.perf_counter() - start
    before = torch.tpu.compiler.stats()["compiled"]
    start = time.perf_counter()
    call(case, pipe, "tpu", seed=6)
    times.again = time.perf_counter() - start
    compiled = torch.tpu.compiler.stats()["compiled"] - before
    if compiled:
        raise Different(f"another seed compiles {compiled} programs: {torch.tpu.compiler.misses()[-1]}"[:500])


def compiled(case: Case, times: Times) -> None:
    """``compile(fullgraph=True, dynamic=False)``: one compilation serves all steps, images equal CPU's."""
    expected = on_cpu(case)
    try:
        _compiled(case, expected)
    except Different:
        raise
    except Exception as e:
        # Some models make tables at their first call, in a way that Dynamo does not take: then that call is eager.
        if _compiles_on_cpu(case):
            raise
        if not _compiles_on_cpu(case, warm=True):
            raise Skipped(f"CPU: Dynamo: {str(e).strip().splitlines()[0][:200]}") from e
        _compiled(case, expected, warm=True)


def _compiled(case: Case, expected: torch.Tensor, *, warm: bool = False) -> None:
    pipe = build(case).to("tpu")
    if warm:
        call(case, pipe, "tpu")
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    denoiser(case, pipe).compile(backend="tpu", fullgraph=True, dynamic=False)
    expect(case, expected, call(case, pipe, "tpu"))
    call(case, pipe, "tpu", seed=6)
    graphs = counters["unique_graphs"] - before
    if graphs != 1:
        raise Different(f"{graphs} compilations for {2 * case.steps} steps")


def _compiles_on_cpu(case: Case, *, warm: bool = False) -> bool:
    pipe = build(case)
    if warm:
        call(case, pipe, "cpu")
    torch._dynamo.reset()
    denoiser(case, pipe).compile(backend="eager", fullgraph=True, dynamic=False)
    try:
        call(case, pipe, "cpu")
    except Exception:
        return False
    return True


def tiling(case: Case, times: Times) -> None:
    """The VAE in slices and tiles."""
    larger = {k: 2 * case.call[k] for k in ("height", "width") if case.result == "frames"}  # VAEs of video shrink by 8
    expected = on_cpu(case, **larger)

    def prepare(pipe: Any) -> None:
        vae = getattr(pipe, "vae", None)
        if vae is None or not getattr(vae, "_supports_tiling", hasattr(vae, "enable_tiling")):
            raise Skipped("its VAE has no tiles")
        if hasattr(vae, "enable_slicing"):
            vae.enable_slicing()
        vae.enable_tiling()
        for name in list(vars(vae)):
            if name.startswith("tile_") and isinstance(getattr(vae, name), int) and "frames" not in name:
                halved = 12 if "stride" in name else 16
                if "latent" in name:
                    halved //= getattr(vae, "spatial_compression_ratio", 2)
                setattr(vae, name, max(halved, 1))
        for name, value in case.tiled.items():
            if not hasattr(vae, name):
                raise AttributeError(f"{type(vae).__name__} has no {name}")
            setattr(vae, name, value)

    tiled = on_cpu(case, prepare, **larger)
    if tiled.shape == expected.shape and float((tiled - expected).abs().max()) == 0:
        raise Skipped("the image is a single tile")
    expect(case, tiled, on_tpu(case, prepare, **larger))


def model_offload(case: Case, times: Times) -> None:
    """Whole components wait on the CPU until they are used."""
    expected = on_cpu(case)
    pipe = build(case)
    pipe.enable_model_cpu_offload(device="tpu")
    expect(case, expected, call(case, pipe, "tpu"))


def sequential_offload(case: Case, times: Times) -> None:
    """Each layer waits on the CPU until it is used."""
    expected = on_cpu(case)
    pipe = build(case)
    if pipe._exclude_from_cpu_offload and case.denoiser in pipe._exclude_from_cpu_offload:
        raise Skipped("the pipeline excludes its denoiser")
    pipe.enable_sequential_cpu_offload(device="tpu")
    try:
        expect(case, expected, call(case, pipe, "tpu"))
    except Different:
        if float((on_cpu(case, _offload_on_cpu) - expected).abs().max()) > TOLERANCE:
            raise Skipped("CPU: offloaded layers give something else there too (weight_norm)") from None
        raise


def _offload_on_cpu(pipe: diffusers.DiffusionPipeline) -> None:
    """What sequential offloading does, from the CPU to the CPU."""
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            accelerate.cpu_offload(component, torch.device("cpu"), offload_buffers=len(component._parameters) > 0)


def group_offload(case: Case, times: Times) -> None:
    """Groups of layers wait on the CPU until they are used; the rest is on the device."""
    expected = on_cpu(case)
    pipe = build(case)
    model = denoiser(case, pipe)
    if not getattr(model, "_supports_group_offloading", False):
        raise Skipped("the denoiser takes no group offloading")
    for name, component in pipe.components.items():
        if isinstance(component, torch.nn.Module) and name != case.denoiser:
            component.to("tpu")
    options = {"num_blocks_per_group": 1} if case.groups == "block_level" else {}
    model.enable_group_offload(onload_device=torch.device("tpu"), offload_type=case.groups, **options)
    expect(case, expected, call(case, pipe, "tpu"))


def lora(case: Case, times: Times) -> None:
    """A LoRA loaded, fused, unfused and unloaded."""
    from peft import LoraConfig, get_peft_model_state_dict

    base = on_cpu(case)
    model = denoiser(case, build(case))
    if not hasattr(model, "add_adapter"):
        raise Skipped("the denoiser takes no adapters")
    model.add_adapter(LoraConfig(r=2, lora_alpha=4, target_modules=list(case.lora), init_lora_weights=False))
    shapes = {k: v.shape for k, v in get_peft_model_state_dict(model).items()}
    if not shapes:
        raise AssertionError(f"no layer of {case.name} is named {case.lora}")
    weights: dict[str, torch.Tensor] = {}

    def load(pipe: Any) -> None:
        if hasattr(pipe, "load_lora_weights"):
            pipe.load_lora_weights({f"{case.denoiser}.{k}": v for k, v in weights.items()}, adapter_name="a")
        else:
            denoiser(case, pipe).load_lora_adapter(weights, prefix=None, adapter_name="a")

    for size in (0.3, 1.0, 3.0, 10.0):  # until the image shows it
        generator = torch.Generator().manual_seed(1)
        weights |= {k: torch.randn(shape, generator=generator) * size for k, shape in shapes.items()}
        expected = on_cpu(case, load)
        if float((expected - base).abs().max()) >= 10 * TOLERANCE:
            break
    else:
        raise AssertionError("the LoRA has no effect")
    pipe = build(case).to("tpu")
    load(pipe)
    expect(case, expected, call(case, pipe, "tpu"))
    model = denoiser(case, pipe)
    model.fuse_lora()
    expect(case, expected, call(case, pipe, "tpu"))
    model.unfuse_lora()
    if hasattr(pipe, "unload_lora_weights"):
        pipe.unload_lora_weights()
    else:
        model.unload_lora()
    expect(case, base, call(case, pipe, "tpu"))


def half(case: Case, times: Times) -> None:
    """In bfloat16 the device is as near to CPU's float32 image as CPU's bfloat16 one is."""
    exact = on_cpu(case)
    cpu = on_cpu(case, lambda pipe: pipe.to(dtype=torch.bfloat16))
    got = on_tpu(case, lambda pipe: pipe.to(dtype=torch.bfloat16))
    scale = max(1.0, float(exact.abs().max()))
    allowed = 2 * float((cpu - exact).pow(2).mean().sqrt()) + 0.01 * scale
    error = float((got - exact).pow(2).mean().sqrt())
    if not error <= allowed:
        raise Different(f"bfloat16: {error:.2e} from float32, CPU's {float((cpu - exact).pow(2).mean().sqrt()):.2e}")


def reloaded(case: Case, times: Times) -> None:
    """Saved from the device and loaded onto it with ``device_map``."""
    expected = on_cpu(case)

    def again(pipe: diffusers.DiffusionPipeline, **options: Any) -> diffusers.DiffusionPipeline:
        with tempfile.TemporaryDirectory() as folder:
            pipe.save_pretrained(folder)
            loaded = type(pipe).from_pretrained(folder, **options)
        loaded.set_progress_bar_config(disable=True)
        return loaded

    try:
        expect(case, expected, call(case, again(build(case)), "cpu"))
    except Exception as e:
        raise Skipped(f"CPU: {type(e).__name__}: {str(e).strip()[:200]}") from e
    loaded = again(build(case).to("tpu"), device_map="tpu")
    for name, component in loaded.components.items():
        if isinstance(component, torch.nn.Module):
            devices = {p.device.type for p in component.parameters()}
            if devices != {"tpu"}:
                raise Different(f"{name} is on {devices}")
    expect(case, expected, call(case, loaded, "tpu"))


CHECKS: dict[str, Callable[[Case, Times], None]] = {
    "eager": eager,
    "compiled": compiled,
    "tiling": tiling,
    "model offload": model_offload,
    "sequential offload": sequential_offload,
    "group offload": group_offload,
    "lora": lora,
    "bfloat16": half,
    "reloaded": reloaded,
}
