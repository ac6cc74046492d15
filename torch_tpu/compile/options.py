"""Options of ``torch.compile(backend="tpu", options=...)``, and XLA's compiler options.

Every ``mode`` of ``torch.compile`` is accepted; XLA has no such levels, so they mean the same program.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
KNOWN = {"xla_options": "dict of XLA compiler options (see torch.tpu.compiler.custom_compiler_options)"}

_custom: list[dict[str, Any]] = []


@dataclasses.dataclass(frozen=True)
class Options:
    xla: Mapping[str, Any]

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((k, repr(v)) for k, v in self.xla.items()))


def options_of(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    """The options of one ``torch.compile`` call, joined by those of ``custom_compiler_options`` in force.

    Raises:
      ValueError: an unknown mode or option; the message lists what is known.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile(backend='tpu'): unknown mode {mode!r}; known: {', '.join(MODES)}")
    unknown = sorted(set(options or ()) - set(KNOWN))
    if unknown:
        known = "; ".join(f"{k}: {v}" for k, v in KNOWN.items())
        raise ValueError(f"torch.compile(backend='tpu'): unknown option {', '.join(unknown)}; known: {known}")
    joined: dict[str, Any] = {}
    for more in (*_custom, (options or {}).get("xla_options", {})):
        joined.update(more)
    return Options(joined)


@contextlib.contextmanager
def custom_compiler_options(options: Mapping[str, Any]) -> Iterator[None]:
    """XLA options for what is compiled inside the block: ``{"xla_tpu_enable_latency_hiding_scheduler": True}``.

    A program compiled with other options is another program: nothing compiled before is taken in its place.

    Raises:
      ValueError: when something is compiled, if XLA does not know an option.
    """
    _custom.append(dict(options))
    try:
        yield
    finally:
        _custom.pop()
