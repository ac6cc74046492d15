"""Every scheduler class of Diffusers: the same denoising loop on CPU and on the device, from the same seeds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from diffusers.schedulers.scheduling_consistency_decoder import ConsistencyDecoderScheduler
from diffusers.schedulers.scheduling_utils import SchedulerMixin
from pipelines_checks import Different, Skipped
from torch.overrides import TorchFunctionMode

STEPS, TOLERANCE = 6, 1e-4
_SHAPE, _TOKENS, _WORDS = (2, 4, 8, 8), 12, 10
Loop = Callable[[Any, str], torch.Tensor]


def _model(x: torch.Tensor, t: Any) -> torch.Tensor:
    """Stands for the denoiser: smooth, of the size of noise, and not the same at each step."""
    t = torch.as_tensor(t, dtype=torch.float32, device=x.device)
    return torch.cos(x) * 0.5 + x * 0.4 + torch.sin(t * 0.01) * 0.1


def _noise(device: str, seed: int = 0, shape: tuple[int, ...] = _SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _takes(function: Any, name: str) -> bool:
    return name in inspect.signature(function).parameters


def _usual(scheduler: Any, device: str, setting: dict[str, Any] | None = None, **more: Any) -> torch.Tensor:
    """What pipelines do: scale the input, run the model, step; then noise is added as image to image does."""
    scheduler.set_timesteps(STEPS, device=device, **(setting or {}))
    sigma = getattr(scheduler, "init_noise_sigma", 1.0)
    sample = _noise(device) * (sigma.to(device) if isinstance(sigma, torch.Tensor) else sigma)
    if _takes(scheduler.step, "generator"):
        more["generator"] = _generator()
    timesteps = scheduler.timesteps
    if isinstance(scheduler, diffusers.DDPMWuerstchenScheduler):
        timesteps = timesteps[:-1]
    for t in timesteps:
        if isinstance(scheduler, diffusers.DDPMWuerstchenScheduler):
            t = t.expand(sample.shape[0])
        scaled = scheduler.scale_model_input(sample, t) if hasattr(scheduler, "scale_model_input") else sample
        output = _model(scaled, t if t.ndim == 0 else t[0])
        sample = scheduler.step(output, t, sample, **more)[0]
    if hasattr(scheduler, "add_noise") and _takes(scheduler.add_noise, "noise"):
        chosen = scheduler.timesteps[1:2]
        sample = torch.cat([sample, scheduler.add_noise(_noise(device, 1), _noise(device, 2), chosen)])
    return sample


def _learned_range(scheduler: Any, device: str) -> torch.Tensor:
    del scheduler
    made = diffusers.DDPMScheduler(variance_type="learned_range", thresholding=True)
    made.set_timesteps(STEPS, device=device)
    sample, generator = _noise(device), _generator()
    for t in made.timesteps:
        output = torch.cat([_model(sample, t), torch.tanh(sample)], dim=1)
        sample = made.step(output, t, sample, generator=generator).prev_sample
    return sample


def _cogvideox_dpm(scheduler: Any, device: str) -> torch.Tensor:
    scheduler.set_timesteps(STEPS, device=device)
    sample, generator, old = _noise(device), _generator(), None
    for i, t in enumerate(scheduler.timesteps):
        back = scheduler.timesteps[i - 1] if i > 0 else None
        sample, old = scheduler.step(
            _model(sample, t), old, t, back, sample, generator=generator, return_dict=False
        )[:2]  # fmt: skip
    return sample


def _repaint(scheduler: Any, device: str) -> torch.Tensor:
    scheduler.set_timesteps(STEPS, jump_length=2, jump_n_sample=2, device=device)
    scheduler.eta = 0.5
    sample, generator = _noise(device), _generator()
    original, mask, last = _noise(device, 3).tanh(), (_noise(device, 4) > 0).float(), scheduler.timesteps[0] + 1
    for t in scheduler.timesteps:
        if t < last:
            sample = scheduler.step(_model(sample, t), t, sample, original, mask, generator).prev_sample
        else:
            sample = scheduler.undo_step(sample, last, generator)
        last = t
    return sample


def _score_sde(scheduler: Any, device: str) -> torch.Tensor:
    scheduler.set_timesteps(STEPS, device=device)
    scheduler.set_sigmas(STEPS)
    sample, generator = _noise(device) * scheduler.init_noise_sigma, _generator()
    for i, t in enumerate(scheduler.timesteps):
        sigma = scheduler.sigmas[i] * torch.ones(_SHAPE[0], device=device)
        score = -sample / (1 + sigma[:, None, None, None] ** 2)
        sample = scheduler.step_correct(score, sample, generator=generator).prev_sample
        sample = scheduler.step_pred(score, t, sample, generator=generator).prev_sample
    return sample


class _SameDraws(TorchFunctionMode):
    """Draws on the CPU what the device would draw, for schedulers that take no CPU generator for another device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.rand, torch.randint, torch.randn) and "device" in kwargs:
            generator = kwargs.get("generator")
            if generator is not None and generator.device.type != "cpu":
                generator = torch.Generator().manual_seed(generator.initial_seed())
            return function(*args, **{**kwargs, "device": "cpu", "generator": generator}).to(kwargs["device"])
        if function is torch.multinomial:
            return function(args[0].cpu(), *args[1:], **kwargs).to(args[0].device)
        return function(*args, **kwargs)


