"""Artifacts: programs with their weights, which run without the model's code."""

from __future__ import annotations

import builtins
import dataclasses
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.export import ExportedProgram

from torch_tpu.binding import generator
from torch_tpu.binding import tensor as binding_tensor
from torch_tpu.eager import modes
from torch_tpu.eager.plan import SOLE_REFERENCES
from torch_tpu.export import archive
from torch_tpu.export.archive import Program
from torch_tpu.export.errors import ArtifactError
from torch_tpu.export.program import Function, to_numpy
from torch_tpu.export.signature import Signature, check_range
from torch_tpu.export.structure import Structure
from torch_tpu.lowering import checks, dtypes
from torch_tpu.runtime import buffers, errors, platform, programs, rng, scalars, transfer
from torch_tpu.runtime.buffers import Buffer, Layout

PLATFORMS = ("tpu", "cpu")
_KEEP_PLANS = 1024  # one is kept for each combination of sizes
_KNOWN_PLATFORMS = ("tpu", "cpu", "cuda")


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How a program runs for arguments of certain shapes."""

    program: Program
    layouts: tuple[Layout, ...]  # of the operands: weights, then inputs
    written: tuple[int, ...]  # operands that are overwritten
    checks: list[tuple[str, type[Exception]]]
    compiled: dict[tuple[int, ...], programs.Program]


class Artifact:
    """An exported model: call it as the model, with tensors on device tpu.

    Buffers that the model writes (batch-norm statistics, a cache) are kept here and change from call to call, as they
    do in the model; arguments that it writes are written. Results are contiguous and have no gradient.
    """

    def __init__(self, signature: Signature, found: Sequence[Program], weights: Mapping[str, torch.Tensor]):
        self.signature = signature
        self.programs = list(found)
        self._weights = dict(weights)  # of any device, until the first call
        self._arguments, self._result = Structure(signature.arguments), Structure(signature.result)
        self._tensor_at = tuple(i for i, x in enumerate(signature.inputs) if x.kind == "tensor")
        self._size_at = tuple(i for i, x in enumerate(signature.inputs) if x.kind == "size")
        self._plans: dict[Any, _Plan] = {}
        self._buffers: list[Buffer] = []  # of the weights, on the device
        self._placed: int | None = None  # the device that the weights are on

    # What it is ------------------------------------------------------------------------------------------------

    @property
    def platforms(self) -> tuple[str, ...]:
        """What it was lowered for."""
        return tuple(dict.fromkeys(p.platform for p in self.programs))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Its weights by name, tied ones under each of their names."""
        return {**self._weights, **{name: self._weights[of] for name, of in self.signature.same.items()}}

    def mlir(self, platform: str | None = None, sizes: Mapping[str, int] | None = None) -> str:
        """A program's StableHLO as text, with the names of its arguments; the first one if nothing is asked for."""
        text = str(self._program(platform, sizes).exported.mlir_module())
        return re.sub(r"^#loc.*\n|[ ]loc\((#loc\d*|unknown)\)", "", text, flags=re.MULTILINE).strip() + "\n"

    def bytecode(self, platform: str | None = None, sizes: Mapping[str, int] | None = None) -> bytes:
        """A program's StableHLO as portable bytecode (a StableHLO "portable artifact")."""
        return bytes(self._program(platform, sizes).exported.mlir_module_serialized)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, with the weights as they are now; ``load`` reads it."""
        archive.write(path, self.signature, self.programs, self._weights, to_numpy)

    def _program(self, wanted: str | None, sizes: Mapping[str, int] | None) -> Program:
        for p in self.programs:
            if wanted in (None, p.platform) and (sizes is None or p.sizes is None or p.sizes == dict(sizes)):
                return p
        there = "; ".join(f"{p.platform}{_shown(p.sizes)}" for p in self.programs)
        asked = f"{wanted or 'any platform'}{_shown(sizes)}"
        raise ArtifactError(f"the artifact has no program for {asked}; it has: {there}. Export the model again")

    # Calls -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """
        Raises:
          ValueError, TypeError: arguments of another structure, shape or dtype than were exported.
          ArtifactError: it has no program for this platform, or these sizes.
        """
        try:
            leaves = self._arguments.flatten((args, kwargs))
        except ValueError as e:
            names = ", ".join(x.name for x in self.signature.inputs)
            raise ValueError(f"the model was exported with other arguments ({names}): {e}") from None
        sizes = self.signature.bind(leaves)
        tensors = [leaves[i] for i in self._tensor_at]
        device = self._device(tensors)
        self._place(device)
        shapes = tuple(tuple(t.shape) for t in tensors)
        key = (device, shapes, tuple(leaves[i] for i in self._size_at))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _KEEP_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._plan(device, shapes, sizes)
        return self._run(plan, device, leaves, tensors)

    def _device(self, tensors: Sequence[torch.Tensor]) -> int:
        """The index of the device that the arguments are on."""
        found = None
        for i, t in zip(self._tensor_at, tensors, strict=True):
            name = self.signature.inputs[i].name
            if t.device.type != "tpu":
                raise ValueError(f"{name} is on device {t.device}; an artifact runs on device tpu; use .to('tpu')")
            if found is not None and t.device != found:
                raise ValueError(f"{name} is on {t.device}, other arguments on {found}")
            if t.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(
                    f"{name} requires grad, but an artifact has no gradient; call it under torch.no_grad()"
                )
            found = t.device
        if found is None:
            found = next((t.device for t in self._weights.values() if t.device.type == "tpu"), torch.device("tpu", 0))
        return found.index or 0

    def _place(self, device: int) -> None:
        """The weights to the device, once. What the model writes becomes the artifact's own."""
        if self._placed == device:
            return
        target = torch.device("tpu", device)
        for name, t in self._weights.items():
            there = t.detach().to(target)
            if there.data_ptr() == t.data_ptr() and name in self.signature.written_weights:
                there = there.clone()
            layout = buffers.layout(tuple(t.shape), dtypes.to_jax(t.dtype), device)
            self._weights[name] = _whole(there, layout)
        self._buffers = [binding_tensor.buffer_of(t) for t in self._weights.values()]
        self._placed = device

    def _plan(self, device: int, shapes: Sequence[tuple[int, ...]], sizes: Mapping[str, int]) -> _Plan:
        program = self._choose(sizes)
        layouts = [buffers.layout(tuple(t.shape), dtypes.to_jax(t.dtype), device) for t in self._weights.values()]
        for i, shape in zip(self._tensor_at, shapes, strict=True):
            dtype = dtypes.to_jax(getattr(torch, self.signature.inputs[i].dtype))
            layouts.append(buffers.layout(shape, dtype, device))
        order = list(self._weights)
        written = [order.index(n) for n in self.signature.written_weights]
        written += [len(order) + self._tensor_at.index(i) for i in self.signature.written_inputs]
        asked = [(message, _error(name)) for message, name in program.checks]
        return _Plan(program, tuple(layouts), tuple(written), asked, {})

    def _choose(self, sizes: Mapping[str, int]) -> Program:
        here = platform.name()
        mine = [p for p in self.programs if p.platform == here]
        if not mine:
            raise ArtifactError(
                f"the artifact was exported for {', '.join(self.platforms)}, and device tpu is on platform {here!r} in "
                f"this process; export the model again with platforms=({here!r},)"
            )
        for p in mine:
            if p.sizes is None and 0 in sizes.values():
                raise ArtifactError(
                    f"the artifact's program is for sizes of at least 1, got{_shown(sizes)}; export it again with "
                    f"sizes=[{dict(sizes)}]"
                )
            if p.sizes is None or all(p.sizes.get(n) == size for n, size in sizes.items()):
                return p
        there = ", ".join(_shown(p.sizes).strip() for p in mine)
        raise ArtifactError(
            f"the artifact has no program for{_shown(sizes)}; it has {there}. Pad the arguments, or export it again "
            "with these sizes"
        )

    def _run(self, plan: _Plan, device: int, leaves: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Any:
        if self.signature.written_inputs:
            self._refuse_shared(leaves)
        n_weights = len(self._buffers)
        whole = [_whole(t, layout) for t, layout in zip(tensors, plan.layouts[n_weights:], strict=True)]
        found = [*self._buffers, *(binding_tensor.buffer_of(t) for t in whole)]
        arrays = [b.force() for b in found]
        donate = tuple([k for k in plan.written if sys.getrefcount(arrays[k]) <= SOLE_REFERENCES])
        rest: list[Any] = [scalars.scalar(leaves[i], np.dtype(np.int64), device) for i in self._size_at]
        if self.signature.is_random:
            rest.append(rng.draw_key(generator.default_generator(device)))
        program = plan.compiled.get(donate)
        if program is None:
            program = plan.compiled[donate] = self._compile(plan, device, arrays, rest, donate)
        try:
            results = program.call(*arrays, *rest)
        except (jax.errors.JaxRuntimeError, MemoryError) as e:
            raise errors.translate(e, program.label, device) from e
        program.call = program.direct()
        n = len(plan.written)
        for k, value in zip(plan.written, results[:n], strict=True):
            found[k].set(value, plan.layouts[k])
            if k >= n_weights:
                self._written(tensors[k - n_weights], whole[k - n_weights])
        if plan.checks:
            modes.expect_all(results.pop(), plan.checks)
        if modes.state.blocking:
            with errors.translated(program.label, device):
                jax.block_until_ready(results)
            modes.raise_failed()
        return self._outputs(leaves, results[n:], device)

    def _refuse_shared(self, leaves: Sequence[Any]) -> None:
        """The program takes an argument that it writes as memory of its own."""
        written, inputs = self.signature.written_inputs, self.signature.inputs
        first: dict[int, int] = {}
        for i in self._tensor_at:
            at = first.setdefault(id(binding_tensor.buffer_of(leaves[i])), i)
            if at != i and (at in written or i in written):
                names = f"{inputs[at].name} and {inputs[i].name}"
                raise ValueError(f"{names} share memory, and the program writes to it: pass a clone of one")

    def _written(self, given: torch.Tensor, whole: torch.Tensor) -> None:
        """An argument's buffer, or its copy's, has a new value."""
        if whole is given:
            torch.autograd.graph.increment_version(given)
        else:
            given.copy_(whole)

    def _outputs(self, leaves: Sequence[Any], results: Sequence[jax.Array], device: int) -> Any:
        rest = iter(results)
        out: list[Any] = []
        for o in self.signature.outputs:
            if o.kind == "program":
                out.append(_tensor(next(rest), device))
            elif o.kind == "number":
                out.append(next(rest).item())
            else:
                out.append(leaves[o.value] if o.kind == "input" else o.value)
        return self._result.unflatten(out)

    def _compile(
        self, plan: _Plan, device: int, arrays: Sequence[jax.Array], rest: Sequence[Any], donate: tuple[int, ...]
    ) -> programs.Program:
        exported, names = plan.program.exported, tuple(self._weights)
        of_inputs = len(arrays) - len(names) + len(self._size_at)
        # The order of the leaves: sizes stand among the tensors.
        leaf_order = [*self._tensor_at, *self._size_at]
        order = sorted(range(of_inputs), key=lambda k: leaf_order[k])
        signature = self.signature

        def call(*operands: Any) -> list[Any]:
            weights = dict(zip(names, operands, strict=False))
            passed = operands[len(names) : len(names) + of_inputs]
            result = exported.call(weights, [passed[k] for k in order], *operands[len(names) + of_inputs :])
            return [
                *(result["weights"][n] for n in signature.written_weights),
                *(result["inputs"][str(i)] for i in signature.written_inputs),
                *result["outputs"],
                *([result["checks"]] if plan.program.checks else []),
            ]

        place = platform.sharding(device)
        avals = [jax.ShapeDtypeStruct(layout.shape, layout.dtype, sharding=place) for layout in plan.layouts]
        avals += [jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=place) for x in rest]
        key = ("artifact", plan.program.digest, names, tuple((a.shape, str(a.dtype)) for a in avals), donate, device)
        try:
            return programs.cache.get(key, "exported program", call, avals, donate, device=device)
        except ValueError as e:  # what jax.export says of arguments that the program does not take
            raise ValueError(f"the exported program does not take these arguments: {e}") from e


