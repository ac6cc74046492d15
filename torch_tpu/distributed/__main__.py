"""``python -m torch.tpu.distributed [torchrun's options] script.py [arguments]``: torchrun, one process a chip.

``--nproc-per-node`` is the number of chips of this host where it is not given (1 where there is no TPU).
"""

from __future__ import annotations

import glob
import sys


def chips() -> int:
    """How many TPU chips this host has; starts nothing."""
    return len(glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*"))


def arguments(given: list[str], count: int) -> list[str]:
    """torchrun's arguments."""
    own = given[: next((i for i, a in enumerate(given) if a.endswith(".py")), len(given))]
    names = ("--nproc-per-node", "--nproc_per_node")
    if any(a.partition("=")[0] in names for a in own):
        return given
    alone = not any(a.partition("=")[0] in ("--nnodes", "--rdzv-endpoint", "--rdzv_endpoint") for a in own)
    return [*(["--standalone"] if alone and "--standalone" not in own else []), f"--nproc-per-node={count}", *given]


def main() -> None:
    from torch.distributed import run

    from torch_tpu.runtime import platform

    run.main(arguments(sys.argv[1:], (chips() if platform.wanted() == "tpu" else 0) or 1))


if __name__ == "__main__":
    main()