def _logits(sample: torch.Tensor, t: Any) -> torch.Tensor:
    weights = _noise(str(sample.device), 5, (_WORDS + 1, _WORDS))
    t = torch.as_tensor(t, dtype=torch.float32, device=sample.device)
    places = torch.arange(sample.shape[-1], device=sample.device)[:, None]
    return weights[sample] + torch.sin(t + places + torch.arange(_WORDS, device=sample.device))


def _tokens(scheduler: Any, device: str) -> torch.Tensor:
    """Schedulers of discrete diffusion: the sample is made of tokens, the model gives logits."""
    scheduler.set_timesteps(STEPS, device=device)
    sample = torch.full((2, _TOKENS), _WORDS, device=device)
    if isinstance(scheduler, diffusers.DiscreteDDIMScheduler | diffusers.EntropyBoundScheduler):
        sample = torch.arange(2 * _TOKENS, device=device).view(2, _TOKENS) % _WORDS
    more: dict[str, Any] = {"generator": _generator()}
    if _takes(scheduler.step, "mask_token_id"):
        more.update(mask_token_id=_WORDS, temperature=1.0)
    over_channels = isinstance(scheduler, diffusers.VQDiffusionScheduler)
    with _SameDraws():
        for t in scheduler.timesteps:
            output = _logits(sample, t)
            if over_channels:
                output = torch.log_softmax(output.transpose(1, 2), dim=1)
            sample = scheduler.step(output, t, sample, **more).prev_sample
    return sample.float()


def _proteina(scheduler: Any, device: str) -> torch.Tensor:
    scheduler.set_timesteps(STEPS, device=device)
    sample = _noise(device, shape=(2, _TOKENS, 3))
    emit = torch.ones(2, _TOKENS, dtype=torch.bool, device=device)
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    for t in scheduler.timesteps:
        sample = scheduler.step(_model(sample, t), t, sample, emit_mask=emit, generator=generators)[0]
    return sample


def _stages(scheduler: Any, device: str) -> torch.Tensor:
    return torch.cat([_usual(scheduler, device, {"stage_index": i}) for i in range(3)])


def _distilled_stages(scheduler: Any, device: str) -> torch.Tensor:
    sample = _noise(device)
    for stage in range(3):
        scheduler.set_timesteps(2, stage_index=stage, device=device)
        start, noise, times = sample, _noise(device, 10 + stage), scheduler.timesteps
        for i, t in enumerate(times):
            sample = scheduler.step(
                _model(start, t), t, start, cur_sampling_step=i, dmd_noisy_tensor=noise, dmd_sigmas=scheduler.sigmas,
                dmd_timesteps=times, all_timesteps=times,
            )[0]  # fmt: skip
            start = sample
    return sample


def _brownian(scheduler: Any, device: str) -> torch.Tensor:
    with _SameDraws():
        return _usual(scheduler, device)


def _two_steps(scheduler: Any, device: str) -> torch.Tensor:
    scheduler.set_timesteps(2, device=device)
    sample, generator = _noise(device), _generator()
    for t in scheduler.timesteps:
        output = _model(scheduler.scale_model_input(sample, t), t)
        sample = scheduler.step(output, t, sample, generator=generator)[0]
    return sample


def _continuous(scheduler: Any, device: str) -> torch.Tensor:
    scheduler.set_timesteps(STEPS, intermediate_timesteps=None, device=device)
    sample, generator = _noise(device), _generator()
    for t in scheduler.timesteps[:-1]:
        sample = scheduler.step(_model(sample, t), t, sample, generator=generator)[0]
    return sample


