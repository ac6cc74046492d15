"""The process that ``sweep.py`` starts: reads tasks from stdin, writes a result a line to the given descriptor."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import workers
from checks import CHECKS, Skipped
from entries import ENTRIES

_AT_MOST_MB = 2000


def run(task: dict[str, Any], limit: int | None) -> dict[str, Any]:
    before, start = dict(torch.tpu.fallback_counts()), time.time()
    strides: list[str] = []
    result = {**task, "status": "pass", "message": "", "samples": 0}
    try:
        result["samples"] = CHECKS[task["check"]](ENTRIES[task["op"]], getattr(torch, task["dtype"]), limit, strides)
    except Skipped as e:
        result.update(status="skip", message=str(e))
    except Exception as e:
        result.update(status="fail", message=(str(e) or type(e).__name__)[:600])
    after = torch.tpu.fallback_counts()
    result["fallbacks"] = sorted(n for n, k in after.items() if k > before.get(n, 0))
    result["strides"] = strides[0] if strides else ""
    result["seconds"] = round(time.time() - start, 2)
    return result


def for_tpu(say: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any], int | None], dict[str, Any]]:
    """The task of ``tpu_sweep.py``: run an entry forward and backward, and compile the programs it made for TPUs."""
    import tpu_compile

    known: set[tuple[str, str, str]] = set()
    if os.path.exists(path := os.environ["TPU_SWEEP_RESULTS"]):
        with open(path) as f:
            known = {
                (p["lowering"], p["kind"], p["topology"]) for r in map(json.loads, f) for p in r.get("programs", ())
            }

    def task(task: dict[str, Any], limit: int | None) -> dict[str, Any]:
        start, found = time.time(), []
        entry, dtype = ENTRIES[task["op"]], getattr(torch, task["dtype"])
        torch.manual_seed(0)
        with tpu_compile.recording(found):
            tpu_compile.exercise(entry, dtype, limit or 3)
        largest: dict[tuple[str, str], tpu_compile.Made] = {}
        for made in found:
            if made.elements > largest.setdefault((made.operator, made.kind), made).elements:
                largest[made.operator, made.kind] = made
        programs = []
        for made in largest.values():
            for topology in tpu_compile.TOPOLOGIES:
                if (made.operator, made.kind, topology) not in known:
                    known.add((made.operator, made.kind, topology))
                    say({"doing": {"lowering": made.operator, "kind": made.kind, "topology": topology}})
                    programs.append(tpu_compile.compile_for(topology, made))
        used = sorted(f"{operator} {kind}" for operator, kind in largest)
        seconds = round(time.time() - start, 2)
        return {**task, "status": "pass", "message": "", "used": used, "programs": programs, "seconds": seconds}

    return task


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    limit, of_kind = int(sys.argv[2]) or None, {}

    def one(task: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        kind = task["check"] == "tpu"
        if kind not in of_kind:
            of_kind[kind] = for_tpu(say) if kind else run
        return of_kind[kind](task, limit)

    workers.serve(one, torch.tpu.compiler.clear_cache, at_most_mb=_AT_MOST_MB)


if __name__ == "__main__":
    main()