def _error(name: str) -> type[Exception]:
    """The type of a failed check, by its name."""
    singular: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
    found = singular if name == singular.__name__ else getattr(checks, name, getattr(builtins, name, None))
    return found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError


def _whole(t: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The tensor itself where its buffer's array is its values; else a copy of which that is true."""
    lazy = t.is_conj() or t.is_neg()
    if not lazy and binding_tensor.buffer_of(t).layout is layout and t.is_contiguous():
        return t
    with torch.no_grad():
        return t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _tensor(array: jax.Array, device: int) -> torch.Tensor:
    dtype = dtypes.to_torch(array.dtype)
    layout = buffers.layout(tuple(array.shape), np.dtype(array.dtype), device)
    strides = buffers.canonical_strides(layout.shape)
    return binding_tensor.factory(layout.shape, strides, dtype, device).make(Buffer(layout, array))


def _shown(sizes: Mapping[str, int] | None) -> str:
    return " (" + ", ".join(f"{n}={v}" for n, v in sizes.items()) + ")" if sizes else ""


def make(
    program: ExportedProgram,
    *,
    platforms: Iterable[str] = PLATFORMS,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
) -> Artifact:
    """See ``torch_tpu.export.export``."""
    wanted = (platforms,) if isinstance(platforms, str) else tuple(platforms or ())
    unknown = [p for p in wanted if p not in _KNOWN_PLATFORMS]
    if unknown or not wanted:
        what = f"unknown platform {', '.join(map(repr, unknown))}" if unknown else f"no platform in {platforms!r}"
        raise ValueError(f"{what}; use one of {', '.join(_KNOWN_PLATFORMS)}")
    function = Function(program)
    choices = _choices(function.signature, sizes)
    found = []
    for name in wanted:
        for chosen in choices:
            exported, checks = function.export(name, chosen)
            found.append(Program(name, chosen, bytes(exported.serialize()), checks))
    return Artifact(function.signature, found, function.weights)


def _choices(
    signature: Signature, sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None
) -> list[dict[str, int] | None]:
    if sizes is None:
        return [None]
    found: list[dict[str, int] | None] = []
    for one in [sizes] if isinstance(sizes, Mapping) else sizes:
        if set(one) != set(signature.dimensions):
            have = ", ".join(signature.dimensions) or "none"
            raise ValueError(f"sizes={dict(one)}: name every dimension that may change, and no other; they are: {have}")
        for name, size in one.items():
            check_range("sizes", name, size, signature.dimensions[name])
        found.append({n: int(one[n]) for n in signature.dimensions})
    return found


def read(path: str | os.PathLike[str], device: str | torch.device | int | None = None) -> Artifact:
    """See ``torch_tpu.export.load``."""
    given = "tpu" if device is None else device
    target = torch.device("tpu", given) if isinstance(given, int) else torch.device(given)
    if target.type != "tpu":
        raise ValueError(f"an artifact runs on device tpu, not {target}")
    with archive.Reader(path) as reader:
        signature, found = reader.signature(), reader.programs()
        index = target.index if target.index is not None else torch.tpu.current_device()  # type: ignore[attr-defined]
        weights = {}
        for name, values, dtype in reader.weights():
            array = transfer.put(values.copy(), index)
            if dtypes.to_torch(array.dtype) != dtype:
                raise ArtifactError(f"{path}: weight {name} is {array.dtype} on the device, not {dtype}")
            weights[name] = _tensor(array, index)
    return Artifact(signature, found, weights)
