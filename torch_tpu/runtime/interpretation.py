"""Pallas TPU kernels on a platform that is no TPU.

XLA:CPU cannot compile a Mosaic kernel, so before a program is compiled for it, every ``pallas_call`` in it is told to
be interpreted. That happens on the finished program, behind differentiation and batching: those see the kernel that
they would see on a TPU. JAX's TPU interpreter simulates the chip's memories, DMAs and semaphores by callbacks into
Python; its state is one for the process, so such a program runs alone and is waited for, which also lets an error of
the kernel be raised where it was called, with the kernel's line.

While a kernel is traced, JAX and kernel libraries ask what chip they are on; ``seen_as`` answers for the chip that is
simulated, or compiled for. All use of JAX's private names for this is in this file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.extend.backend
import numpy as np
from jax.extend import core as jax_core
from jax.extend.core import primitives

CHIP_VARIABLE = "TORCH_TPU_INTERPRET_CHIP"
CHIPS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "v7x": "TPU7x"}
"""Chip -> what JAX calls its devices."""


class KernelError(RuntimeError):
    """A Pallas kernel failed while it was interpreted; the message has the kernel's line."""


class KernelIndexError(KernelError, IndexError):
    """A Pallas kernel read or wrote outside of a buffer."""


class KernelRaceError(KernelError):
    """Two accesses of a Pallas kernel to the same memory, one of them a write, are not ordered."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How kernels are interpreted; see ``torch.tpu.pallas.interpret``."""

    mode: Literal["simulate", "plain"] = "simulate"
    detect_races: bool = False
    out_of_bounds_reads: Literal["raise", "uninitialized"] = "raise"
    bounds: Literal["logical", "padded"] = "logical"
    dma: Literal["on_wait", "eager"] = "on_wait"
    uninitialized: Literal["nan", "zero"] = "nan"
    seed: int | None = None

    def __post_init__(self) -> None:
        allowed: dict[str, Sequence[object]] = {
            "mode": ("simulate", "plain"), "out_of_bounds_reads": ("raise", "uninitialized"),
            "bounds": ("logical", "padded"), "dma": ("on_wait", "eager"), "uninitialized": ("nan", "zero"),
        }  # fmt: skip
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"interpret: {name}={getattr(self, name)!r}; expected one of {', '.join(map(repr, values))}"
                )

    def params(self) -> Any:
        """The value of ``pallas_call``'s ``interpret``."""
        if self.mode == "plain":
            return True
        from jax.experimental.pallas import tpu as pltpu

        return pltpu.InterpretParams(
            detect_races=self.detect_races, out_of_bounds_reads=self.out_of_bounds_reads, buffer_bounds=self.bounds,
            dma_execution_mode=self.dma, uninitialized_memory=self.uninitialized, random_seed=self.seed,
        )  # fmt: skip


_DEFAULT = Options()


class _State(threading.local):
    options = _DEFAULT
    target: tuple[str, str] | None = None  # (platform, chip) that a program is lowered for, if not this process's
    device: Any = None  # what ``jax.extend.backend.get_default_device`` says


_state = _State()


def options() -> Options:
    """The options in force in this thread."""
    return _state.options


@contextlib.contextmanager
def use(chosen: Options) -> Iterator[None]:
    before, _state.options = _state.options, chosen
    try:
        yield
    finally:
        _state.options = before


# What chip kernels see -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def lowering_for(platform: str, chip: str | None = None) -> Iterator[None]:
    """Programs traced inside are for another platform ("tpu", "cpu") than this process's, or for a chip by name."""
    before, _state.target = _state.target, (platform, chip or simulated_chip())
    try:
        yield
    finally:
        _state.target = before


def target(platform: str) -> tuple[str, str | None]:
    """(platform, chip) of the programs traced now; the chip is None where a real one says what it is."""
    if _state.target is not None:
        return _state.target
    return platform, None if platform == "tpu" else simulated_chip()


@functools.cache
def simulated_chip() -> str:
    """The chip that kernels find where there is none: v6e, or what the environment says."""
    found = os.environ.get(CHIP_VARIABLE, "v6e")
    if found not in CHIPS:
        raise ValueError(f"{CHIP_VARIABLE}={found!r}: unknown chip; use one of {', '.join(CHIPS)}")
    return found


