"""For gradients with an ``output_mask``: the unmasked results are checked elsewhere, here what a mask leaves out."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import torch
from harness import to_array, to_tensor

from torch_tpu.lowering import registry


def check_masks(name: str, *args: Any, count: int = 3, position: int = -1) -> None:
    """Each mask gives None where it says False, and elsewhere what the full mask gives.

    Args:
      position: of the mask among ``args``, which hold any mask.
    """
    fn = registry.get(name).fn
    with jax.enable_x64(True):
        arrays = [to_array(a) if isinstance(a, torch.Tensor) else a for a in args]

        def results(mask: tuple[bool, ...]) -> Any:
            arrays[position] = mask
            return fn(*arrays)

        full = results((True,) * count)
        assert all(r is not None for r in full)
        for mask in itertools.product((False, True), repeat=count):
            for wanted, f, r in zip(mask, full, results(mask), strict=True):
                assert (r is not None) == wanted
                if wanted:
                    torch.testing.assert_close(to_tensor(r), to_tensor(f))
