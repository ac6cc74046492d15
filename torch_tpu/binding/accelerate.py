"""The device that Accelerate, and with it Transformers' Trainer, chooses when nobody names one.

Accelerate knows a fixed list of devices and asks the variable ``ACCELERATE_TORCH_DEVICE`` for others. The variable
beats ``Accelerator(cpu=True)`` and ``TrainingArguments(use_cpu=True)``; a default must not, so it is out of sight while
such a state is made. Processes that Accelerate launches inherit the variable.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torch_tpu.binding.importing import when_imported

VARIABLE, DEFAULT = "ACCELERATE_TORCH_DEVICE", "tpu"


def install() -> None:
    os.environ.setdefault(VARIABLE, DEFAULT)
    when_imported("accelerate.state", _let_cpu_be_asked_for)


def _let_cpu_be_asked_for(module: Any) -> None:
    original = module.PartialState.__init__
    if getattr(original, "_lets_cpu", False):
        return

    @functools.wraps(original)
    def init(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        hidden = cpu and os.environ.get(VARIABLE) == DEFAULT
        if hidden:
            del os.environ[VARIABLE]
        try:
            original(self, cpu, **kwargs)
        finally:
            if hidden:
                os.environ[VARIABLE] = DEFAULT

    init._lets_cpu = True  # type: ignore[attr-defined]
    module.PartialState.__init__ = init
