"""Pallas kernels in a program: how much VMEM they take, and the compiler's errors with their lines."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jax._src.pallas.mosaic.error_handling import MosaicError

from torch_tpu.aot import hlo
from torch_tpu.aot.chips import Chip

_VMEM = "1"  # what the compiler calls this memory space
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Source:
    """A kernel as the model's code has it: ``where`` is the file and line of its function."""

    name: str
    where: str
    flops: float = 0.0  # its own estimate, where it has one


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel of a compiled program, on one core.

    ``vmem_bytes``: what its blocks and scratch take, with double buffering; what the compiler itself puts into VMEM
    around it does not count. ``blocks``: the largest of these, where it does not fit.
    """

    name: str
    where: str
    count: int
    vmem_bytes: int
    vmem_available: int
    fits: bool = True
    blocks: tuple[str, ...] = ()


def sources(jaxpr: Any) -> list[Source]:
    """The kernels of a JAX program, at any depth, each once."""
    found: dict[tuple[str, str], Source] = {}
    for eqn in _kernel_calls(jaxpr):
        inner = eqn.params["jaxpr"]
        said = getattr(inner.debug_info, "func_src_info", None) or ""  # "name at file:line"
        function, _, where = said.partition(" at ")
        name = eqn.params.get("name") or function
        estimate = eqn.params.get("cost_estimate")
        flops = float(getattr(estimate, "flops", 0) or 0)
        found.setdefault((name, where), Source(name, where, flops))
    return list(found.values())


def _kernel_calls(jaxpr: Any) -> Iterator[Any]:
    from torch_tpu.runtime.interpretation import KERNELS, inner_jaxprs

    for eqn in jaxpr.eqns:
        if eqn.primitive.name in KERNELS:
            yield eqn
        else:
            for inner in inner_jaxprs(eqn.params.values()):
                yield from _kernel_calls(inner)


def compiled(module: hlo.Module, known: Sequence[Source], chip: Chip) -> tuple[Kernel, ...]:
    """The kernels of a compiled module.

    Of one that is part of a fusion, with the update of a larger array by its result, the fusion has the memory.
    """
    found: collections.Counter[tuple[str, int]] = collections.Counter()
    for kernel, outer in module.kernels():
        name = _name(f"%{kernel.name} = {kernel.attributes}")
        found[name, _vmem(kernel.attributes) or _vmem(outer.attributes)] += 1
    return tuple(
        Kernel(name, _where(name, known), count, nbytes, chip.vmem) for (name, nbytes), count in found.items()
    )  # fmt: skip


def _name(line: str) -> str:
    op = re.search(r'op_name="([^"]*)"', line)
    parts = op.group(1).split("/") if op else []
    before = parts[-2] if len(parts) > 1 and parts[-1] == "pallas_call" else ""
    own = re.search(r"%?([\w.\-]+) = ", line)
    return before if before and "(" not in before else re.sub(r"\.\d+$", "", own.group(1)) if own else ""


def _vmem(line: str) -> int:
    config = re.search(r'"used_scoped_memory_configs":(\[[^\]]*\])', line)
    spaces = json.loads(config.group(1)) if config else []
    return sum(int(s["size"]) for s in spaces if s.get("memory_space") == _VMEM)


def _where(name: str, known: Sequence[Source]) -> str:
    mine = [s for s in known if s.name == name] or (list(known) if len(known) == 1 else [])
    return "; ".join(dict.fromkeys(s.where for s in mine))


# What the compiler refuses -------------------------------------------------------------------------------------------


def too_large(message: str, known: Sequence[Source], chip: Chip) -> Kernel | None:
    """The kernel whose blocks do not fit VMEM; None if this is not what the compiler says."""
    used = re.search(r"in memory space vmem\. Used ([0-9.]+)([KMG]?) of ([0-9.]+)([KMG]?) vmem", message) or re.search(
        r"[Ss]coped allocation with size ([0-9.]+)([KMG]?) and limit ([0-9.]+)([KMG]?)", message
    )
    if used is None:
        return _one_block(message, known)
    need, limit = _bytes(used.group(1), used.group(2)), _bytes(used.group(3), used.group(4))
    name = _name(next((line for line in message.splitlines() if "op_name=" in line), "") + " = ")
    blocks = tuple(
        f"{kind} {at}: {shape} in {buffers} buffers, {size}"
        for size, kind, at, shape, buffers in _WINDOW.findall(message)
    )
    return Kernel(name, _where(name, known), 1, need, limit, False, blocks)


def _one_block(message: str, known: Sequence[Source]) -> Kernel | None:
    """Where one block alone is more than the chip has, the compiler names it in other words, and not the kernel."""
    sizes = re.search(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)", message)
    if sizes is None or "space=vmem" not in message:
        return None
    need, limit = map(int, sizes.groups())
    blocks = tuple(
        f"{kind} {at}: {shape} in {buffers} buffers, {need / (1 << 20):.2f}M"
        for kind, at, shape, buffers in _WINDOW_ALONE.findall(message)
    )
    name = known[0].name if len(known) == 1 else ""
    return Kernel(name, _where(name, known), 1, need, limit, False, blocks)


_WINDOW_ALONE = re.compile(
    r"((?:in|out)put) window allocation for operator \w+ (\d+)\. The window shape is ([\w\[\],]+), "
    r"[^\n]*?This allocation has (\d+) buffering"
)
_WINDOW = re.compile(
    r"Size: ([0-9.]+[KMG]?)(?:.|\n)*?Tag: ((?:in|out)put) window allocation for operator \w+ (\d+)\. "
    r"The window shape is ([\w\[\],]+), [^\n]*?This allocation has (\d+) buffering"
)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


_PLACE = re.compile(r'"(?P<function>[^"()]*)"\("(?P<file>[^"]+)":(?P<line>\d+)')


def explained(message: str, known: Sequence[Source]) -> str | None:
    """The compiler's refusal of a kernel: its reason, and the kernel's line; None for a refusal of something else."""
    found = re.search(r"Mosaic failed to compile TPU kernel: (.*)", message)
    if found is None:
        return None
    places = _PLACE.findall(next((line for line in message.splitlines() if line.startswith("at location:")), ""))
    operation = re.search(r"The MLIR operation involved:\n\s*(.*)", message)
    if places:
        where = f"{places[0][1]}:{places[0][2]} ({places[0][0]})"
    else:
        where = "; ".join(s.where for s in known)
    shown = f"\n  operation: {operation.group(1)[:300]}" if operation else ""
    return f"{found.group(1).strip()}\n  in the Pallas kernel at {where}{shown}"


def line_of(error: BaseException) -> str:
    """The kernel's line that JAX could not translate, from the frames of its own translation; empty if unknown."""
    from jax._src import source_info_util

    found, seen, waiting = "", set(), [error]
    while waiting and not found:
        e = waiting.pop(0)
        seen.add(id(e))
        step = e.__traceback__
        while step is not None:
            code, values = step.tb_frame.f_code, step.tb_frame.f_locals
            source = getattr(values.get("eqn"), "source_info", None)
            if source is not None and "pallas" in code.co_filename:
                found = _user_line(source_info_util.summarize(source)) or found
            elif isinstance(e, MosaicError) and not _is_library(code.co_filename):
                found = f"{code.co_filename}:{step.tb_lineno} ({code.co_name.rpartition(chr(34))[2]})"
            step = step.tb_next
        # JAX drops its own frames, and keeps them in the exception that this one comes from.
        waiting += [c for c in (e.__cause__, e.__context__) if c is not None and id(c) not in seen]
    return found


def _user_line(summary: Any) -> str:
    """A place as JAX says it; operations inside its own functions have none."""
    return str(summary) if ":" in str(summary) else ""


def _is_library(file: str) -> bool:
    return any(f"/{package}/" in file for package in ("jax", "torch", "torch_tpu", "jaxlib")) or file.startswith("<")
