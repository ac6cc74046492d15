"""What DistributedDataParallel asks of a device beyond its tensors: streams by index, and pinned host memory."""

from __future__ import annotations

import functools
from typing import Any

from torch_tpu.binding import pinning


def let_index_be_named(index: int) -> None:
    """Let DDP take this index, which is another name of the device's: it keeps a list of streams by index."""
    from torch.nn.parallel import _functions

    if _functions._streams is None or len(_functions._streams) <= index:
        _functions._streams = [None] * (index + 1)


@functools.cache
def install() -> None:
    """Let DDP find parameters that were not used: its reducer makes a pinned tensor for that, in C++."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.device_type == "tpu" and (self.find_unused_parameters or self.static_graph):
            pinning.allow_pinned_factories()

    DistributedDataParallel.__init__ = init
