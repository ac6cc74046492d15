"""The cost of an all_reduce on tpu tensors against gloo's on CPU tensors, in one run: their calls take turns.

torchrun --nproc-per-node 2 benchmarks/collectives.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist


def once(x: torch.Tensor, calls: int) -> float:
    """Seconds a call."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(x)
    return (time.perf_counter() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))  # type: ignore[attr-defined]
    dist.init_process_group()
    for name, numel, calls in (("64 B", 16, 20), ("64 MB", 1 << 24, 1)):
        tensors = {d: torch.zeros(numel, device=d) for d in ("cpu", "tpu")}
        for x in tensors.values():
            once(x, 2)
        every: dict[str, list[float]] = {d: [] for d in tensors}
        for _ in range(rounds):
            for d, x in tensors.items():
                every[d].append(once(x, calls))
        ratios = [t / c for t, c in zip(every["tpu"], every["cpu"], strict=True)]
        if dist.get_rank() == 0:
            rows = (("gloo, us", every["cpu"], 1e6), ("tpu, us", every["tpu"], 1e6), ("ratio", ratios, 1))
            for what, values, unit in rows:
                low, middle, high = (v * unit for v in statistics.quantiles(values, n=4))
                print(f"{name} {what}: {middle:.2f} ({low:.2f}-{high:.2f})", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
