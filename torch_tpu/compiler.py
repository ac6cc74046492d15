"""``torch.tpu.compiler``: the program cache and its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any


def stats() -> dict[str, Any]:
    """What the program cache did in this process.

    Returns:
      ``hits``, ``compiled``, ``loaded`` (from disk): counts; ``compile_seconds``, ``load_seconds``; ``programs``: how
      many are in memory; ``directory``: where programs are kept, or None.
    """
    from torch_tpu.runtime import programs

    s, cache = programs.cache.stats, programs.cache
    return {
        "hits": s.hits,
        "compiled": s.compiled,
        "loaded": s.loaded,
        "compile_seconds": s.compile_seconds,
        "load_seconds": s.load_seconds,
        "programs": len(cache.programs),
        "directory": None if cache.directory is None else str(cache.directory.path),
    }


def misses() -> list[dict[str, Any]]:
    """For each program that was not found in memory, oldest first: operation, seconds, whether the disk had it, the
    nearest earlier program of the same operation, and what differs from it."""  # fmt: skip
    from torch_tpu.runtime import programs

    return [
        {
            "label": m.label,
            "seconds": m.seconds,
            "from_disk": m.from_disk,
            "nearest": m.nearest,
            "differs": m.differs,
            "where": m.where,
            "nbytes": m.nbytes,
        }
        for m in programs.cache.stats.misses
    ]


def explain() -> str:
    """Why programs were compiled, as text: for each one what it is, the user's line that asked for it, what was new
    against the nearest earlier program of its kind, seconds and size; at the end the total.

    ``TORCH_TPU_EXPLAIN=1`` in the environment prints the same to stderr while the program runs.
    """
    from torch_tpu.runtime import explain as explaining
    from torch_tpu.runtime import programs

    return explaining.report(programs.cache.stats)


def custom_compiler_options(options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """XLA's compiler options for what ``torch.compile`` compiles inside the block.

    Args:
      options: name -> value, as XLA knows them (``{"xla_tpu_enable_latency_hiding_scheduler": True}``).
    """
    from torch_tpu.compile.options import custom_compiler_options as context

    return context(options)


def clear_cache(*, disk: bool = False) -> None:
    """Forget the compiled programs in memory, and with ``disk`` those kept for later processes."""
    from torch_tpu.runtime import programs

    programs.cache.clear(disk=disk)