@contextlib.contextmanager
def seen_as(chip: str | None) -> Iterator[None]:
    """Let what is traced inside find a TPU chip of this name; nothing for None."""
    if chip is None:
        yield
        return
    _answer_for_default_device()
    device = jax.sharding.AbstractDevice(CHIPS[chip], 2 if chip == "v5p" else 1, "tpu")
    before, _state.device = _state.device, device
    try:
        mesh = jax.sharding.get_abstract_mesh()
        named = jax.sharding.AbstractMesh(
            mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types or None, abstract_device=device
        )
        with jax.sharding.use_abstract_mesh(named):
            yield
    finally:
        _state.device = before


_answering = threading.Lock()


def _answer_for_default_device() -> None:
    """Kernel libraries (tokamax) ask ``jax.extend.backend`` for the device where JAX's own kernels ask the mesh."""
    with _answering:
        original = jax.extend.backend.get_default_device
        if getattr(original, "_torch_tpu", False):
            return

        def get_default_device() -> Any:
            return _state.device if _state.device is not None else original()

        get_default_device._torch_tpu = True  # type: ignore[attr-defined]
        jax.extend.backend.get_default_device = get_default_device


# Rewriting a program -------------------------------------------------------------------------------------------

KERNELS = frozenset({"pallas_call", "mpmd_map"})
"""JAX's operations that are a Pallas kernel."""


def has_kernels(jaxpr: Any) -> bool:
    """Whether a program has a Pallas kernel that is to be compiled, at any depth."""
    return any(
        _is_kernel(eqn) or any(has_kernels(j) for j in inner_jaxprs(eqn.params.values())) for eqn in jaxpr.eqns
    )  # fmt: skip


def _is_kernel(eqn: Any) -> bool:
    if eqn.primitive.name not in KERNELS or eqn.params.get("interpret", True):
        return False
    written_for = type(eqn.params.get("compiler_params")).__module__
    return "mosaic_gpu" not in written_for and "triton" not in written_for


def inner_jaxprs(values: Any) -> Iterator[Any]:
    """The programs among the parameters of an operation."""
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from inner_jaxprs(v)
        elif isinstance(v, jax_core.ClosedJaxpr):
            yield v.jaxpr
        elif isinstance(v, jax_core.Jaxpr):
            yield v


def interpreted(closed: Any, chosen: Options) -> Callable[..., list[Any]]:
    """The program ``closed`` as a function of its operands, with its kernels interpreted."""
    rewritten = jax_core.ClosedJaxpr(_rewritten(closed.jaxpr, chosen.params()), closed.consts)
    return lambda *operands: jax_core.jaxpr_as_fun(rewritten)(*operands)


def storable(jitted: Any, operands: Sequence[Any]) -> Any:
    """A jitted function for a platform that is no TPU, in a form that another process can run: its kernels, if it has
    any, are interpreted without callbacks."""
    traced = jitted.trace(*operands)
    if not has_kernels(traced.jaxpr.jaxpr):
        return jitted
    flat = interpreted(traced.jaxpr, Options(mode="plain"))
    structure = jax.tree_util.tree_structure(traced.out_info)

    def function(*arguments: Any) -> Any:
        return jax.tree_util.tree_unflatten(structure, flat(*jax.tree_util.tree_leaves(arguments)))

    return jax.jit(function)


def _rewritten(jaxpr: Any, params: Any) -> Any:
    eqns = [_rewritten_eqn(eqn, params) for eqn in jaxpr.eqns]
    effects = jaxpr.effects.union(*(eqn.effects for eqn in eqns))
    return jaxpr.replace(eqns=eqns, effects=effects)


def _rewritten_eqn(eqn: Any, params: Any) -> Any:
    if _is_kernel(eqn):
        from jax._src.pallas.core import get_interpret_effects

        from torch_tpu.runtime.interpretable import for_all_dimensions, interpretable

        effects = {*eqn.effects, *get_interpret_effects(params)}
        changed = {**eqn.params, "interpret": params}
        if params is not True:
            changed["jaxpr"] = interpretable(changed["jaxpr"])
            changed["compiler_params"] = for_all_dimensions(changed["compiler_params"], changed["grid_mapping"])
        return eqn.replace(params=changed, effects=effects)
    inner = list(inner_jaxprs(eqn.params.values()))
    if not any(has_kernels(j) for j in inner):
        return eqn
    changed = {k: _with_inner(v, params) for k, v in eqn.params.items()}
    effects = eqn.effects.union(*(j.effects for j in inner_jaxprs(changed.values())))
    if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
        # Derivatives are taken by now; as calls they would refuse a function with effects.
        called = {"call_jaxpr": changed["call_jaxpr"]}
        return eqn.replace(primitive=primitives.closed_call_p, params=called, effects=effects)
    return eqn.replace(params=changed, effects=effects)


