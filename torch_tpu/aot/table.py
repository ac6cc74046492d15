"""A report as text for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_tpu.aot.report import ProgramReport, Report


def size(nbytes: float) -> str:
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(nbytes) >= factor:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{nbytes:.0f} B"


def count(n: float, unit: str = "") -> str:
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(n) >= factor:
            return f"{n / factor:.2f} {prefix}{unit}"
    return f"{n:.2f} {unit}".rstrip()


def seconds(s: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if s >= factor:
            return f"{s / factor:.2f} {unit}"
    return f"{s * 1e9:.0f} ns"


def render(r: Report) -> str:
    on = f"one device of {r.topology}" if r.devices < r.chips else r.topology
    verdict = "fits" if r.fits else "does NOT fit"
    if any(not k.fits for p in r.programs for k in p.kernels):
        verdict = "a kernel does NOT fit in VMEM"
    lines = [
        f"{r.title}",
        f"{on}: {verdict} ({size(r.peak_bytes)} of {size(r.available_bytes)} per device, in {r.peak_program})",
    ]
    if not r.fits:
        lines.append("figures below are bounds of what would run if it did fit")
    lines += [
        f"at best {seconds(r.seconds)} a call, bound by {r.bound}; MFU at most {100 * r.mfu:.1f} %"
        + (f"; at most {count(r.items_per_second)} {r.unit}/s" if r.items_per_second else ""),
        f"compiled in {r.compile_seconds:.1f} s",
    ]
    for p in r.programs:
        lines += ["", *_program(p)]
    if r.advice:
        lines += ["", *(f"* {a}" for a in r.advice)]
    return "\n".join(lines)


def _program(p: ProgramReport) -> list[str]:
    lines = [
        f"program {p.name}: {'fits' if p.fits else 'does not fit'}, at best {seconds(p.seconds)} ({p.bound})",
        f"  products {count(p.matrix_flops, 'FLOP')}   HBM traffic {size(p.hbm_bytes)}"
        + (f"   ICI {size(p.ici_bytes)}" if p.ici_bytes else "")
        + f"   MXU {seconds(p.mxu_seconds)}   HBM {seconds(p.hbm_seconds)}",
    ]
    width = max(p.memory.values(), default=1)
    for name, nbytes in p.memory.items():
        bar = "#" * round(24 * nbytes / width) if nbytes > 0 else ""
        lines.append(f"  {name:<12} {size(nbytes):>12}  {bar}")
    lines.append(f"  {'peak':<12} {size(p.peak_bytes):>12}  of {size(p.available_bytes)}")
    if p.in_place:
        lines.append(
            f"  {len(p.in_place)} buffers are updated in place" + (f", {len(p.copied)} copied" if p.copied else "")
        )
    if p.largest:
        lines.append("  largest operations (count, FLOP, bytes, roofline time, bound):")
        lines += [
            f"    {o.count:>5} x {count(o.flops):>9} {size(o.hbm_bytes):>11} {seconds(o.seconds):>10} {o.bound}  "
            f"{o.label}"
            for o in p.largest[:6]
        ]
    if p.collectives:
        lines.append("  collectives (count, kind, chips, bytes a chip sends, time at full ICI bandwidth, result):")
        lines += [
            f"    {c.count:>5} x {c.kind:<14} {c.ranks:>4} {size(c.ici_bytes):>11} {seconds(c.seconds):>10}  "
            f"{c.label.rpartition(' -> ')[2]}"
            for c in p.collectives[:12]
        ]
    if p.kernels:
        lines.append("  kernels (count, VMEM, name, where):")
        lines += [
            f"    {k.count:>5} x {size(k.vmem_bytes):>11} of {size(k.vmem_available)}  {k.name}  {k.where}"
            + ("" if k.fits else "  DOES NOT FIT")
            for k in p.kernels
        ]
    if p.message and not p.fits:
        lines.append(f"  compiler: {p.message.splitlines()[0][:300]}")
    return lines
