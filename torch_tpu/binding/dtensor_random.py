"""Random operators on DTensors: every shard draws numbers of its own, and replicas of a shard the same.

PyTorch's tracker writes an offset into the state of a CUDA generator. A generator of this device is a Mersenne Twister
on the host: here the ranks draw the same bits from it, and a shard's stream is seeded with these and its number. So
ranks that were seeded alike stay alike, as they do on other devices.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from typing import Any

from torch_tpu.binding import generator as generators


def install(module: Any) -> None:
    """Let the tracker of ``torch.distributed.tensor._random`` do so for this device."""
    tracker = module.OffsetBasedRNGTracker
    original = tracker._distribute_region

    @functools.wraps(original)
    def distribute_region(self: Any, spec: Any, generator: Any = None) -> Any:
        if self._device.type != "tpu":
            return original(self, spec, generator)
        return _region(self, spec, generator)

    tracker._distribute_region = distribute_region


@contextlib.contextmanager
def _region(tracker: Any, spec: Any, generator: Any) -> Iterator[None]:
    """Inside, the device's default generator is this shard's; ``generator`` (or the default) moves on by one draw."""
    if not tracker.distribute_region_enabled:
        yield
        return
    from torch.distributed._functional_collectives import _are_we_tracing

    from torch_tpu.binding.device import current_device
    from torch_tpu.runtime import rng

    if _are_we_tracing():
        if any(not p.is_replicate() for p in spec.placements):
            raise NotImplementedError(
                f"tpu: a random operator on a DTensor that is split ({spec.placements}) in a compiled graph is not "
                "supported: its shards would draw the same numbers; keep it outside of torch.compile"
            )
        yield
        return
    default = generators.default_generator(current_device())
    bits = rng.draw_key(default if generator is None else generators.check_for_tpu(generator))
    state = default.get_state()
    default.manual_seed(_seed(bits.tobytes(), _shard(spec)))
    try:
        yield
    finally:
        default.set_state(state)


def _shard(spec: Any) -> int:
    """The number of the shard that this rank holds, in the order of the tensor's dimensions."""
    from torch.distributed.tensor import _random

    coordinate = [spec.mesh._sym_get_coordinate(i) for i in range(spec.mesh.ndim)]
    return int(_random._calc_shard_linear_idx(*_random._calc_shard_info(coordinate, spec)))


def _seed(bits: bytes, shard: int) -> int:
    return int.from_bytes(hashlib.blake2b(bits + shard.to_bytes(8, "little"), digest_size=8).digest(), "little") >> 1
