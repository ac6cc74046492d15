"""Compile the programs that operators run, for TPUs that are not there.

``recording`` sees every program that the device asks for while ``exercise`` runs an entry of the operator database;
``compile_for`` hands one to libtpu for a named topology.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import checks
import jax
import numpy as np
import torch
from jax.experimental import topologies
from mirror import inputs, tensors
from torch.testing._internal.opinfo.core import OpInfo

from torch_tpu.aot.compiler import LIBTPU_ENVIRONMENT
from torch_tpu.runtime import programs, transfer

# libtpu is only asked to compile: it must not look for a device, and other processes may compile at the same time.
for name, value in LIBTPU_ENVIRONMENT.items():
    os.environ.setdefault(name, value)

TOPOLOGIES = ("v6e:2x2", "v5e:2x2")

_CLASSES = {
    "float32": "float32", "float64": "float64", "float16": "half", "bfloat16": "half", "bool": "bool",
    "complex64": "complex64", "complex128": "complex128",
}  # fmt: skip


@dataclasses.dataclass
class Made:
    """A program: the operator it is for, what its operands are, and the function to compile."""

    operator: str
    kind: str
    fn: Callable[..., Any]
    avals: Sequence[jax.ShapeDtypeStruct]

    @property
    def elements(self) -> int:
        """How many elements the operands have; none if one of them is empty, as it makes the program trivial."""
        sizes = [math.prod(a.shape) for a in self.avals]
        return sum(sizes) if all(sizes) else 0


def kind_of(avals: Sequence[Any], results: Sequence[str]) -> str:
    """The class of dtypes of a program: that of its widest floating operand, else of its integers."""
    kinds = [_CLASSES.get(str(np.dtype(a.dtype)), "float8" if "float8" in str(a.dtype) else "integer") for a in avals]
    order = ("complex128", "complex64", "float64", "float32", "half", "float8", "integer", "bool")
    # A number travels as a 0-d operand, and says nothing of the class.
    ranked = [k for a, k in zip(avals, kinds, strict=True) if a.shape] or kinds or list(results)
    return next((k for k in order if k in ranked), "none")


@contextlib.contextmanager
def recording(found: list[Made]) -> Iterator[None]:
    """Collect the eager programs that are asked for inside. None is compiled for this machine: each gives zeros."""
    get = programs.ProgramCache.get

    def recorded(
        self: Any, key: Any, label: str, fn: Any, avals: Any, donate: Any = (), notes: Any = lambda: None, *,
        device: int = 0, **kwargs: Any,
    ) -> Any:  # fmt: skip
        if key and key[0] == "eager":
            outs = [_CLASSES.get(str(o[2]).removeprefix("torch."), "integer") for o in key[5]]
            found.append(Made(label, kind_of(avals, outs), fn, avals))
        with jax.enable_x64(True):
            shapes = jax.tree_util.tree_leaves(jax.eval_shape(fn, *avals))

        def zeros(*operands: Any) -> list[Any]:
            return [transfer.put(np.zeros(s.shape, s.dtype), device) for s in shapes]

        return programs.Program(key, label, zeros, notes(), zeros)  # type: ignore[arg-type]

    programs.ProgramCache.get = recorded
    try:
        yield
    finally:
        programs.ProgramCache.get = get


def exercise(entry: OpInfo, dtype: torch.dtype, limit: int) -> None:
    """Run an entry on a few of its samples: forward, in place, and backward twice."""
    grad = dtype in entry.supported_backward_dtypes("cpu")
    samples = list(entry.sample_inputs("cpu", dtype, requires_grad=grad))
    step = max(1, len(samples) // limit)
    for sample in samples[::step][:limit]:
        device = checks.placed(entry, sample)
        with contextlib.suppress(Exception):  # zeros are not what some operators take: the other sweep's business
            result = sample.output_process_fn_grad(entry.op(device.input, *device.args, **device.kwargs))
            results = [t for t in tensors(result) if t.requires_grad]
            leaves = [t for t in inputs(device) if t.requires_grad]
            grads = torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results], allow_unused=True,
                                        create_graph=True)  # fmt: skip
            again = [g for g in grads if g is not None and g.requires_grad]
            torch.autograd.grad(again, leaves, [torch.ones_like(t) for t in again], allow_unused=True)
        form = entry.get_inplace()
        if form is not None and not sample.broadcasts_input:
            device = checks.placed(entry, sample)
            with contextlib.suppress(Exception), torch.no_grad():
                form(device.input, *device.args, **device.kwargs)


@functools.cache
def place(topology: str) -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(topologies.get_topology_desc(topology, "tpu").devices[0])


def compile_for(topology: str, made: Made) -> dict[str, Any]:
    """Compile a program with libtpu; says whether it could, the compiler's word if not, and the seconds it took."""
    start, word = time.time(), ""
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place(topology)) for a in made.avals]
    try:
        with jax.enable_x64(True):
            if avals:
                jax.jit(made.fn).lower(*avals).compile()
            else:
                jax.jit(made.fn, out_shardings=place(topology)).lower().compile()
    except Exception as e:
        word = f"{type(e).__name__}: {e}"[:300]
    return {
        "lowering": made.operator, "kind": made.kind, "topology": topology, "word": word,
        "seconds": round(time.time() - start, 2),
    }  # fmt: skip
