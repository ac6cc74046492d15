"""Compile the programs that operators run, for TPUs that are not there.

``recording`` sees every program that the device makes; ``compile_for`` hands it to libtpu for a named topology.
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

# libtpu is only asked to compile: it must not look for a device, and other processes may compile at the same time.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v6e-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("TPU_WORKER_ID", "0")
os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")

import jax
import numpy as np
from jax.experimental import topologies

from torch_tpu.runtime import programs

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
    """Collect the eager programs that are made inside."""
    get = programs.ProgramCache.get

    def recorded(self: Any, key: Any, label: str, fn: Any, avals: Any, *args: Any, **kwargs: Any) -> Any:
        if key and key[0] == "eager":
            outs = [_CLASSES.get(str(o[2]).removeprefix("torch."), "integer") for o in key[5]]
            found.append(Made(label, kind_of(avals, outs), fn, avals))
        return get(self, key, label, fn, avals, *args, **kwargs)

    programs.ProgramCache.get = recorded
    try:
        yield
    finally:
        programs.ProgramCache.get = get


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
