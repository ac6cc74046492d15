"""What FullyShardedDataParallel (FSDP1) asks of a device beyond its tensors: that ``device_id`` names it.

Scripts for GPUs pass their local rank, which in a launched process is another name of index 0. Offloading to the host
is refused: FSDP1 puts host data under a parameter between forward and backward, which is another C++ object here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_tpu.binding import device as devices
from torch_tpu.binding.importing import when_imported


def install() -> None:
    """Tell FSDP when it is imported."""
    when_imported("torch.distributed.fsdp._init_utils", _change)


def _change(module: Any) -> None:
    _name_devices(module)
    _refuse_offload(module)


def _refuse_offload(module: Any) -> None:
    original = module._init_param_handle_from_params

    @functools.wraps(original)
    def init_param_handle_from_params(state: Any, *args: Any, **kwargs: Any) -> Any:
        if state.cpu_offload.offload_params and state.compute_device.type == "tpu":
            raise NotImplementedError(
                "FullyShardedDataParallel on tpu: CPUOffload(offload_params=True) is not supported; "
                "use torch.distributed.fsdp.fully_shard with CPUOffloadPolicy()"
            )
        return original(state, *args, **kwargs)

    module._init_param_handle_from_params = init_param_handle_from_params


def _name_devices(module: Any) -> None:
    original = module._get_device_from_device_id

    @functools.wraps(original)
    def get_device_from_device_id(*args: Any, **kwargs: Any) -> torch.device | None:
        found = original(*args, **kwargs)
        named = found is not None and found.type == "tpu"
        return torch.device("tpu", devices.index_of(found)) if named else found

    module._get_device_from_device_id = get_device_from_device_id
