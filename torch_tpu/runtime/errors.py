"""XLA's errors in PyTorch's terms."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax
import torch

from torch_tpu.runtime import memory

_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|Ran out of memory", re.IGNORECASE)


def translate(error: Exception, what: str, device: int = 0) -> Exception:
    """The exception a PyTorch user expects for an error raised by XLA while doing ``what``."""
    text = str(error)
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
        memory.ooms[device] = memory.ooms.get(device, 0) + 1
        return torch.OutOfMemoryError(out_of_memory_message(what, device, text))
    return RuntimeError(f"{what} failed on tpu:{device}: {text}")


def out_of_memory_message(what: str, device: int, detail: str) -> str:
    """What was done and what was free. Accelerate and Trainer try a smaller batch after words of " out of memory."."""
    free, total = memory.capacity(device)
    held = memory.stats(device)["allocated_bytes.all.current"]
    return (
        f"{what}: tpu:{device} is out of memory. Tensors hold {held / 2**20:.1f} MiB, "
        f"{free / 2**20:.1f} of {total / 2**20:.1f} MiB are free. "
        f"Use a smaller batch or dtype, free tensors, or gradient checkpointing. ({detail.splitlines()[0][:300]})"
    )


@contextlib.contextmanager
def translated(what: str, device: int = 0) -> Iterator[None]:
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as e:
        raise translate(e, what, device) from e
