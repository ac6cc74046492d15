"""What is checked of one entry of PyTorch's operator database, in one dtype, over its sample inputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from compare import Mismatch, compare, flat, same_strides
from entries import EXACT, HOST_ARGUMENTS, TOLD_WHERE, invariant, title, values_differ
from mirror import copied, inputs, mapped, on, tensors, transformed, wide_default, widened
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from torch_tpu.eager.refusals import MORE_TYPES

Calls = Callable[[SampleInput], Any]


class Skipped(Exception):
    """The check does not apply: the entry has no such form, or CPU refuses every sample."""


def _called(op: Callable[..., Any]) -> Calls:
    return lambda s: op(s.input, *s.args, **s.kwargs)


def _samples(entry: OpInfo, dtype: torch.dtype, *, grad: bool = False) -> list[SampleInput]:
    torch.manual_seed(0)
    return list(entry.sample_inputs("cpu", dtype, requires_grad=grad))


def _cpu(run: Calls, sample: SampleInput) -> tuple[Any, Exception | None]:
    try:
        torch.manual_seed(1)
        return run(sample), None
    except Exception as e:
        return None, e


def _each(samples: list[SampleInput], limit: int | None) -> Iterator[tuple[int, SampleInput]]:
    step = 1 if limit is None or len(samples) <= limit else len(samples) / limit
    for i in range(len(samples) if step == 1 else limit or 0):
        at = int(i * step)
        yield at, samples[at]


def _describe(sample: SampleInput) -> str:
    short = mapped(
        (sample.input, tuple(sample.args), sample.kwargs),
        lambda x: f"{x.dtype}{list(x.shape)}".replace("torch.", "") if isinstance(x, torch.Tensor) else x,
    )
    return f"{short[0]}, {short[1]}, {short[2]}"[:300]


def _checked(entry: OpInfo, samples: list[SampleInput], limit: int | None, one: Callable[[SampleInput], bool]) -> int:
    """Run ``one`` on the samples; it says whether it could check anything. Returns how many it did."""
    done, reason = 0, "no sample that CPU takes"
    for i, sample in _each(samples, limit):
        try:
            done += one(sample)
        except Skipped as e:
            reason = str(e)
        except Exception as e:
            kind = "" if isinstance(e, Mismatch) else f"{type(e).__name__}: "
            raise Mismatch(f"sample {i} ({_describe(sample)}): {kind}{e}") from e
    if not done:
        raise Skipped(reason)
    return done


def _compared(
    entry: OpInfo, run: Calls, limit: int | None, samples: list[SampleInput], strides: list[str],
    on_device: Calls | None = None,
) -> int:  # fmt: skip
    view = invariant(entry)

    def one(sample: SampleInput) -> bool:
        expected, refused = _cpu(run, copied_if_written(entry, sample))
        if refused is not None:
            return False
        device = placed(entry, sample)
        torch.manual_seed(1)
        got = (on_device or run)(device)
        values = not values_differ(entry, sample)

        def judge() -> Any:
            torch.manual_seed(1)
            wide = widened(sample)
            with wide_default():
                return view(EXACT.get(title(entry), run)(wide), wide)

        compare(view(got, device), view(expected, sample), judge, values=values)
        if not strides and (differs := same_strides(got, expected, lambda: run(on("meta", sample)))):
            strides.append(differs)
        return True

    return _checked(entry, samples, limit, one)


def placed(entry: OpInfo, sample: SampleInput) -> SampleInput:
    """The sample on the device, but for the arguments that PyTorch wants on the host."""
    device = on("tpu", sample)
    if (at := HOST_ARGUMENTS.get(entry.name)) is not None and at < len(sample.args):
        device.args = (*device.args[:at], sample.args[at], *device.args[at + 1 :])
    if entry.name in TOLD_WHERE:
        device.kwargs = {"device": torch.device("tpu"), **device.kwargs}
    return device


def copied_if_written(entry: OpInfo, sample: SampleInput) -> SampleInput:
    return copied(sample) if entry.name.endswith("_") or entry.name in ("resize_", "normal") else sample


def forward(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """Values, dtypes and shapes of results for every sample; strides are reported beside."""
    with torch.no_grad():
        return _compared(entry, _called(entry.op), limit, _samples(entry, dtype), strides)


def noncontiguous(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """The same with operands that have gaps and odd strides."""
    with torch.no_grad():
        chosen = [s for _, s in _each(_samples(entry, dtype), limit)]
        if any(t.layout != torch.strided for s in chosen for t in inputs(s)):
            raise Skipped("sparse operands have no strides")
        samples = [s.noncontiguous() for s in chosen]
        return _compared(entry, _called(entry.op), None, samples, strides)


def inplace(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """The in-place form: the values written, and that what it returns is its operand."""
    form = entry.get_inplace()
    if form is None:
        raise Skipped("no in-place form")
    run = _called(form)

    def one(sample: SampleInput) -> bool:
        if sample.broadcasts_input:
            return False
        mine = placed(entry, sample)
        written = copied(sample)
        _expected, refused = _cpu(run, written)
        if refused is not None:
            try:
                run(mine)
            except Exception:
                return False
            raise Mismatch(f"accepted what CPU refuses with {type(refused).__name__}: {refused}")
        torch.manual_seed(1)
        got = run(mine)
        if got is not mine.input:
            raise Mismatch("does not return its operand")
        compare(mine.input, written.input, lambda: run(widened(sample)), values=not values_differ(entry, sample))
        return True

    with torch.no_grad():
        return _checked(entry, _samples(entry, dtype), limit, one)


def out(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """``out=``: written and returned; kept strides; resized where empty; refused in a dtype it cannot be cast to."""
    if not entry.supports_out:
        raise Skipped("no out= form")
    run = _called(entry.op)
    view = invariant(entry)

    def given(sample: SampleInput, made: Any) -> SampleInput:
        s = transformed(sample, lambda x: x)
        s.kwargs = {**s.kwargs, "out": made}
        return s

    def one(sample: SampleInput) -> bool:
        expected, refused = _cpu(run, sample)
        if refused is not None or not all(isinstance(t, torch.Tensor) for t in flat(expected)):
            return False
        device = placed(entry, sample)

        def judge() -> Any:
            wide = widened(sample)
            return view(run(wide), wide)

        for prepare in (_same, _strided, _empty):
            theirs = mapped(expected, lambda t, f=prepare: f(t, "cpu"))
            _, refused = _cpu(run, given(sample, theirs))
            if refused is not None:
                continue
            ours = mapped(expected, lambda t, f=prepare: f(t, "tpu"))
            places, sizes = _addresses(ours), [t.shape for t in tensors(ours)]
            torch.manual_seed(1)
            got = run(given(device, ours))
            if got is not None and any(a is not b for a, b in zip(tensors(got), tensors(ours), strict=True)):
                raise Mismatch("does not return out=")
            kept = sizes == [t.shape for t in tensors(ours)]  # results that CPU leaves empty may have another shape
            if prepare is not _empty and kept and places != _addresses(ours):
                raise Mismatch("out= got another storage")
            compare(view(ours, device), view(theirs, sample), judge, values=not values_differ(entry, sample))
            for a, b in zip(tensors(ours), tensors(theirs), strict=True):
                if prepare is _strided and kept and a.numel() and a.stride() != b.stride():
                    raise Mismatch(f"out= of strides {b.stride()} became {a.stride()}")
        return True

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _checked(entry, _samples(entry, dtype), limit, one)


def _addresses(made: Any) -> list[int]:
    return [t.data_ptr() for t in tensors(made) if t.layout == torch.strided]


def _same(t: torch.Tensor, device: str) -> torch.Tensor:
    return torch.full_like(t, 1, device=device)


def _strided(t: torch.Tensor, device: str) -> torch.Tensor:
    return torch.ones((*t.shape, 2), dtype=t.dtype, device=device)[..., 1]


def _empty(t: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty(0, dtype=t.dtype, device=device)


def errors(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """The database's wrong inputs raise the exception and message they raise elsewhere."""
    if entry.error_inputs_func is None:
        raise Skipped("no wrong inputs in the database")
    done = 0
    cases = list(entry.error_inputs("cpu"))
    devices = [placed(entry, case.sample_input) for case in cases]  # before CPU writes to what they share
    for i, (case, device) in enumerate(zip(cases, devices, strict=True)):
        sample = case.sample_input
        try:
            entry.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as e:
            if not isinstance(e, case.error_type) or not re.search(case.error_regex, str(e)):
                continue  # what CPU says is another thing than the database says
        else:
            continue
        done += 1
        try:
            got = entry.op(device.input, *device.args, **device.kwargs)
            torch.tpu.synchronize()
        except Exception as e:
            if not isinstance(e, case.error_type):
                raise Mismatch(
                    f"error input {i} ({_describe(sample)}): {type(e).__name__} for {case.error_type}: {str(e)[:200]}"
                ) from e
            if not re.search(case.error_regex, str(e)):
                raise Mismatch(
                    f"error input {i} ({_describe(sample)}): says {str(e)[:200]!r}, expected {case.error_regex!r}"
                ) from e
        else:
            raise Mismatch(
                f"error input {i} ({_describe(sample)}): accepted, gave {_describe(SampleInput(got))}; "
                f"expected {case.error_type.__name__}: {case.error_regex}"
            )
    if not done:
        raise Skipped("no wrong inputs that CPU refuses")
    return done


