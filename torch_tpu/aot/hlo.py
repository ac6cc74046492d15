"""Reading a compiled module's text: aliases, and what each instruction computes and moves.

The compiler's own ``cost_analysis`` counts traffic of the on-chip memory too, and is wrong for some fusions; here only
high-bandwidth memory (HBM) counts: an array whose layout says ``S(n)`` lies elsewhere. Of an operand that is only
sliced, the slice counts; of a result that updates a part of an operand in place, the part.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence

from torch_tpu.aot import loops

_BITS = {
    "pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32,
    "s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")
_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id", "replica-id",
    "opt-barrier", "call", "while", "conditional",
})  # fmt: skip
_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Array:
    dtype: str
    shape: tuple[int, ...]
    in_hbm: bool

    @property
    def nbytes(self) -> int:
        bits = 8 if self.dtype.startswith("f8") else _BITS.get(self.dtype, 0)
        return math.prod(self.shape) * bits // 8

    @property
    def hbm_bytes(self) -> int:
        return self.nbytes if self.in_hbm else 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    result: tuple[Array, ...]
    is_tuple: bool
    operands: tuple[str, ...]
    attributes: str
    text: str  # between the parentheses

    @property
    def called(self) -> tuple[str, ...]:
        return tuple(
            re.findall(
                r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.\-]+)", self.attributes
            )
        ) + tuple(
            n for group in re.findall(r"branch_computations=\{([^}]*)\}", self.attributes) for n in _NAME.findall(group)
        )

    def attribute(self, name: str) -> str:
        found = re.search(rf"\b{name}=(\{{[^}}]*\}}|\"[^\"]*\"|[^,\s]+)", self.attributes)
        return found.group(1) if found else ""

    @property
    def op_name(self) -> str:
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found.group(1) if found else ""


@dataclasses.dataclass
class Computation:
    name: str
    instructions: dict[str, Instruction]
    root: str = ""

    @functools.cached_property
    def parameters(self) -> dict[int, str]:
        return {int(i.text): i.name for i in self.instructions.values() if i.opcode == "parameter"}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = {}
        for i in self.instructions.values():
            for name in dict.fromkeys(i.operands):
                found.setdefault(name, []).append(i)
        return found


@dataclasses.dataclass(frozen=True)
class Cost:
    """One instruction that runs: what it computes and moves, ``times`` times."""

    name: str
    opcode: str
    label: str  # what it is, for people
    dtype: str  # of its products' operands; empty if it has none
    flops: float  # of products and convolutions
    hbm_bytes: int
    ici_bytes: int  # that a chip sends, in a ring
    times: int = 1
    ranks: int = 0  # of the group of a collective


class Module:
    """The text of an optimized HLO module."""

    def __init__(self, text: str):
        self.header = text.partition("\n")[0]
        self.computations, self.entry = _parse(text)

    def aliases(self) -> dict[int, int]:
        """Result -> the parameter whose memory it takes."""
        start = self.header.find("input_output_alias={")
        if start < 0:
            return {}
        inside = _balanced(self.header, self.header.index("{", start))
        return {int(out or 0): int(parameter) for out, parameter in re.findall(r"\{(\d*)\}: \((\d+), \{\}", inside)}

    def costs(self) -> list[Cost]:
        """Every instruction that runs, those of loops with how often."""
        return list(self._costs(self.computations[self.entry], 1))

    def _costs(self, within: Computation, times: int) -> Iterator[Cost]:
        """A copy into the on-chip memory counts as part of the instruction that needs it."""
        fetched: dict[str, Cost] = {}
        for i in within.instructions.values():
            if i.opcode in ("while", "call", "conditional"):
                trips = loops.trip_count(i, within, self.computations) if i.opcode == "while" else 1
                for name in i.called:
                    yield from self._costs(self.computations[name], times * trips)
            elif i.opcode == "bitcast" or "ConcatBitcast" in i.attributes:  # slices fetched apart are one array again
                before = [fetched.pop(n) for n in i.operands if n in fetched]
                if before:
                    fetched[i.name] = dataclasses.replace(before[0], hbm_bytes=sum(c.hbm_bytes for c in before))
            elif i.opcode not in _FREE and not i.opcode.endswith("-start"):
                cost = self._cost(i, within, times)
                before = [fetched.pop(n) for n in i.operands if n in fetched]
                cost = dataclasses.replace(cost, hbm_bytes=cost.hbm_bytes + sum(c.hbm_bytes for c in before))
                if cost.opcode in ("copy-done", "slice-done") and not any(a.in_hbm for a in i.result):
                    fetched[i.name] = cost
                elif cost.flops or cost.hbm_bytes or cost.ici_bytes:
                    yield cost
        yield from fetched.values()

    def _cost(self, i: Instruction, within: Computation, times: int) -> Cost:
        kernel = self._kernel(i)
        if kernel is not None:
            return self._kernel_cost(kernel, i, within, times)
        products = list(self._products(i, within))
        flops = sum(f for _, f, _ in products)
        dtype = max(products, key=lambda p: p[1])[0] if products else ""
        label = max(products, key=lambda p: p[1])[2] if products else _label(i)
        ranks = _group_size(i) if _is_collective(i) else 0
        return Cost(i.name, i.opcode, label, dtype, flops, self._hbm_bytes(i, within), _ici_bytes(i), times, ranks)

    def kernels(self) -> Iterator[tuple[Instruction, Instruction]]:
        """Each Pallas kernel, with the instruction that it is part of (itself, where it is in no fusion)."""
        instructions = [(c.name, i) for c in self.computations.values() for i in c.instructions.values()]
        fused = {name for _, i in instructions if i.opcode == "fusion" for name in i.called}
        for within, i in instructions:
            kernel = None if within in fused else self._kernel(i)
            if kernel is not None:
                yield kernel, i

    def _kernel(self, i: Instruction) -> Instruction | None:
        """The Pallas kernel that an instruction is, or that a fusion has in it (with an update of a larger array)."""
        if i.attribute("custom_call_target") == '"tpu_custom_call"':
            return i
        inner = self.computations[i.called[0]].instructions.values() if i.opcode == "fusion" else ()
        return next((k for j in inner if (k := self._kernel(j)) is not None), None)

    def _kernel_cost(self, kernel: Instruction, i: Instruction, within: Computation, times: int) -> Cost:
        """A Pallas kernel: its own estimate, where it has one; else each operand is read once, each result written."""
        estimate = {k: float(v) for k, v in re.findall(r'"(flops|bytes_accessed)":"?(\d+)', kernel.attributes)}
        arrays = [a for n in i.operands if n in within.instructions for a in within.instructions[n].result]
        nbytes = self._hbm_bytes(i, within)
        if nbytes and estimate.get("bytes_accessed"):
            nbytes = int(estimate["bytes_accessed"])
        flops = estimate.get("flops", 0.0)
        floats = [a for a in arrays if a.dtype[0] in "fb"]
        dtype = max(floats, key=lambda a: a.nbytes).dtype if floats else "bf16"
        return Cost(i.name, i.opcode, f"kernel {_label(kernel)}", dtype if flops else "", flops, nbytes, 0, times)

    # Products --------------------------------------------------------------------------------------------------

    def _products(self, i: Instruction, within: Computation) -> Iterator[tuple[str, float, str]]:
        """(dtype, FLOPs, description) of each product in an instruction, and in what it calls."""
        if i.opcode in ("convolution", "dot"):
            left, right = (within.instructions[n].result[0] for n in i.operands[:2])
            flops = convolution_flops(i, left, right) if i.opcode == "convolution" else dot_flops(i, left)
            yield left.dtype, flops, f"{left} x {right} -> {i.result[0]}"
        elif i.opcode in ("fusion", "async-done"):
            for name in i.called:
                inner = self.computations[name]
                for j in inner.instructions.values():
                    yield from self._products(j, inner)

    # Bytes -----------------------------------------------------------------------------------------------------

    def _hbm_bytes(self, i: Instruction, within: Computation) -> int:
        if i.opcode.endswith("-done"):
            source = within.instructions.get(i.operands[0]) if i.operands else None
            moved = sum(a.nbytes for a in i.result)
            read = source is not None and any(
                a.in_hbm and a.shape for n in source.operands[:1] for a in within.instructions[n].result
            )
            return (moved if read else 0) + sum(a.hbm_bytes for a in i.result)
        read = sum(self._read(i, k, within.instructions[n]) for k, n in enumerate(i.operands))
        return read + self._written(i, within)

    def _read(self, user: Instruction, position: int, operand: Instruction) -> int:
        if operand.is_tuple or not any(a.in_hbm for a in operand.result):
            return 0
        return min(operand.result[0].nbytes, self._used(user, position, operand.result[0].nbytes))

    def _used(self, user: Instruction, position: int, full: int) -> int:
        """How many bytes of an operand an instruction reads."""
        if user.opcode in ("dynamic-slice", "slice", "gather"):
            return sum(a.nbytes for a in user.result) if position == 0 else full
        if user.opcode == "dynamic-update-slice" and position == 0:
            return 0
        if user.opcode == "fusion":
            inner = self.computations[user.called[0]]
            return self._used_value(inner, inner.parameters[position], full)
        return full

    def _used_value(self, within: Computation, name: str, full: int) -> int:
        total = 0
        for user in within.users.get(name, ()):
            for position, operand in enumerate(user.operands):
                if operand != name:
                    continue
                if user.opcode in ("bitcast", "copy", "reshape", "get-tuple-element"):
                    total += self._used_value(within, user.name, full) if user.name != within.root else full
                else:
                    total += self._used(user, position, full)
        return total

    def _written(self, i: Instruction, within: Computation) -> int:
        if i.opcode == "dynamic-update-slice":
            return within.instructions[i.operands[1]].result[0].nbytes if i.result[0].in_hbm else 0
        if i.opcode != "fusion":
            return sum(a.hbm_bytes for a in i.result)
        inner = self.computations[i.called[0]]
        root = inner.instructions[inner.root]
        parts = root.operands if root.opcode == "tuple" else (inner.root,)
        return sum(
            min(a.nbytes, self._made(inner, name, a.nbytes))
            for a, name in zip(i.result, parts, strict=False)
            if a.in_hbm
        )

    def _made(self, within: Computation, name: str, full: int) -> int:
        """How many bytes of a value are new, where it is an operand with a part updated in place."""
        i = within.instructions[name]
        if i.opcode in ("bitcast", "reshape") and i.operands:
            return self._made(within, i.operands[0], full)
        if i.opcode == "dynamic-update-slice":
            return within.instructions[i.operands[1]].result[0].nbytes
        if i.opcode == "fusion":
            inner = self.computations[i.called[0]]
            return self._made(inner, inner.root, full)
        return full


def _label(i: Instruction) -> str:
    """What JAX called the operation, without the functions around it."""
    parts = [p for p in i.op_name.split("/") if not re.match(r"(jit|jvp|call_exported|main)\b", p)]
    shapes = ", ".join(str(a) for a in i.result[:2])
    return f"{'/'.join(parts[-2:]) or i.opcode} -> {shapes}"


def _is_collective(i: Instruction) -> bool:
    return i.opcode.removesuffix("-done") in _COLLECTIVES


def _ici_bytes(i: Instruction) -> int:
    """What a chip sends for a collective over a ring of its group, from the size of the result."""
    if not _is_collective(i):
        return 0
    kind, ranks = i.opcode.removesuffix("-done"), _group_size(i)
    nbytes = sum(a.nbytes for a in i.result)
    if ranks < 2:  # the group is not told
        return nbytes
    share = {"all-reduce": 2 * (ranks - 1) / ranks, "all-gather": (ranks - 1) / ranks, "reduce-scatter": ranks - 1,
             "all-to-all": (ranks - 1) / ranks, "ragged-all-to-all": (ranks - 1) / ranks}  # fmt: skip
    return round(nbytes * share.get(kind, 1.0))


def _group_size(i: Instruction) -> int:
    """How many ranks a collective's groups have, 0 if it is not told.

    Groups are written ``{{0,1},{2,3}}``, ``[groups,ranks]<=[all]`` or ``mesh['a'=2,'b'=4] {'b'}``.
    """
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] *\{([^}]*)\}", i.attributes)
    if mesh:
        sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", mesh.group(1))}
        return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", mesh.group(2)))
    shape = re.search(r"replica_groups=\[([0-9,]+)\]<=", i.attributes)
    if shape:
        return int(shape.group(1).split(",")[-1])
    first = re.search(r"replica_groups=\{\{([0-9,]+)\}", i.attributes)
    return len(first.group(1).split(",")) if first else 0


def dot_flops(i: Instruction, left: Array) -> float:
    contracted = [int(d) for d in re.findall(r"\d+", i.attribute("lhs_contracting_dims"))]
    return 2.0 * math.prod(i.result[0].shape) * math.prod(left.shape[d] for d in contracted)


def convolution_flops(i: Instruction, left: Array, right: Array) -> float:
    """Two for each multiplication with an element that is no padding and no gap of a dilation.

    XLA:TPU writes batched products as convolutions over dilated dimensions, of which most windows are gaps.
    """
    dims = re.search(r"dim_labels=([\w?]+)_([\w?]+)->([\w?]+)", i.attributes)
    if dims is None:
        return 0.0
    lhs, rhs, out = dims.groups()
    result = i.result[0].shape
    window = i.attribute("window").strip("{}")
    fields = dict(re.findall(r"(\w+)=([^\s}]+)", window))
    spatial = [c for c in out if c.isdigit()]
    total = 2.0 * right.shape[rhs.index("i")] * result[out.index("f")] * result[out.index("b")]
    batches = int(i.attribute("batch_group_count") or 1)
    for n, label in enumerate(sorted(spatial)):
        total *= _positions(
            left.shape[lhs.index(label)], right.shape[rhs.index(label)], result[out.index(label)],
            _field(fields, "stride", n, 1), _field(fields, "pad", n, 0), _field(fields, "lhs_dilate", n, 1),
            _field(fields, "rhs_dilate", n, 1),
        )  # fmt: skip
    return total / batches if batches > 1 and total else total


def _field(fields: dict[str, str], name: str, n: int, default: int) -> int:
    parts = fields.get(name, "").split("x")
    return int(parts[n].partition("_")[0]) if n < len(parts) and parts[n] else default


@functools.cache
def _positions(size: int, kernel: int, out: int, stride: int, pad: int, gaps: int, dilation: int) -> int:
    """How many (output, kernel) positions of one dimension meet an element of the operand."""
    last = (size - 1) * gaps
    count = 0
    for k in range(kernel):
        for o in range(out):
            at = o * stride + k * dilation - pad
            count += 0 <= at <= last and at % gaps == 0
    return count


# Parsing -------------------------------------------------------------------------------------------------------


def lines(text: str) -> Iterator[str]:
    """The module's lines, an instruction each: the metadata of a kernel (JAX's splash attention has some) is printed
    over several, one of which starts with the bracket that would close the computation."""
    whole: list[str] = []
    for line in text.splitlines():
        starts = not line or line.startswith(_STARTS) or (line.startswith("}") and not line.startswith("}}"))
        if whole and not starts:
            whole.append(line)
            continue
        if whole:
            yield " ".join(whole)
        whole = [line]
    yield " ".join(whole)


# A line of one of these is a computation's, an instruction's, or the module's own.
_STARTS = ("  ", "%", "ENTRY ", "HloModule ")


def _parse(text: str) -> tuple[dict[str, Computation], str]:
    found: dict[str, Computation] = {}
    entry, current = "", None
    for line in lines(text):
        if line.startswith(("%", "ENTRY ")) and line.rstrip().endswith("{"):
            name = _NAME.search(line).group(1)  # type: ignore[union-attr]
            current = found[name] = Computation(name, {})
            entry = name if line.startswith("ENTRY ") else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            i = _instruction(line)
            current.instructions[i.name] = i
            if line.lstrip().startswith("ROOT "):
                current.root = i.name
    return found, entry


def _instruction(line: str) -> Instruction:
    left, _, right = line.strip().removeprefix("ROOT ").partition(" = ")
    is_tuple = right.startswith("(")
    kind = _balanced(right, 0) if is_tuple else right.partition(" ")[0]
    rest = right[len(kind) :].lstrip()
    opcode = rest[: rest.index("(")]
    inside = _balanced(rest, len(opcode))
    attributes = rest[len(opcode) + len(inside) :]
    arrays = tuple(
        Array(m.group(1), tuple(int(d) for d in m.group(2).split(",") if d), "S(" not in (m.group(3) or ""))
        for m in _ARRAY.finditer(kind)
        if m.group(1) in _BITS or m.group(1).startswith("f8")
    )
    inside = inside[1:-1]
    # Operands may come with their types; only names matter.
    return Instruction(left.lstrip("%"), opcode, arrays, is_tuple, tuple(_NAME.findall(inside)), attributes, inside)


def _balanced(text: str, start: int) -> str:
    """From the bracket at ``start`` to the one that closes it."""
    pairs = {"(": ")", "{": "}"}
    opening, closing = text[start], pairs[text[start]]
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == opening) - (text[at] == closing)
        if depth == 0:
            return text[start : at + 1]
    raise ValueError(f"unbalanced brackets: {text[start : start + 60]}")


def total(costs: Sequence[Cost], what: str) -> float:
    return sum(getattr(c, what) * c.times for c in costs)
