"""Handing a program to libtpu in a process of its own, and reading what it says."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from torch_tpu.aot import kernels
from torch_tpu.aot.chips import Topology
from torch_tpu.aot.errors import CompilerError, LibtpuMissingError
from torch_tpu.aot.program import Program

# libtpu is asked for no device, and other processes may have it loaded.
LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v6e-4",
    "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0", "TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3",
}  # fmt: skip
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([0-9.]+)([KMGT]?)(?:iB|B)?"


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """The compiler's refusal: bytes of HBM per device. ``required`` is None where it does not say."""

    required: int | None
    available: int | None
    message: str
    kernel: kernels.Kernel | None = None  # whose blocks are too large for VMEM, where it is this that is short


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What libtpu says of a program that it compiled, per device."""

    seconds: float
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    flops: float
    bytes_accessed: float
    optimal_seconds: float
    text: str  # the optimized module


@dataclasses.dataclass(frozen=True)
class Partitioning:
    """A mesh over the slice's devices (axis name -> size), and each operand's axes by dimension."""

    mesh: Mapping[str, int]
    operands: Sequence[Sequence[Any] | None]

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())

    def parts(self, partition: Sequence[Any] | None) -> int:
        """How many parts an operand is split into."""
        names = [n for axes in partition or () for n in ([axes] if isinstance(axes, str) else axes or ())]
        return math.prod(self.mesh[n] for n in names)


def require_libtpu() -> None:
    """Raises LibtpuMissingError: one line that names the extra to install."""
    for module in ("libtpu", "flatbuffers"):
        if importlib.util.find_spec(module) is None:
            raise LibtpuMissingError(
                f"compiling for a TPU needs {module}, which is not installed: pip install 'torch-tpu[tpu]'"
            )


def compile_program(
    program: Program, topology: Topology, *, options: Mapping[str, Any] | None = None,
    partitioning: Partitioning | None = None, timeout: float | None = None,
) -> Compiled | OutOfMemory:  # fmt: skip
    """Compile for the first device of a slice, or for a mesh over it.

    Raises:
      LibtpuMissingError: libtpu is not installed.
      CompilerError: the compiler refused the program, or ended its process.
    """
    require_libtpu()
    with tempfile.TemporaryDirectory(prefix="torch-tpu-aot-") as name:
        folder = pathlib.Path(name)
        (folder / "program.bin").write_bytes(program.exported)
        request = {
            "topology": topology.libtpu_name, "topology_options": topology.libtpu_options,
            "donated": program.donated, "compiler_options": dict(options or {}),
        }  # fmt: skip
        if partitioning is not None:
            request |= {"mesh": dict(partitioning.mesh), "partitions": list(partitioning.operands)}
        (folder / "request.json").write_text(json.dumps(request))
        worker = str(pathlib.Path(__file__).with_name("worker.py"))
        done = subprocess.run(
            [sys.executable, "-P", worker, name], env=os.environ | LIBTPU_ENVIRONMENT | {"JAX_PLATFORMS": "cpu"},
            capture_output=True, text=True,
            timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return _read(folder, program, topology, done)


def _read(
    folder: pathlib.Path, program: Program, topology: Topology, done: subprocess.CompletedProcess[str]
) -> Compiled | OutOfMemory:
    file = folder / "result.json"
    if not file.exists():
        raise CompilerError(_ended(program, topology, done))
    result = json.loads(file.read_text())
    if "error" in result:
        error = result["error"]
        kernel = kernels.too_large(error, program.kernels, topology.chip)
        if kernel is not None:
            return OutOfMemory(None, None, error, kernel)
        refusal = out_of_memory(error)
        if refusal is not None:
            return refusal
        reason = kernels.explained(error, program.kernels) or error
        raise CompilerError(f"libtpu does not compile the {program.name} program for {topology.name}: {reason}")
    memory, cost = result["memory"], result["cost"]
    return Compiled(
        result["seconds"], memory["argument"], memory["output"], memory["alias"], memory["temp"],
        memory["generated_code"], cost.get("flops", 0.0), cost.get("bytes accessed", 0.0),
        cost.get("optimal_seconds", 0.0), (folder / "program.hlo").read_text(),
    )  # fmt: skip


def _ended(program: Program, topology: Topology, done: subprocess.CompletedProcess[str]) -> str:
    by = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"exit code {done.returncode}"
    words = [line for line in done.stderr.splitlines() if line.strip()]
    fatal = [line for line in words if re.match(r"F\d{4} ", line)] or words[-1:]
    return (
        f"libtpu ended its process ({by}) while compiling the {program.name} program for {topology.name}"
        + (f": {fatal[0].strip()}" if fatal else "")
    )  # fmt: skip


def out_of_memory(message: str) -> OutOfMemory | None:
    """The numbers in the compiler's refusal of a program that is too large; None if it is another error."""
    if "RESOURCE_EXHAUSTED" not in message and "Ran out of memory" not in message:
        return None
    available = re.search(rf"exceeds available HBM \({_SIZE}\)", message) or re.search(
        rf"[Uu]sed {_SIZE} of {_SIZE} hbm", message
    )
    required = re.search(rf"total memory required[^(]*\({_SIZE}\)", message) or re.search(
        rf"[Uu]sed {_SIZE} of", message
    )
    return OutOfMemory(
        _bytes(*required.groups()[-2:]) if required else None,
        _bytes(*available.groups()[-2:]) if available else None, message,
    )  # fmt: skip


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])
