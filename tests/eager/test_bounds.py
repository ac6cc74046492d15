"""Shapes without end do not fill memory: plans and programs are bounded, and dropped ones come back."""

from __future__ import annotations

import torch

from torch_tpu.eager import kernels
from torch_tpu.runtime import programs


def test_plans_and_programs_are_bounded(monkeypatch):
    monkeypatch.setattr(kernels, "_PLAN_LIMIT", 16)
    monkeypatch.setattr(programs, "_KEEP_PROGRAMS", 16)
    programs.cache.clear()
    for n in range(1, 60):
        assert (torch.ones(n, device="tpu") + 1).sum().item() == 2 * n
        assert len(programs.cache.programs) <= 16
    assert (torch.ones(1, device="tpu") + 1).item() == 2.0
