"""The checks of the model sweep: each runs a model on CPU and on the device, with the same weights and inputs.

A check raises ``Different`` where the device is wrong and ``Skipped`` where CPU itself cannot do what is asked.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import inputs
import torch
from architectures import Architecture

TOLERANCE = 1e-4  # of the largest element, for float32
NOISE_DRAWS = 16  # models rounded otherwise; a router decides otherwise in a part of them


class Different(AssertionError):
    """The device's result is not CPU's."""


class Skipped(Exception):
    """CPU cannot do it, and the message is CPU's own, or the check is not for this kind of model."""


@dataclasses.dataclass
class Times:
    """Seconds of the step that a check compares: on the device the first time, and the best of more on both sides.

    Those of more runs are the process's own, all threads together: other work on the machine does not count.
    """

    cpu: float = 0.0
    first: float = 0.0
    again: float = 0.0
    late: int = 0  # programs that a run after the first did not find


_MORE_RUNS = 3


def on_cpu(run: Callable[[], Any], times: Times | None = None) -> Any:
    """What ``run`` gives; a failure of the CPU is no fault of the device."""
    try:
        result = run()
        if times is not None:
            times.cpu = min(_seconds(run) for _ in range(_MORE_RUNS))
    except Skipped:
        raise
    except Exception as e:
        raise Skipped(f"CPU: {type(e).__name__}: {str(e).strip()[:300]}") from e
    return result


def on_device(run: Callable[[], Any], times: Times | None = None) -> Any:
    start = time.perf_counter()
    result = run()
    torch.tpu.synchronize()
    first = time.perf_counter() - start
    if times is not None:
        times.first, before = first, len(torch.tpu.compiler.misses())
        times.again = min(_seconds(run) for _ in range(_MORE_RUNS))
        times.late = len(torch.tpu.compiler.misses()) - before
    return result


def _seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    torch.tpu.synchronize()
    return time.process_time() - start