def _grid(scheduler: Any, device: str) -> torch.Tensor:
    """The model predicts a trajectory at several times at once."""
    scheduler.set_timesteps(STEPS, device=device)
    sample = _noise(device, shape=(2, _TOKENS, 4))
    for t in scheduler.timesteps:
        output = torch.cat([_model(sample * (i + 1) / 4, t) for i in range(4)], dim=-1)
        sample = scheduler.step(output, t, sample)[0]
    return sample


def _karras_ve(scheduler: Any, device: str) -> torch.Tensor:
    scheduler.set_timesteps(STEPS, device=device)
    sample, generator = _noise(device) * scheduler.init_noise_sigma, _generator()
    for t in scheduler.timesteps:
        sigma = scheduler.schedule[t]
        before = scheduler.schedule[t - 1] if t > 0 else 0
        noisy, hat = scheduler.add_noise_to_input(sample, sigma, generator=generator)
        output = (hat / 2) * _model((noisy + 1) / 2, hat / 2)
        step = scheduler.step(output, hat, before, noisy)
        if before != 0:
            output = (before / 2) * _model((step.prev_sample + 1) / 2, before / 2)
            step = scheduler.step_correct(output, hat, before, noisy, step.prev_sample, step["derivative"])
        sample = step.prev_sample
    return sample


_LOOPS: dict[str, Loop] = {
    "BlockRefinementScheduler": _tokens,
    "AmusedScheduler": _tokens,
    "VQDiffusionScheduler": _tokens,
    "DiscreteDDIMScheduler": _tokens,
    "EntropyBoundScheduler": _tokens,
    "CogVideoXDPMScheduler": _cogvideox_dpm,
    "ConsistencyDecoderScheduler": _two_steps,
    "CosineDPMSolverMultistepScheduler": _brownian,
    "DPMSolverSDEScheduler": _brownian,
    "HeliosDMDScheduler": _distilled_stages,
    "HeliosScheduler": _stages,
    "KarrasVeScheduler": _karras_ve,
    "PiflowScheduler": _grid,
    "RePaintScheduler": _repaint,
    "RFD4ProteinaScheduler": _proteina,
    "SCMScheduler": _continuous,
    "ScoreSdeVeScheduler": _score_sde,
}
# What a class must be told, or without which it does nothing worth comparing.
_OPTIONS: dict[str, dict[str, Any]] = {
    "AmusedScheduler": {"mask_token_id": _WORDS},
    "DPMSolverSDEScheduler": {"noise_sampler_seed": 0},
    "PiflowScheduler": {"n_grid": 4, "num_policy_substeps": 8},
    "RFD4ProteinaScheduler": {
        "schedule_mode": "log",
        "noise_mode": "1/t",
        "tsr_k": 1.5,
        "tsr_sigma": 0.5,
        "tail_steps": 1,
    },
    "UniPCMultistepScheduler": {"solver_order": 3},
    "VQDiffusionScheduler": {"num_vec_classes": _WORDS + 1, "num_train_timesteps": STEPS},
}


def _classes() -> dict[str, Any]:
    found: dict[str, Any] = {"ConsistencyDecoderScheduler": ConsistencyDecoderScheduler}
    for name in sorted(dir(diffusers)):
        kind = getattr(diffusers, name) if name.endswith("Scheduler") else None
        if isinstance(kind, type) and issubclass(kind, SchedulerMixin):
            found[name] = kind
    return found


SCHEDULERS: dict[str, tuple[Any, Loop]] = {n: (kind, _LOOPS.get(n, _usual)) for n, kind in _classes().items()}
SCHEDULERS["DDPMScheduler, learned range and thresholding"] = (diffusers.DDPMScheduler, _learned_range)


def compare_scheduler(name: str) -> None:
    kind, loop = SCHEDULERS[name]
    try:
        torch.manual_seed(0)
        expected = loop(kind(**_OPTIONS.get(name, {})), "cpu")
    except Exception as e:
        raise Skipped(f"CPU: {type(e).__name__}: {str(e).strip()[:200]}") from e
    if not torch.isfinite(expected).all() or float(expected.std()) == 0:
        raise Skipped("CPU's own result is not finite, or constant")
    torch.manual_seed(0)
    got = loop(kind(**_OPTIONS.get(name, {})), "tpu")
    if got.device.type != "tpu":
        raise Different(f"the result is on {got.device}")
    scale = max(1.0, float(expected.abs().max()))
    error = float((got.cpu() - expected).abs().max()) / scale
    if not error <= TOLERANCE:
        raise Different(f"differs by {error:.2e} of {scale:.3g}")
