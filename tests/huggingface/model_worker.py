"""The process that ``model_sweep.py`` starts: runs cells, one check of one architecture each."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cell_worker  # noqa: E402
import transformers  # noqa: E402
from architectures import all_architectures  # noqa: E402
from cells import CELLS, Different, Skipped, Times  # noqa: E402
from more_cells import MORE  # noqa: E402

_AT_MOST_MB = 3000
ARCHITECTURES = all_architectures()


def run(task: dict[str, Any]) -> dict[str, Any]:
    times = Times()
    check, architecture = {**CELLS, **MORE}[task["check"]], ARCHITECTURES[task["model"]]
    result = cell_worker.run(task, lambda: check(architecture, times), skipped=Skipped, different=Different)
    result.update(cpu_busy=round(times.cpu, 5), first=round(times.first, 4), again_busy=round(times.again, 5))
    result["late"] = times.late
    return result


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    cell_worker.serve(run, "model", at_most_mb=_AT_MOST_MB)
