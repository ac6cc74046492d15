"""10,000 steps of a small training loop: nothing grows."""

from __future__ import annotations

import gc

import psutil
import torch


def _programs() -> int:
    return torch.tpu.compiler.stats()["programs"]


# Symptom: 10,000 steps of a training loop do not grow memory.
def test_ten_thousand_steps_are_flat():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    x, y = torch.randn(64, 8, device="tpu"), torch.randn(64, 1, device="tpu")
    process, marks = psutil.Process(), []
    for step in range(10_000):
        at = step % 48
        loss = torch.nn.functional.mse_loss(model(x[at : at + 16]), y[at : at + 16])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step % 2500 == 1000:
            gc.collect()
            loss.item()
            marks.append((torch.tpu.memory_allocated(), _programs(), process.memory_info().rss))
    first, last = marks[0], marks[-1]
    assert last[0] == first[0], marks
    assert last[1] == first[1], marks
    # Caches fill and allocators breathe at first; a leak of one result in each of the last 5,000 steps would be 7 MiB.
    assert last[2] - marks[1][2] < 6 * 2**20, marks
