"""What DistributedDataParallel asks of a device beyond its tensors: streams by index, pinned host memory, and hooks
that PyTorch knows of other devices only."""

from __future__ import annotations

import functools
from typing import Any

from torch_tpu.binding import pinning


def let_index_be_named(index: int) -> None:
    """Let DDP take this index, which is another name of the device's: it keeps a list of streams by index."""
    from torch.nn.parallel import _functions

    if _functions._streams is None or len(_functions._streams) <= index:
        _functions._streams = [None] * (index + 1)


# Hooks of ``torch.distributed.algorithms.ddp_comm_hooks`` that PyTorch takes on CUDA and XPU only, by their names.
_BFLOAT16_HOOKS = frozenset({"bf16_compress_hook", "bf16_compress_wrapper_hook"})


@functools.cache
def install() -> None:
    """Let DDP of this device's parameters find unused ones, and take every hook that it takes on other devices."""
    from torch.nn.parallel import DistributedDataParallel

    _find_unused(DistributedDataParallel)
    _take_hooks(DistributedDataParallel)


def _find_unused(cls: Any) -> None:
    """The reducer makes a pinned tensor for it, in C++."""
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.device_type == "tpu" and (self.find_unused_parameters or self.static_graph):
            pinning.allow_pinned_factories()

    cls.__init__ = init


def _take_hooks(cls: Any) -> None:
    check, builtin = cls._check_comm_hook, cls._register_builtin_comm_hook

    @functools.wraps(check)
    def check_comm_hook(self: Any, hook: Any) -> None:
        if self.device_type != "tpu" or getattr(hook, "__name__", "") not in _BFLOAT16_HOOKS:
            check(self, hook)

    @functools.wraps(builtin)
    def register_builtin_comm_hook(self: Any, comm_hook_type: Any) -> None:
        """The C++ hooks take apart the C++ value of a future, which one made in Python does not have. Their twins in
        Python do the same."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        if self.device_type != "tpu":
            builtin(self, comm_hook_type)
        elif comm_hook_type.name == "FP16_COMPRESS":
            self.register_comm_hook(None, default_hooks.fp16_compress_hook)
        else:
            self.register_comm_hook(None, default_hooks.allreduce_hook)

    cls._check_comm_hook, cls._register_builtin_comm_hook = check_comm_hook, register_builtin_comm_hook
