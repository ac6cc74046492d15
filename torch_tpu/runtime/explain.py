"""Why programs were compiled: what ``torch.tpu.compiler.explain()`` says, and ``TORCH_TPU_EXPLAIN=1`` prints."""

from __future__ import annotations

import atexit
import os
import sys
import sysconfig
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_tpu.runtime.programs import Miss, Stats

VARIABLE = "TORCH_TPU_EXPLAIN"
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple({sysconfig.get_paths()[k] for k in ("purelib", "platlib", "stdlib")})


def user_line() -> str:
    """``file.py:12 in function`` of the innermost frame that belongs to no installed package; empty if all do."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_ROOT, "<", *_LIBRARIES)):
            return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def line(miss: Miss) -> str:
    """One program: what, where from, what was new, how long, how large."""
    parts = [f"{miss.seconds * 1e3:8.1f} ms  {'loaded  ' if miss.from_disk else 'compiled'}  {miss.label}"]
    if miss.nbytes:
        parts.append(f"{miss.nbytes / 1024:.0f} KiB")
    if miss.where:
        parts.append(f"at {miss.where}")
    text = "  ".join(parts)
    if not miss.nearest:
        return f"{text}\n             first of its kind"
    differs = "; ".join(dict.fromkeys(miss.differs)) or "nothing that is shown"
    return f"{text}\n             new: {differs}"


def report(stats: Stats) -> str:
    """All programs kept in the statistics, and the total."""
    lines = [line(m) for m in stats.misses]
    dropped = stats.compiled + stats.loaded - len(stats.misses)
    if dropped:
        lines.insert(0, f"({dropped} earlier programs are not listed)")
    lines.append(total(stats))
    return "\n".join(lines)


def total(stats: Stats) -> str:
    return (
        f"total: {stats.compiled} programs compiled in {stats.compile_seconds:.2f} s, {stats.loaded} loaded from "
        f"disk in {stats.load_seconds:.2f} s, {stats.hits} found in memory"
    )


def wanted() -> bool:
    return os.environ.get(VARIABLE, "0") == "1"


def print_total_at_exit(stats: Stats) -> None:
    atexit.register(lambda: print(f"[torch_tpu] {total(stats)}", file=sys.stderr))


def say(miss: Miss) -> None:
    print(f"[torch_tpu] {line(miss)}", file=sys.stderr)