def to(x: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    """A nest of inputs on ``device``; floating ones in ``dtype``."""
    if isinstance(x, torch.Tensor):
        return x.to(device, dtype) if x.is_floating_point() else x.to(device)
    if isinstance(x, Mapping):
        return {k: to(v, device, dtype) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(to(v, device, dtype) for v in x)
    return x


def leaves(x: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a model's output by path, caches aside: those hold what later outputs show."""
    if isinstance(x, torch.Tensor):
        return {name: x}
    found: dict[str, torch.Tensor] = {}
    if isinstance(x, Mapping):
        for k, v in x.items():
            found |= leaves(v, f"{name}.{k}" if name else str(k))
    elif isinstance(x, (list, tuple)):
        for i, v in enumerate(x):
            found |= leaves(v, f"{name}[{i}]")
    return found


def compare(
    got: Any, expected: Any, judge: Callable[[], Any] | None = None, tolerance: float = TOLERANCE,
    others: Callable[[], list[Any]] | None = None,
) -> None:  # fmt: skip
    """Every tensor of the output: type, shape, and values within ``tolerance`` of its largest element.

    A hundredth of that of the largest element of all is allowed besides: the gradient of a bias that softmax takes no
    note of is zero but for rounding.

    Args:
      judge: gives the output in a wider type, asked for only where the two disagree: then the device may be no
        further from it than twice as far as CPU is.
      others: gives further outputs of CPU, as good as ``expected``; the furthest of all is what counts.
    """
    ours, theirs = leaves(got), leaves(expected)
    if ours.keys() != theirs.keys():
        raise Different(f"{sorted(ours)} for {sorted(theirs)}")
    floor = 0.01 * tolerance * max((_scale(e) for e in theirs.values()), default=0.0)
    wide: dict[str, torch.Tensor] | None = None
    more: list[dict[str, torch.Tensor]] = []
    for name, e in theirs.items():
        g = ours[name]
        if g.device.type != "tpu" or g.dtype != e.dtype or g.shape != e.shape:
            raise Different(f"{name}: {g.device} {g.dtype} {tuple(g.shape)} for {e.dtype} {tuple(e.shape)}")
        g = g.detach().cpu()
        if _near(g, e, tolerance, floor):
            continue
        if judge is not None and (e.is_floating_point() or e.is_complex()):
            if wide is None:
                wide = leaves(_judged(judge, f"{name}: {_worst(g, e)}"))
                more = [leaves(o) for o in others()] if others is not None else []
            if _no_worse(g, [e, *(o[name] for o in more)], wide[name], tolerance):
                continue
        raise Different(f"{name}: {_worst(g, e)}")


def _near(got: torch.Tensor, expected: torch.Tensor, tolerance: float, floor: float) -> bool:
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(got, expected)
    absolute = max(tolerance * _scale(expected), floor)
    return torch.allclose(got.double(), expected.double(), tolerance, absolute, equal_nan=True)


def _scale(x: torch.Tensor) -> float:
    finite = x.detach().double()[x.isfinite() & (x.abs() < 1e30)]  # masks are as large as a type holds
    return float(finite.abs().max()) if finite.numel() else 0.0


def _judged(judge: Callable[[], Any], difference: str) -> Any:
    try:
        return judge()
    except Exception as e:  # CPU has no such kernel in the wider type
        raise Different(difference) from e


def _no_worse(got: torch.Tensor, expected: list[torch.Tensor], judge: torch.Tensor, tolerance: float) -> bool:
    exact = judge.double()
    furthest = max(float((e.double() - exact).abs().max()) for e in expected)
    return bool(((got.double() - exact).abs() <= 2 * furthest + tolerance * _scale(judge)).all())


def _worst(got: torch.Tensor, expected: torch.Tensor) -> str:
    if expected.numel() == 0:
        return "empty"
    difference = (got.double() - expected.double()).abs().nan_to_num(nan=float("inf"))
    at = int(difference.argmax())
    return (
        f"differs by {float(difference.flatten()[at]):.3g} at {at} of {tuple(expected.shape)} (largest element "
        f"{_scale(expected):.3g}): {got.flatten()[at].item()} for {expected.flatten()[at].item()}"
    )


def forward(a: Architecture, times: Times, *, attention: str | None = None) -> None:
    model = on_cpu(a.make) if attention is None else on_cpu(lambda: _with_attention(a, attention))
    given = inputs.make(a.inputs, model.config)
    device, there = copied(model), to(given, "tpu")
    run = torch.no_grad()(lambda m, x: m(**x))
    expected = on_cpu(lambda: run(model, given), times)
    got = on_device(lambda: run(device, there), times)
    compare(got, expected, lambda: run(model.double(), to(given, "cpu", torch.float64)))


def _with_attention(a: Architecture, name: str) -> torch.nn.Module:
    model = a.make()
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(f"attention is {model.config._attn_implementation}")
    return model


def forward_sdpa(a: Architecture, times: Times) -> None:
    forward(a, times, attention="sdpa")


def forward_eager(a: Architecture, times: Times) -> None:
    forward(a, times, attention="eager")


def forward_bf16(a: Architecture, times: Times) -> None:
    _half(a, times, torch.bfloat16)


def _half(a: Architecture, times: Times, dtype: torch.dtype) -> None:
    """In a half type, no further from the float32 result than CPU is, and two hundredths of the largest element."""
    model = on_cpu(a.make)
    given = inputs.make(a.inputs, model.config)
    half, narrow = copy.deepcopy(model).to(dtype), to(given, "cpu", dtype)
    device, there = copied(half), to(narrow, "tpu")
    run = torch.no_grad()(lambda m, x: m(**x))
    exact = on_cpu(lambda: run(model, given))
    expected = on_cpu(lambda: run(half, narrow), times)
    got = on_device(lambda: run(device, there), times)
    others = lambda: [run(rounded_otherwise(a, dtype, seed), narrow) for seed in range(NOISE_DRAWS)]  # noqa: E731
    compare(got, expected, lambda: exact, tolerance=2e-2, others=others)


def copied(model: torch.nn.Module) -> torch.nn.Module:
    """The model on the device. Taken before it runs: some keep tensors of a run in attributes that do not move."""
    return copy.deepcopy(model).to("tpu")


def rounded_otherwise(a: Architecture, dtype: torch.dtype, seed: int) -> torch.nn.Module:
    """The model on CPU in a half type, its weights rounded at random to one of the two neighbours.

    What it gives is as good as what rounding to the nearest gives: how far the two are apart is the model's own noise,
    which is large where a router's choice hangs on it.
    """
    model, generator = a.make(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + torch.finfo(dtype).eps * (torch.rand(p.shape, generator=generator) - 0.5))
    return model.to(dtype)


def gradients(a: Architecture, times: Times) -> None:
    model = on_cpu(a.make)
    given = with_labels(model, inputs.make(a.inputs, model.config))
    device, there = copied(model), to(given, "tpu")
    expected = on_cpu(lambda: backward(model, given), times)
    got = on_device(lambda: backward(device, there), times)
    compare(got, expected, lambda: backward(model.double(), to(given, "cpu", torch.float64)))


def backward(model: torch.nn.Module, given: Any) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(2)
    output = model(**given)
    loss = output.get("loss")
    if loss is None:  # of a model without labels
        values = [v for v in leaves(output).values() if v.is_floating_point() and v.requires_grad]
        loss = sum((v - 0.1).square().mean() for v in values)
    loss = loss.mean()
    loss.backward()
    found = {"loss": loss.detach()}
    found |= {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    if len(found) == 1:
        raise ValueError("the loss reaches no parameter")
    return found


def with_labels(model: torch.nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    name = type(model).__name__
    batch = next(v.shape[0] for v in given.values() if isinstance(v, torch.Tensor))
    if "decoder_input_ids" in given and "ConditionalGeneration" in name:
        return {**given, "labels": given["decoder_input_ids"]}
    if any(s in name for s in ("CausalLM", "LMHead", "MaskedLM", "ForConditionalGeneration", "Mamba")):
        return {**given, "labels": given["input_ids"]} if "input_ids" in given else given
    if "Classification" in name and "TokenClass" not in name:
        return {**given, "labels": torch.arange(batch)}
    return given


def compiled(a: Architecture, times: Times) -> None:
    """torch.compile(fullgraph=True), where CPU takes the whole graph."""
    model = on_cpu(a.make)
    given = inputs.make(a.inputs, model.config)
    run = torch.no_grad()(lambda m, x: m(**x))
    on_cpu(lambda: run(model, given), times)
    # Behind the first call, in which some models set themselves up (under a lock, or warn): Dynamo traces neither.
    device, there = copied(model), to(given, "tpu")
    torch._dynamo.reset()
    # Not the model's own outputs: what some models compute while they are traced is something else (PaliGemma's mask).
    expected = on_cpu(lambda: run(torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False), given))
    torch._dynamo.reset()
    whole = torch.compile(device, backend="tpu", fullgraph=True, dynamic=False)
    got = on_device(lambda: run(whole, there), times)
    compare(got, expected, lambda: run(model.double(), to(given, "cpu", torch.float64)))


def check_greedy(a: Architecture, times: Times, **options: Any) -> None:
    model = on_cpu(lambda: generating(a))
    given = prompt(a, model)
    options = {"max_new_tokens": 6, "do_sample": False, **options}
    device, there = copied(model), to(given, "tpu")
    expected = on_cpu(lambda: model.generate(**given, **options), times)
    got = on_device(lambda: device.generate(**there, **options), times)
    same_tokens(got, expected)


def generating(a: Architecture) -> Any:
    if not getattr(a.model_class, "can_generate", lambda: False)():
        raise Skipped("the model does not generate")
    model = a.make()
    model.generation_config.eos_token_id = None  # all lengths are whole
    for name, token in (("pad_token_id", 0), ("bos_token_id", 1), ("decoder_start_token_id", 1)):
        if getattr(model.generation_config, name) is None:
            setattr(model.generation_config, name, token)
    return model


def prompt(a: Architecture, model: Any) -> dict[str, Any]:
    return {k: v for k, v in inputs.make(a.inputs, model.config).items() if not k.startswith("decoder_")}


def same_tokens(got: Any, expected: Any) -> None:
    if got.device.type != "tpu":
        raise Different(f"tokens are on {got.device}")
    if expected.is_floating_point():  # SpeechT5 gives a spectrogram
        compare(got, expected)
    elif got.tolist() != expected.tolist():
        raise Different(f"tokens {got.tolist()} for {expected.tolist()}"[:500])


def generate_dynamic(a: Architecture, times: Times) -> None:
    check_greedy(a, times)


def generate_static(a: Architecture, times: Times) -> None:
    torch._dynamo.reset()
    check_greedy(a, times, cache_implementation="static")


def save_load(a: Architecture, times: Times) -> None:
    """Saved on CPU and loaded with device_map="tpu", saved there and loaded on CPU: the same model each time."""
    model = on_cpu(a.make)
    given = inputs.make(a.inputs, model.config)
    run = torch.no_grad()(lambda m, x: m(**x))
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        model.save_pretrained(here)
        expected = on_cpu(lambda: run(a.model_class.from_pretrained(here).eval(), given))
        start = time.perf_counter()
        device = a.model_class.from_pretrained(here, device_map="tpu").eval()
        times.first = time.perf_counter() - start
        same_weights(device, model)
        compare(run(device, to(given, "tpu")), expected, lambda: run(model.double(), to(given, "cpu", torch.float64)))
        device.save_pretrained(there)
        same_weights(a.model_class.from_pretrained(there), model.float(), device="cpu")


def same_weights(model: torch.nn.Module, expected: torch.nn.Module, device: str = "tpu") -> None:
    theirs = dict(expected.state_dict())
    for name, ours in model.state_dict().items():
        if ours.device.type != device:
            raise Different(f"{name} is on {ours.device}")
        if ours.dtype != theirs[name].dtype or not torch.equal(ours.cpu(), theirs[name]):
            raise Different(f"{name}: {ours.dtype} weights are not those of CPU")


def tied(a: Architecture, times: Times) -> None:
    """Weights that are one on CPU are one on the device: moved, loaded, and in their gradient."""
    model = on_cpu(lambda: a.make(tie_word_embeddings=True))
    groups = _tied_groups(model)
    if not groups:
        raise Skipped("the model ties no weights")
    given = with_labels(model, inputs.make(a.inputs, model.config))
    moved = copied(model)
    expected = on_cpu(lambda: backward(model, given))
    with tempfile.TemporaryDirectory() as folder:
        on_cpu(lambda: (model.save_pretrained(folder), a.model_class.from_pretrained(folder)))
        loaded = a.model_class.from_pretrained(folder, device_map="tpu").eval()
    for what, device in (("moved", moved), ("loaded", loaded)):
        if _tied_groups(device) != groups:
            raise Different(f"{what}: {_tied_groups(device)} are one for CPU's {groups}")
    got = on_device(lambda: backward(moved, to(given, "tpu")), times)
    names = {"loss", *(n for group in groups for n in group)}
    compare(
        {n: v for n, v in got.items() if n in names}, {n: v for n, v in expected.items() if n in names},
        lambda: backward(model.double(), to(given, "cpu", torch.float64)),
    )  # fmt: skip


def _tied_groups(model: torch.nn.Module) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(p), []).append(name)
    return sorted(sorted(g) for g in groups.values() if len(g) > 1)


CELLS: dict[str, Callable[[Architecture, Times], None]] = {
    "forward": forward,
    "forward_bf16": forward_bf16,
    "sdpa": forward_sdpa,
    "eager": forward_eager,
    "gradients": gradients,
    "tied": tied,
    "save_load": save_load,
    "generate_dynamic": generate_dynamic,
    "generate_static": generate_static,
    "compiled": compiled,
}
