"""Keys for random programs, drawn from a host generator's stream.

A random operator takes 64 bits from its ``torch.Generator`` (a Mersenne Twister on the host, as PyTorch's CPU
generator) and uses them as a Threefry key. So seeds reproduce, calls differ, and saving and restoring a
generator's state continues the stream.
"""

from __future__ import annotations

import threading

import numpy as np
import torch


class _Drawing(threading.local):
    now = False


drawing = _Drawing()  # ``now``: a CPU kernel is given a tpu generator on purpose


def draw_key(generator: torch.Generator) -> np.ndarray:
    """uint32[2], advancing the generator."""
    drawing.now = True
    try:
        bits = torch.empty((2,), dtype=torch.int64, device="cpu").random_(0, 2**32, generator=generator)
    finally:
        drawing.now = False
    return bits.numpy().astype(np.uint32)
