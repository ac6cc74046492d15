"""What a plan says: memory by what, work, roofline time and what bounds it, for each program and for all.

Everything is per device (one chip, or one of its two where JAX sees two). Times are lower bounds, rates and MFU (the
share of the chip's peak that the model's own products take) upper bounds: the roofline says what no program can beat,
not what this one will do.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch_tpu.aot import hlo, kernels
from torch_tpu.aot.chips import Topology, smallest_slice
from torch_tpu.aot.compiler import Compiled, OutOfMemory, Partitioning
from torch_tpu.aot.kernels import Kernel
from torch_tpu.aot.program import Program

MEMORY_ORDER = (
    "weights", "buffers", "optimizer", "gradients", "cache", "activations", "inputs", "outputs", "temporaries", "code",
    "padding",
)  # fmt: skip
_LARGEST = 12


@dataclasses.dataclass(frozen=True)
class Operation:
    """Instructions of one kind and shape: how many, and what they are together."""

    label: str
    count: int
    flops: float
    hbm_bytes: int
    seconds: float  # roofline time
    bound: str  # MXU, HBM or ICI


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind and size: how many, over how many chips, and what they are together."""

    kind: str
    label: str
    count: int
    ranks: int
    ici_bytes: int  # that a chip sends
    seconds: float  # at the chip's full ICI bandwidth, without latency


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """One compiled program on one device."""

    name: str
    fits: bool
    memory: dict[str, int]  # bytes by what, while it runs
    peak_bytes: int
    available_bytes: int
    required_bytes: int | None  # what the compiler says that it needs, where it is too large
    matrix_flops: float  # of the model's products and convolutions
    flops: float  # as compiled, by the compiler's own count (all operations)
    hbm_bytes: float
    compiler_bytes: float  # the compiler's own count, which has traffic of on-chip memory in it
    ici_bytes: float
    mxu_seconds: float
    hbm_seconds: float
    ici_seconds: float
    seconds: float  # the roofline: the longest of the three
    operation_seconds: float  # each instruction at its own roofline, one after the other
    bound: str
    mfu: float
    compile_seconds: float
    in_place: tuple[str, ...]  # operands whose memory a result takes
    copied: tuple[str, ...]  # overwritten operands that the compiled program does not alias
    largest: tuple[Operation, ...]
    message: str = ""
    kernels: tuple[Kernel, ...] = ()  # Pallas kernels, with the VMEM that they take
    collectives: tuple[Collective, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """A plan: the programs of a model on a slice."""

    title: str
    topology: str
    chip: str
    chips: int
    devices: int
    fits: bool
    peak_bytes: int
    available_bytes: int
    peak_program: str
    seconds: float
    bound: str
    mfu: float
    items: int | None
    unit: str
    items_per_second: float | None
    compile_seconds: float
    chips_needed: int | None  # by memory alone; None where no slice of this chip is large enough
    slice_needed: str | None
    advice: tuple[str, ...]
    programs: tuple[ProgramReport, ...]
    ridge: float  # FLOP per byte at which compute and HBM take equally long, bf16
    peak_flops: float
    hbm_bandwidth: float

    def program(self, name: str) -> ProgramReport:
        """The program of that name; KeyError where there is none."""
        found = {p.name: p for p in self.programs}
        if name not in found:
            raise KeyError(f"no program {name!r}; there are: {', '.join(found)}")
        return found[name]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def to_html(self) -> str:
        from torch_tpu.aot import page

        return page.render(self)

    def __str__(self) -> str:
        from torch_tpu.aot import table

        return table.render(self)


def program_report(
    program: Program, found: Compiled | OutOfMemory, topology: Topology, resident: Mapping[str, int], precision: str,
    laid: Partitioning | None = None,
) -> ProgramReport:  # fmt: skip
    """The figures of one program.

    Args:
      laid: how its operands lie over the chips; None where one has them all.
      resident: bytes by role of what lies in the memory while the program runs, and is none of its operands.
      precision: how float32 products are made ("highest", "high", "medium").
    """
    if isinstance(found, OutOfMemory):
        return _refused(program, found, topology, resident, precision, laid)
    module = hlo.Module(found.text)
    costs = module.costs()
    chip = topology.chip
    devices = 1 if laid is None else laid.devices
    matrix_flops = program.matrix_flops / devices
    mxu = sum(c.times * c.flops / chip.flops(c.dtype, _mode(precision)) for c in costs if c.flops)
    nbytes, ici = hlo.total(costs, "hbm_bytes"), hlo.total(costs, "ici_bytes")
    times = _times(mxu, nbytes, ici, topology)
    seconds = max(times.values())
    largest = _operations(costs, topology, precision)
    own = _memory(program, laid, found)
    logical = sum(own.values())
    memory = dict(collections.Counter(resident) + collections.Counter(own))
    memory["temporaries"], memory["code"] = found.temp_bytes, found.code_bytes
    memory["padding"] = found.argument_bytes + found.output_bytes - found.alias_bytes - logical
    peak = sum(memory.values())
    aliased = set(module.aliases().values())
    return ProgramReport(
        program.name, peak <= chip.usable, _ordered(memory), peak, chip.usable, None, matrix_flops, found.flops,
        nbytes, found.bytes_accessed, ici, times["MXU"], times["HBM"], times["ICI"], seconds,
        sum(o.seconds for o in largest), _bound(times), _mfu(matrix_flops, seconds, topology), found.seconds,
        tuple(program.operands[i].name for i in program.donated if i in aliased),
        tuple(program.operands[i].name for i in program.donated if i not in aliased), tuple(largest[:_LARGEST]),
        "" if peak <= chip.usable else "the program itself fits, but not beside what else lies in the memory",
        kernels.compiled(module, program.kernels, chip), tuple(_collectives(costs, topology)),
    )  # fmt: skip


def _refused(
    program: Program, found: OutOfMemory, topology: Topology, resident: Mapping[str, int], precision: str,
    laid: Partitioning | None,
) -> ProgramReport:  # fmt: skip
    """What is known of a program that is too large to compile: its operands, results and products."""
    memory = dict(collections.Counter(resident) + collections.Counter(_memory(program, laid)))
    known = sum(memory.values())
    available = found.available or topology.chip.usable
    # "for HLO temporaries", as the compiler says, means everything: operands and results too.
    own = known - sum(resident.values())
    if found.required is not None and found.required > own:
        memory["temporaries"] = found.required - own
    peak = max(sum(memory.values()), found.required or 0)
    nbytes = own  # each operand is read, each result written once: a bound from below
    widest = "f32" if any(v.dtype == "float32" and v.role == "weights" for v in program.operands) else "bf16"
    matrix_flops = program.matrix_flops / (1 if laid is None else laid.devices)
    mxu = matrix_flops / topology.chip.flops(widest, _mode(precision))
    times = _times(mxu, nbytes, 0, topology)
    seconds = max(times.values())
    return ProgramReport(
        program.name, False, _ordered(memory), peak, available, found.required, matrix_flops,
        matrix_flops, nbytes, 0.0, 0.0, times["MXU"], times["HBM"], 0.0, seconds, seconds, _bound(times),
        _mfu(matrix_flops, seconds, topology), 0.0, (), (), (), found.message,
        (found.kernel,) if found.kernel else (),
    )  # fmt: skip


def _mode(precision: str) -> str:
    return {"medium": "default"}.get(precision, precision)


def _memory(program: Program, laid: Partitioning | None, found: Compiled | None = None) -> dict[str, int]:
    """Bytes by role on one chip. How results lie is the partitioner's choice: by their share of what it says."""
    memory: collections.Counter[str] = collections.Counter()
    parts = [1] * len(program.operands) if laid is None else [laid.parts(p) for p in laid.operands]
    for v, n in zip(program.operands, parts, strict=True):
        memory[v.role] += v.nbytes // n
    results = program.results[len(program.donated) :]
    whole = sum(v.nbytes for v in results)
    share = 1.0
    if laid is not None and found is not None and whole:
        share = min((found.output_bytes - found.alias_bytes) / whole, 1.0)
    for v in results:
        memory[v.role] += round(v.nbytes * share)
    return dict(memory)


def _collectives(costs: Sequence[hlo.Cost], topology: Topology) -> list[Collective]:
    groups: dict[tuple[str, str, int, int], int] = collections.defaultdict(int)
    for c in costs:
        if c.ici_bytes:
            groups[c.opcode.removesuffix("-done"), c.label, c.ranks, c.ici_bytes] += c.times
    made = [
        Collective(kind, label, n, ranks, nbytes * n, _times(0, 0, nbytes * n, topology)["ICI"])
        for (kind, label, ranks, nbytes), n in groups.items()
    ]
    return sorted(made, key=lambda c: -c.seconds)


def _ordered(memory: Mapping[str, int]) -> dict[str, int]:
    return {k: memory[k] for k in MEMORY_ORDER if memory.get(k)} | {
        k: v for k, v in memory.items() if k not in MEMORY_ORDER and v
    }


def _times(mxu: float, nbytes: float, ici: float, topology: Topology) -> dict[str, float]:
    chip = topology.chip
    return {
        "MXU": mxu,
        "HBM": nbytes / (chip.hbm_bandwidth / chip.devices),
        "ICI": ici / (chip.ici_bandwidth / chip.devices),
    }


def _bound(times: Mapping[str, float]) -> str:
    return max(times, key=lambda k: times[k])


def _mfu(flops: float, seconds: float, topology: Topology) -> float:
    return flops / (seconds * topology.chip.flops("bf16")) if seconds else 0.0


def _operations(costs: Sequence[hlo.Cost], topology: Topology, precision: str) -> list[Operation]:
    """Instructions grouped by what they are, the longest first."""
    groups: dict[tuple[str, float, int], list[hlo.Cost]] = {}
    for c in costs:
        groups.setdefault((c.label, c.flops, c.hbm_bytes), []).append(c)
    out = []
    for (label, flops, nbytes), members in groups.items():
        count = sum(c.times for c in members)
        mxu = flops / topology.chip.flops(members[0].dtype, _mode(precision)) if flops else 0.0
        times = _times(mxu, nbytes, members[0].ici_bytes, topology)
        out.append(Operation(label, count, flops * count, nbytes * count, max(times.values()) * count, _bound(times)))
    return sorted(out, key=lambda o: -o.seconds)


def make(
    title: str, topology: Topology, devices: int, programs: Sequence[ProgramReport], items: int | None, unit: str
) -> Report:
    """The report of all programs, which run one after the other."""
    chip = topology.chip
    worst = max(programs, key=lambda p: p.peak_bytes / p.available_bytes)
    seconds = sum(p.seconds for p in programs)
    longest = max(programs, key=lambda p: p.seconds)
    fits = all(p.fits for p in programs)
    needed = smallest_slice(chip, worst.peak_bytes * devices)
    flops = sum(p.matrix_flops for p in programs)
    return Report(
        title, topology.name, chip.name, topology.chips, devices, fits, worst.peak_bytes, worst.available_bytes,
        worst.name, seconds, longest.bound, _mfu(flops, seconds, topology), items, unit,
        items / seconds if items and seconds else None, sum(p.compile_seconds for p in programs),
        needed.chips if needed else None, needed.name if needed else None,
        tuple(_advice(programs, worst, topology, needed)),
        tuple(programs), chip.flops("bf16") / (chip.hbm_bandwidth / chip.devices), chip.flops("bf16"),
        chip.hbm_bandwidth / chip.devices,
    )  # fmt: skip


def _advice(
    programs: Sequence[ProgramReport], worst: ProgramReport, topology: Topology, needed: Topology | None
) -> list[str]:
    out = [
        f"{p.name}: {len(p.copied)} overwritten buffers are copied, not updated in place" for p in programs if p.copied
    ]
    over_vmem = [k for p in programs for k in p.kernels if not k.fits]
    out += [_smaller_blocks(k) for k in over_vmem]
    if all(p.fits for p in programs) or (over_vmem and worst.peak_bytes <= worst.available_bytes):
        return out
    held = sorted(worst.memory.items(), key=lambda kv: -kv[1])
    name, size = held[0]
    over = worst.peak_bytes - worst.available_bytes
    out.append(
        f"{worst.name} is {over / 2**30:.1f} GiB over; most of it is {name} ({size / 2**30:.1f} GiB)"
        + (f", then {held[1][0]} ({held[1][1] / 2**30:.1f} GiB)" if len(held) > 1 else "")
    )
    if needed is not None and needed.devices > 1:
        out.append(
            f"the memory of {math.ceil(worst.peak_bytes / topology.chip.usable)} devices would hold it: the smallest "
            f"slice is {needed.name} ({needed.chips} chips), with weights, cache and activations sharded over all"
        )
    elif needed is None:
        out.append(f"no slice of {topology.chip.name} is large enough")
    out += [_REMEDIES[k] for k, v in held[:3] if k in _REMEDIES and v > 0.05 * worst.peak_bytes]
    return out


def _smaller_blocks(k: Kernel) -> str:
    blocks = f" ({'; '.join(k.blocks)})" if k.blocks else ""
    return (
        f"kernel {k.name}{f' ({k.where})' if k.where else ''} needs {k.vmem_bytes / 2**20:.2f} MiB of VMEM, of which "
        f"there are {k.vmem_available / 2**20:.2f}{blocks}: make its blocks smaller"
    )


_REMEDIES = {
    "weights": "weights: a smaller dtype (bfloat16 has half the bytes of float32, int8 half of those), or more chips",
    "cache": "cache: a smaller batch or a shorter cache (its bytes are proportional to both)",
    "activations": "activations: a smaller batch, or activation checkpointing (torch.utils.checkpoint)",
    "temporaries": "temporaries: a smaller batch or shorter sequences; logits of all positions are often the largest",
    "optimizer": "optimizer: one with less state (AdamW has two values a weight), or more chips",
    "gradients": "gradients: smaller weights' dtype, or more chips",
}