def _with_inner(value: Any, params: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_with_inner(v, params) for v in value) if not hasattr(value, "_fields") else value
    if isinstance(value, jax_core.ClosedJaxpr):
        return value.replace(jaxpr=_rewritten(value.jaxpr, params))
    return _rewritten(value, params) if isinstance(value, jax_core.Jaxpr) else value


# Running one ---------------------------------------------------------------------------------------------------

_one_at_a_time = threading.RLock()


class Interpreted:
    """A program with kernels to interpret, compiled for each way in which they are: it runs alone, to its end, and
    errors of its kernels are in terms of the kernel. It cannot be stored: it calls back into this process."""

    def __init__(
        self, jaxpr: Any, avals: Sequence[Any], donate: tuple[int, ...], compiler_options: Any, label: str
    ):  # fmt: skip
        self._jaxpr, self._avals, self._donate, self._label = jaxpr, tuple(avals), donate, label
        self._compiler_options = dict(compiler_options or {}) or None
        self._compiled: dict[Options, Callable[..., Any]] = {}

    def _for(self, chosen: Options) -> Callable[..., Any]:
        found = self._compiled.get(chosen)
        if found is None:
            with jax.enable_x64(True):
                fn = interpreted(self._jaxpr, chosen)
                lowered = jax.jit(fn, donate_argnums=self._donate, keep_unused=True).lower(*self._avals)
                found = self._compiled[chosen] = lowered.compile(compiler_options=self._compiler_options)
        return found

    def __call__(self, *operands: Any) -> Any:
        compiled = self._for(options())
        with _one_at_a_time, _listening() as heard:
            try:
                results = compiled(*operands)
                jax.block_until_ready(results)
            except Exception as e:
                _forget_state()
                if not heard.failures:
                    raise
                raise _explained(self._label, heard.failures[0]) from e
            if heard.races:
                _forget_state()
                raise KernelRaceError(f"{self._label}: {heard.races[0].strip()}")
            return results


def _forget_state() -> None:
    from jax.experimental.pallas import tpu as pltpu

    pltpu.reset_tpu_interpret_mode_state()


class _Heard(logging.Filter):
    """Collects what goes wrong in a callback, which reaches the caller as XLA's error without it, and keeps JAX from
    logging it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[BaseException] = []
        self.races: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            self.failures.append(record.exc_info[1])
            return False
        return True


@contextlib.contextmanager
def _listening() -> Iterator[_Heard]:
    from jax._src.pallas.mosaic.interpret import race_detection_state

    heard = _Heard()
    logger = logging.getLogger("jax._src.callback")
    logger.addFilter(heard)
    # The detector prints what it finds.
    race_detection_state.print = lambda text, *rest: heard.races.append(str(text))  # type: ignore[attr-defined]
    try:
        yield heard
    finally:
        logger.removeFilter(heard)
        del race_detection_state.print  # type: ignore[attr-defined]


def _explained(label: str, failure: BaseException) -> KernelError:
    """The interpreter's exception as one that names the kernel's line."""
    where, access = _place_of(failure)
    text = str(failure).strip()
    outside = isinstance(failure, IndexError) or "ut-of-bounds" in text
    if access is not None and not text:
        text, outside = f"out-of-bounds access: {access}", True
    kind = KernelIndexError if outside else KernelError
    text = text or type(failure).__name__
    return kind(f"{label}: {text}" + (f"\n  in the Pallas kernel at {where}" if where else ""))


def _range(indices: Any) -> str:
    shown = [f"{i.start}:{i.stop}" + (f":{i.step}" if i.step != 1 else "") if isinstance(i, slice) else str(i)
             for i in indices]  # fmt: skip
    return f"[{', '.join(shown)}]"


def _place_of(failure: BaseException) -> tuple[str, str | None]:
    """(the kernel's line, what range of what shape it meant), from the interpreter's own frames."""
    from jax._src import source_info_util

    where, access = "", None
    step = failure.__traceback__
    while step is not None:
        values = step.tb_frame.f_locals
        source = values.get("source_info")
        if source is not None and not where:
            where = str(source_info_util.summarize(source))
        if step.tb_next is None and "rnge" in values and "buff" in values:
            shape = np.shape(getattr(values.get("value"), "shape", ())) and tuple(values["value"].shape)
            access = f"{_range(values['rnge'])} of a buffer of shape {tuple(values['buff'].logical_shape)}"
            access += f", for a value of shape {shape}" if shape else ""
        step = step.tb_next
    return where, access
