"""The chip that a program is traced for."""

from __future__ import annotations

from torch_tpu.runtime import interpretation, platform


def current() -> str | None:
    """The chip's name ("v6e"), or None where the program is not for a TPU."""
    where, chip = interpretation.target(platform.name())
    if where != "tpu":
        return None
    if chip is not None:
        return chip
    kind = platform.devices()[0].device_kind
    return next((name for name, said in interpretation.CHIPS.items() if said == kind), "v5e")
