"""Kernels: the Python functions that PyTorch's dispatcher calls for operators on device tensors.

A kernel does three things: it collects the operands' arrays, builds the exact key of the call, and runs the plan of
that key. Its source is generated from the operator's schema, since a loop over parameters costs as much as the
program it starts. What is unusual (a CPU scalar among the operands, an ``out=`` of another shape, a storage made by
C++) takes the slow path, which puts the operands in order and calls the kernel again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.eager import modes, refusals
from torch_tpu.eager import plan as plans_module
from torch_tpu.eager.plan import Plan
from torch_tpu.eager.results import NeedsResize
from torch_tpu.eager.spec import Kind, Param, Spec
from torch_tpu.lowering import dtypes
from torch_tpu.runtime import buffers, programs, rng, scalars

_PLAN_LIMIT = 4096  # plans of one operator; shapes without end must not grow without end
CHUNK = 16  # tensors of a foreach or fused operator in one program
_INT64_END = 2**63


def build(spec: Spec) -> Callable[..., Any]:
    """The kernel of an operator."""
    source = _source(spec)
    plans: dict[Any, Plan] = {}
    programs.cache.holders.append(plans.clear)
    namespace: dict[str, Any] = {
        "plans": plans,
        "storage_of": torch.Tensor.untyped_storage,
        "Tensor": torch.Tensor,
        "Parameter": torch.nn.Parameter,
        "OTHERS": frozenset({bool, int, float, complex, type(None)}),
        "NUMBERS": frozenset({bool, int, float, complex}),
        "default_dtype": torch.get_default_dtype,
        "precision": torch.get_float32_matmul_precision,
        "draw_key": _draw_key,
        "resolved": resolve_lazy_bits,
        "CHUNK": CHUNK,
        "LIMIT": _INT64_END,
        "STATE": modes.state,
        "Buffer": buffers.Buffer,
        **{f"D{i}": p.default for i, p in enumerate(spec.params)},
        **{f"S{i}": p.special for i, p in enumerate(spec.params)},
    }
    exec(compile(source, f"<kernel of {spec.name}>", "exec"), namespace)
    kernel = namespace["kernel"]

    def make(key: Any, *values: Any) -> Plan | None:
        bound = {p.name: v for p, v in zip(spec.params, values, strict=True)}
        try:
            made = plans_module.make(spec, bound)
        except NeedsResize as e:
            if any(0 in t.stride() and t.numel() > 1 for t, _, _ in e.sizes):
                refusals.check(spec.op, bound)  # some kernels look before they resize
            for t, size, stride in e.sizes:
                _resize_out(t, size, stride)
            return None
        if len(plans) >= _PLAN_LIMIT:
            for old in list(plans)[: _PLAN_LIMIT // 4]:
                plans.pop(old, None)
        plans[key] = made
        return made

    def slow(*values: Any) -> Any:
        return _call_ordered(spec, kernel, _ordered(spec, values))

    def through(at: int, *values: Any) -> torch.Tensor:
        """Write to a tensor with a lazy bit by way of one without."""
        plain = resolve_lazy_bits(values[at])
        _call_ordered(spec, kernel, [*values[:at], plain, *values[at + 1 :]])
        return values[at].copy_(plain)

    def overlapping(key: Any, *values: Any) -> None:
        refusals.check_overlap(spec.op, key, {p.name: v for p, v in zip(spec.params, values, strict=True)})

    def check_numbers(numbers: Any, *values: Any) -> None:
        refusals.check_numbers(spec.op, {p.name: v for p, v in zip(spec.params, values, strict=True)})
        if len(allowed) >= _PLAN_LIMIT:
            allowed.clear()
        allowed.add(numbers)

    allowed: set[Any] = set()
    namespace.update(
        allowed=allowed,
        check_numbers=check_numbers,
        make=make,
        slow=slow,
        through=through,
        overlapping=overlapping,
        chunked=lambda *values: _chunked(spec, kernel, values),
    )
    return kernel


# Source --------------------------------------------------------------------------------------------------------


def _source(spec: Spec) -> str:
    names = [p.name if p.keyword else f"a{i}" for i, p in enumerate(spec.params)]
    signature, star = [], False
    for i, (p, n) in enumerate(zip(spec.params, names, strict=True)):
        if p.keyword and not star:
            signature.append("*")
            star = True
        required = p.default is None and p.kind is Kind.TENSOR and not _optional(spec, p.name)
        signature.append(n if required else f"{n}=D{i}")
    everything = ", ".join(names)
    body = [f"def kernel({', '.join(_defaults_last(signature))}):", "    arrays, numbers, targets = [], [], []"]
    if spec.takes_lazy_bits:
        for i, (p, n) in enumerate(zip(spec.params, names, strict=True)):
            if p.kind is Kind.TENSOR:
                then = f"return through({i}, {everything})" if p.mutated else f"{n} = resolved({n})"
                body.append(f"    if {n}.is_conj() or {n}.is_neg(): {then}")
    chunks = _is_chunked(spec)
    if chunks:
        body.append(f"    if len({names[0]}) > CHUNK: return chunked({everything})")
    keys = []
    for i, (p, n) in enumerate(zip(spec.params, names, strict=True)):
        lines = _SNIPPETS[p.kind](p, n, i, f"return slow({everything})")
        if _may_overlap(spec) and not p.mutated:
            at = next((at for at, line in enumerate(lines) if line.lstrip().startswith("arrays.append")), None)
            if at is not None:
                lines.insert(at, lines[at].partition("arrays")[0] + "read.append(b)")
        if lines:
            body += [f"    {line}" for line in lines]
            keys.append(f"k{i}")
    if spec.lowering.precision:
        keys.append("precision()")
    if spec.shaped_by_numbers:
        keys.append("tuple(numbers)")
    body.append(f"    key = ({', '.join([*keys, 'default_dtype()'])},)")
    if _may_overlap(spec):
        body.insert(1, "    read = []")
        body.append("    for b in targets:")
        body.append(f"        if b in read: overlapping(key, {everything})")
    body.append("    plan = plans.get(key)")
    body.append("    if plan is None:")
    body.append(f"        plan = make(key, {everything})")
    body.append(f"        if plan is None: return slow({everything})")
    if spec.op is spec.twin and not spec.list_return and not spec.lowering.rng and len(spec.returns) == 1:
        body.append("    if plan.call is not None and not numbers and not STATE.blocking:")
        body.append("        try: results = plan.call(*arrays)")
        body.append("        except Exception as e: raise plan.explained(e) from e")
        body.append("        return plan.make(Buffer(plan.made_as, results[0]))")
    if spec.lowering.rng and any(p.kind is Kind.NUMBER for p in spec.params):
        body.append(f"    if (key, *numbers) not in allowed: check_numbers((key, *numbers), {everything})")
    generator = next((n for p, n in zip(spec.params, names, strict=True) if p.kind is Kind.GENERATOR), "None")
    draw = f"draw_key({generator}, plan)" if spec.lowering.rng else "None"
    body.append(f"    made = plan.run(arrays, numbers, {draw}, targets)")
    body.append(f"    return {_returned(spec, names)}")
    return "\n".join(body)


def _defaults_last(signature: list[str]) -> list[str]:
    """Give every positional parameter behind a defaulted one a default too, as Python asks."""
    out, seen = [], False
    for s in signature:
        if s == "*":
            seen = False
        elif "=" in s:
            seen = True
        elif seen and "*" not in out:
            s = f"{s}=None"
        out.append(s)
    return out


def _may_overlap(spec: Spec) -> bool:
    """Whether what is written to may share its memory with another operand, which PyTorch may refuse."""
    return bool(spec.mutated) and all(p.kind is Kind.TENSOR for p in spec.mutated)


def _optional(spec: Spec, name: str) -> bool:
    return any(a.name == name and str(a.type).startswith("Optional") for a in spec.op._schema.arguments)


def _tensor_lines(p: Param, n: str, key: str, bail: str) -> list[str]:
    array = "b.array" if p.mutated else "b.array if b.array is not None else b.force()"
    lines = [
        f"try: b = storage_of({n}).tpu_buffer",
        f"except (AttributeError, TypeError): {bail}",
        f"{key}({n}.shape, {n}.stride(), {n}.storage_offset(), {n}.dtype, b.layout)",
        f"arrays.append({array})",
    ]
    if p.mutated:
        lines.append("targets.append(b)")
    if key.endswith(".append"):
        lines[2] = f"{key}(({lines[2].removeprefix(key + '(')[:-1]}))"
    return lines


def _tensor(p: Param, n: str, i: int, bail: str) -> list[str]:
    lines = _tensor_lines(p, n, f"k{i} = ", bail)
    if p.mutated:
        return lines
    special = f" and {n} not in S{i}" if p.special else ""
    return [
        f"t = type({n})",
        "if t is Tensor or t is Parameter or t not in OTHERS:",
        *(f"    {line}" for line in lines),
        f"elif {n} is None: k{i} = None",
        f"elif t is not bool{special}:",
        f"    k{i} = t if t is not int or {n} < LIMIT else 'uint64'",
        f"    numbers.append({n})",
        f"else: k{i} = (t, {n})",
    ]


def _tensors(p: Param, n: str, i: int, bail: str) -> list[str]:
    lines = _tensor_lines(p, "x", f"k{i}.append", bail)
    return [
        f"if {n} is None: k{i} = None",
        "else:",
        f"    k{i} = []",
        f"    for x in {n}:",
        f"        if x is None: k{i}.append(None)",
        "        else:",
        *(f"            {line}" for line in lines),
        f"    k{i} = tuple(k{i})",
    ]


def _number(p: Param, n: str, i: int, bail: str) -> list[str]:
    return [
        f"t = type({n})",
        f"if {n} is D{i}: k{i} = None",
        f"elif t is list or t is tuple: k{i} = tuple(map(type, {n})); numbers.extend({n})",
        f"elif t in NUMBERS and t is not bool and {n} not in S{i}:",
        f"    k{i} = t if t is not int or {n} < LIMIT else 'uint64'",
        f"    numbers.append({n})",
        f"else: k{i} = (t, {n})",
    ]


def _static(p: Param, n: str, i: int, bail: str) -> list[str]:
    return [f"k{i} = tuple({n}) if type({n}) is list else {n}"]


def _dropped(p: Param, n: str, i: int, bail: str) -> list[str]:
    return [f"k{i} = {n}"] if p.name in ("device", "memory_format") else []


_SNIPPETS: dict[Kind, Callable[[Param, str, int, str], list[str]]] = {
    Kind.TENSOR: _tensor,
    Kind.TENSORS: _tensors,
    Kind.NUMBER: _number,
    Kind.STATIC: _static,
    Kind.DROPPED: _dropped,
    Kind.GENERATOR: lambda p, n, i, bail: [],
}


def _returned(spec: Spec, names: list[str]) -> str:
    if spec.list_return or not spec.returns:
        return "made" if spec.returns else "None"
    name_of = {p.name: n for p, n in zip(spec.params, names, strict=True)}
    new = iter(range(spec.plain_returns))
    single = spec.plain_returns == 1 and not spec.mutated
    parts = [("made" if single else f"made[{next(new)}]") if r is None else name_of[r] for r in spec.returns]
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


# Slow path -----------------------------------------------------------------------------------------------------


def _draw_key(generator: Any, plan: Plan) -> Any:
    return rng.draw_key(default_generator(plan.device) if generator is None else check_generator(generator))


check_generator: Callable[[Any], Any] = lambda generator: generator  # noqa: E731  set by binding
default_generator: Callable[[int], Any] = lambda index: torch.default_generator  # noqa: E731  set by binding


def _call_ordered(spec: Spec, kernel: Callable[..., Any], values: list[Any]) -> Any:
    args = [v for p, v in zip(spec.params, values, strict=True) if not p.keyword]
    return kernel(*args, **{p.name: v for p, v in zip(spec.params, values, strict=True) if p.keyword})


def _ordered(spec: Spec, values: tuple[Any, ...]) -> list[Any]:
    """The arguments with every tensor on the device and its buffer known; raises where that cannot be."""
    if spec.lowering.check is not None:
        spec.lowering.check({p.name: v for p, v in zip(spec.params, values, strict=True)})
    flat = [t for v in values for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, torch.Tensor)]
    device = next((t.get_device() for t in flat if t.device.type == "tpu"), None)
    if device is None:
        raise RuntimeError(f"{spec.name}: no operand is on tpu (got {', '.join(str(t.device) for t in flat)})")
    out = []
    for p, v in zip(spec.params, values, strict=True):
        if isinstance(v, torch.Tensor):
            v = on_device(spec.name, v, device, p.mutated)
        elif isinstance(v, (list, tuple)):
            v = [on_device(spec.name, t, device, p.mutated) if isinstance(t, torch.Tensor) else t for t in v]
        out.append(v)
    return out


def on_device(name: str, t: torch.Tensor, device: int, mutated: bool = False) -> torch.Tensor:
    """``t`` itself on tpu (its buffer found), or a device copy of a 0-d CPU tensor, which takes part as a number."""
    if t.device.type == "tpu":
        binding_tensor.buffer_of(t)
        return t
    if t.device.type == "cpu" and t.ndim == 0 and not mutated:
        return scalar_tensor(t.item(), t.dtype, device)
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, tpu:{device} and "
        f"{t.device}! (in {name})"
    )


def scalar_tensor(value: Any, dtype: torch.dtype, device: int) -> torch.Tensor:
    """A 0-d device tensor with the value."""
    jax_dtype = dtypes.to_jax(dtype)
    array = scalars.scalar(value, jax_dtype, device)
    buffer = buffers.Buffer(buffers.layout((), jax_dtype, device), array)
    return binding_tensor.factory((), (), dtype, device).make(buffer)


def _resize_out(t: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    t.resize_(size)
    if t.stride() != stride:
        from torch_tpu.eager import copies  # copies is built on kernels

        # Strides with gaps reach further than the elements.
        copies.restride(t, size, stride)


def resolve_lazy_bits(t: torch.Tensor) -> torch.Tensor:
    from torch_tpu.eager import copies  # copies is built on kernels

    return copies.resolved(t)


# Lists of tensors ----------------------------------------------------------------------------------------------


def _is_chunked(spec: Spec) -> bool:
    """foreach and fused operators do the same to each element of their lists: any run of them is a program."""
    named = spec.name.removeprefix("aten::").startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad"))
    return (named or "_amp_foreach" in spec.name) and spec.params[0].kind is Kind.TENSORS


def _chunked(spec: Spec, kernel: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    n = len(values[0])
    results: list[Any] = []
    for start in range(0, n, CHUNK):
        part = [v[start : start + CHUNK] if isinstance(v, (list, tuple)) and len(v) == n else v for v in values]
        result = _call_ordered(spec, kernel, part)
        if spec.list_return:
            results.extend(result)
    return results if spec.list_return else None
