"""What Accelerate, and with it Transformers, chooses when nobody names a device.

Accelerate knows a fixed list of devices, in three places.

- The device of a loop or a Trainer: for others it asks the variable ``ACCELERATE_TORCH_DEVICE``. The variable beats
  ``Accelerator(cpu=True)`` and ``TrainingArguments(use_cpu=True)``; a default must not, so it is out of sight while
  such a state is made. Processes that Accelerate launches inherit the variable.
- The memory of each device, which ``device_map="auto"`` is made from: a device it does not know has none, and the
  model would go to the CPU.
- The backend of several processes: for a device that it does not know there is none, and each process of a launcher
  would train alone. Here it is "tpu_dist", and the kind of training that of GPUs: DistributedDataParallel.

The modules are changed when they are first imported. Contract test: tests/contracts/test_accelerate.py.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from torch_tpu.binding import device, memory
from torch_tpu.binding.importing import when_imported
from torch_tpu.runtime import launch

VARIABLE, DEFAULT = "ACCELERATE_TORCH_DEVICE", "tpu"
_BACKEND = "cpu:gloo,tpu:tpu_dist"


def install() -> None:
    os.environ.setdefault(VARIABLE, DEFAULT)
    when_imported("accelerate.state", _let_cpu_be_asked_for)
    when_imported("accelerate.state", _name_backend)
    when_imported("accelerate.utils.modeling", _count_memory)


def _let_cpu_be_asked_for(module: Any) -> None:
    original = module.PartialState.__init__

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

    module.PartialState.__init__ = init


def _name_backend(module: Any) -> None:
    original = module.PartialState._prepare_backend

    @functools.wraps(original)
    def prepare(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
        found, kind = original(self, cpu, sagemaker_dp, backend)
        on_tpu = not cpu and os.environ.get(VARIABLE, "").partition(":")[0] == DEFAULT
        if kind == module.DistributedType.NO and on_tpu and launch.current() is not None:
            return backend or _BACKEND, module.DistributedType.MULTI_GPU
        return found, kind

    module.PartialState._prepare_backend = prepare


def _count_memory(module: Any) -> None:
    original = module.get_max_memory

    @functools.wraps(original)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> dict[Any, Any]:
        if torch.cuda.is_available():
            return original(max_memory)
        if max_memory is not None:
            for key, value in max_memory.items():
                if isinstance(value, str):  # callers expect their own dictionary to hold numbers afterwards
                    max_memory[key] = module.convert_file_size_to_int(value)
            # Of a device that it does not know it would say that it is not available.
            known = {i: max_memory[i] for i in range(device.device_count()) if i in max_memory}
            return {**known, **original({k: v for k, v in max_memory.items() if k not in known})}
        found = original()
        if any(isinstance(k, int) for k in found):
            return found
        free = {i: memory.mem_get_info(i)[0] for i in range(device.device_count())}
        if _memory_is_the_hosts():
            found.pop("cpu", None)  # the same memory would be counted twice
        return {**free, **found}

    module.get_max_memory = get_max_memory


def _memory_is_the_hosts() -> bool:
    from torch_tpu.runtime import platform

    return platform.name() == "cpu"
