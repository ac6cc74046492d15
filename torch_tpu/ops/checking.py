"""What the validators of all kernels share: running a kernel without a TPU, and compiling it for one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from torch_tpu.runtime import interpretation

CHIPS = {"v5e": "v5e-1", "v5p": "v5p-2", "v6e": "v6e-1"}
"""Chip -> the slice of it that programs are compiled for."""


def interpreted(fn: Callable[..., Any], *operands: Any, chip: str = "v6e", mode: Any = "simulate") -> Any:
    """The function's results, with its Pallas kernels interpreted (``torch.tpu.pallas.interpret`` has the modes).

    Traced in JAX's 64-bit mode, in which PyTorch's programs are.
    """
    with jax.enable_x64(True):
        with interpretation.lowering_for("tpu", chip), interpretation.seen_as(chip):
            traced = jax.jit(fn).trace(*operands)
        run = interpretation.interpreted(traced.jaxpr, interpretation.Options(mode=mode))
        out = jax.jit(run).lower(*operands).compile()(*operands)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), jax.block_until_ready(out))


def compiled(fn: Callable[..., Any], shapes: Sequence[tuple[Any, Any]], chip: str) -> Any:
    """libtpu's ``Compiled`` of the function for operands of these (shape, dtype), in a process of its own.

    Raises:
      CompilerError: libtpu refuses it, as when tiles do not fit in VMEM.
    """
    from torch_tpu.aot.chips import topology
    from torch_tpu.aot.compiler import CompilerError, OutOfMemory, compile_program
    from torch_tpu.aot.program import Program

    avals = [jax.ShapeDtypeStruct(s, d) for s, d in shapes]
    with jax.enable_x64(True), interpretation.lowering_for("tpu", chip), interpretation.seen_as(chip):
        exported = jax.export.export(jax.jit(fn), platforms=("tpu",))(*avals)
        blob = bytes(exported.serialize())
    found = compile_program(Program("kernel", (), (), (), blob, 0.0), topology(CHIPS[chip]))
    if isinstance(found, OutOfMemory):
        raise CompilerError(found.message)
    return found


def main(
    cases: Callable[[int], Iterable[Any]], count: int, check: Callable[[Any], dict[str, float]],
    tolerance: Callable[[Any], float], realistic: Iterable[str], compile_for: Callable[[str, str], Sequence[Any]],
    parts: Sequence[str],
) -> int:  # fmt: skip
    """The command of a validator: its cases against the reference, then realistic sizes compiled for each chip.

    Args:
      count: how many cases, if the command line does not say.
      tolerance: the largest error that a case may have.
      parts: what each of the programs of ``compile_for(chip, size)`` is called; "" for the only one.

    Returns:
      1 if a case is wrong, or a kernel takes more VMEM than the chip has; else 0.
    """
    from torch_tpu.aot import hlo, kernels
    from torch_tpu.aot.chips import topology

    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=count)
    parser.add_argument("--chips", default=",".join(CHIPS))
    args = parser.parse_args()
    bad = 0
    for case in cases(args.cases):
        found = check(case)
        wrong = max(found.values()) > tolerance(case)
        bad += wrong
        print("WRONG" if wrong else "ok", case, {k: f"{v:.1e}" for k, v in found.items()}, flush=True)
    for chip in filter(None, args.chips.split(",")):
        where = topology(CHIPS[chip]).chip
        for name in realistic:
            for part, c in zip(parts, compile_for(chip, name), strict=True):
                what = f"{name}, {part}" if part else name
                held: dict[str, int] = {}
                for k in kernels.compiled(hlo.Module(c.text), (), where):  # calls of one kernel may differ
                    held[k.name] = max(held.get(k.name, 0), k.vmem_bytes)
                wrong = not held or max(held.values()) > where.vmem
                bad += wrong
                vmem = ", ".join(f"{n} {b / 2**20:.1f}" for n, b in held.items())
                print(
                    f"{'WRONG' if wrong else 'ok'} {chip} {what}: VMEM of {where.vmem >> 20} MiB: {vmem}; "
                    f"{c.temp_bytes} bytes of work memory, {c.seconds:.1f} s", flush=True,
                )  # fmt: skip
    return 1 if bad else 0


def error(got: Any, want: Any) -> float:
    """The largest difference, by the largest of what is wanted."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        raise ValueError(f"shape {got.shape}, expected {want.shape}")
    return float(np.max(np.abs(got - want), initial=0) / max(float(np.max(np.abs(want), initial=0)), 1e-30))
