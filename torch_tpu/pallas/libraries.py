"""What kernel libraries need, and their errors in terms of what is installed."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType
from typing import Any

from torch_tpu.binding import importing

_KNOWN = ("tokamax",)


def explained(operator: str, error: Exception) -> Exception | None:
    """What a kernel library's refusal means; None for an error that is not one's refusal.

    tokamax has other implementations from version to version; what is asked for and not there is said with what is.
    """
    if not isinstance(error, (ValueError, NotImplementedError, AttributeError, TypeError)):
        return None
    frame = _innermost(error)
    name = str(frame.get("__name__", "")).partition(".")[0] if frame else ""
    asked_of = getattr(getattr(error, "obj", None), "__name__", "")  # module 'tokamax' has no attribute ...
    library = name if name in _KNOWN else asked_of.partition(".")[0]
    if library not in _KNOWN:
        return None
    version = importlib.metadata.version(library)
    message = f"{operator}: the installed {library} {version} does not do what is asked: {error}"
    there = frame.get("IMPLEMENTATIONS") if frame else None
    if isinstance(error, ValueError) and "implementation" in str(error) and there:
        message += (
            f"; its implementations here are {', '.join(map(repr, there))}. Ask for one of these, or install another"
        )
        message += f" version of {library}"
    return NotImplementedError(message)


def read_flags(config: ModuleType) -> None:
    """Let tokamax have its command line flags, and no others.

    At its first use it reads the whole command line, and refuses the program's own arguments (``-q`` of pytest).
    """
    flags = config.flags.FLAGS
    if not flags.is_parsed():
        flags(
            [sys.argv[0] if sys.argv else "", *(a for a in sys.argv[1:] if a.startswith("--tokamax_"))], known_only=True
        )


def install() -> None:
    """Prepare libraries, now or when they are imported."""
    importing.when_imported("tokamax._src.config", read_flags)


def _innermost(error: Exception) -> dict[str, Any] | None:
    """The globals of the function that raised."""
    step = error.__traceback__
    if step is None:
        return None
    while step.tb_next is not None:
        step = step.tb_next
    return step.tb_frame.f_globals