def refused(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """A dtype that CPU refuses for what the operator is given is refused, with CPU's kind of exception."""
    if dtype in MORE_TYPES.get(f"aten::{entry.name}", ()):
        raise Skipped("CUDA has it for this dtype, and libraries count on it")
    run = _called(entry.op)
    try:
        samples = _samples(entry, dtype)
    except Exception as e:
        raise Skipped("the database has no samples of the dtype") from e

    def one(sample: SampleInput) -> bool:
        _, theirs = _cpu(run, copied_if_written(entry, sample))
        if theirs is None:
            return False
        try:
            got = run(placed(entry, sample))
        except Exception as ours:
            if isinstance(ours, type(theirs)) or isinstance(theirs, NotImplementedError):
                return True
            raise Mismatch(
                f"{type(ours).__name__}: {str(ours)[:200]}; CPU has {type(theirs).__name__}: {theirs}"
            ) from ours
        given = _describe(SampleInput(got)) if isinstance(got, torch.Tensor) else got
        raise Mismatch(f"accepted, gave {given}; CPU has {type(theirs).__name__}: {theirs}")

    with torch.no_grad():
        return _checked(entry, samples, limit, one)


def _weights(results: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in results]


def _gradients(run: Calls, sample: SampleInput, order: int) -> list[torch.Tensor | None]:
    """Gradients of a fixed random combination of the results (and, for order 2, of those gradients) by all inputs."""
    leaves = [t for t in inputs(sample) if t.requires_grad]
    torch.manual_seed(1)
    result = sample.output_process_fn_grad(run(sample))
    results = [t for t in tensors(result) if t.requires_grad]
    if not results or not leaves:
        raise Skipped("nothing requires a gradient")
    for step in range(order):
        cotangents = [w.to(t.device, t.dtype) for w, t in zip(_weights(results, step), results, strict=True)]
        grads = torch.autograd.grad(results, leaves, cotangents, allow_unused=True, create_graph=step + 1 < order)
        results = [g for g in grads if g is not None and g.requires_grad]
        if step + 1 < order and not results:
            raise Skipped("gradients do not depend on the inputs")
    return [None if g is None else g.detach() for g in grads]


def _backward(entry: OpInfo, dtype: torch.dtype, limit: int | None, order: int, compiled: bool = False) -> int:
    run = _called(lambda *a, **k: entry.gradcheck_wrapper(entry.op, *a, **k))
    on_device = _compiled(lambda *a, **k: entry.gradcheck_wrapper(entry.op, *a, **k)) if compiled else run
    samples = _samples(entry, dtype, grad=True)

    def one(sample: SampleInput) -> bool:
        reference = copied(sample)
        try:
            expected = _gradients(run, reference, order)
        except Exception:
            return False
        got = _gradients(on_device, placed(entry, sample), order)
        if [g is None for g in got] != [e is None for e in expected]:
            raise Mismatch("gradients are None for other inputs than on CPU")
        compare(got, expected, lambda: _gradients(run, widened(sample), order), values=not values_differ(entry, sample))
        return True

    return _checked(entry, samples, limit, one)


def backward(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    if not entry.supports_autograd:
        raise Skipped("no autograd")
    return _backward(entry, dtype, limit, 1)


def second_order(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    if not entry.supports_autograd or not entry.supports_gradgrad:
        raise Skipped("no second order")
    return _backward(entry, dtype, limit, 2)


def _compiled(op: Callable[..., Any]) -> Calls:
    """``op`` under torch.compile as one graph, compiled anew for each sample."""

    def call(first: Any, args: Any, kwargs: Any) -> Any:
        return op(first, *args, **kwargs)

    def compiled_for(backend: str, s: SampleInput) -> Any:
        torch._dynamo.reset()
        # The database sets seeds inside of some operators, which no graph can have.
        with mock.patch.object(common_methods_invocations, "wrapper_set_seed", lambda f, *a, **k: f(*a, **k)):
            compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=False)
            return compiled(s.input, s.args, s.kwargs)

    def run(s: SampleInput) -> Any:
        try:
            return compiled_for("tpu", s)
        except Exception:
            try:
                compiled_for("aot_eager", on("cpu", s))
            except Exception as e:
                raise Skipped("torch.compile(fullgraph=True) refuses it on CPU too") from e
            raise

    return run


def compiled(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """Forward under ``torch.compile(fullgraph=True)``."""
    with torch.no_grad():
        samples = _samples(entry, dtype)
        return _compared(entry, _called(entry.op), limit, samples, strides, on_device=_compiled(entry.op))


def compiled_backward(entry: OpInfo, dtype: torch.dtype, limit: int | None, strides: list[str]) -> int:
    """Gradients under ``torch.compile(fullgraph=True)``."""
    if not entry.supports_autograd:
        raise Skipped("no autograd")
    return _backward(entry, dtype, limit, 1, compiled=True)


CHECKS: dict[str, Callable[[OpInfo, torch.dtype, int | None, list[str]], int]] = {
    "forward": forward,
    "noncontiguous": noncontiguous,
    "inplace": inplace,
    "out": out,
    "errors": errors,
    "refused": refused,
    "backward": backward,
    "second_order": second_order,
    "compiled": compiled,
    "compiled_backward": compiled_backward,
}
