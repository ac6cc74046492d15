"""The process that ``pipelines_sweep.py`` starts: runs cells, one check of one pipeline or scheduler each."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cell_worker  # noqa: E402
import diffusers  # noqa: E402
import transformers  # noqa: E402
from pipelines_all import CASES  # noqa: E402
from pipelines_checks import CHECKS, Different, Skipped, Times  # noqa: E402
from pipelines_schedulers import compare_scheduler  # noqa: E402

_AT_MOST_MB = 3500


def run(task: dict[str, Any]) -> dict[str, Any]:
    times = Times()

    def check() -> None:
        if task["check"] == "scheduler":
            compare_scheduler(task["pipeline"])
        else:
            CHECKS[task["check"]](CASES[task["pipeline"]], times)

    result = cell_worker.run(task, check, skipped=Skipped, different=Different)
    result.update(cpu=round(times.cpu, 5), first=round(times.first, 4), again=round(times.again, 5))
    return result


if __name__ == "__main__":
    diffusers.utils.logging.set_verbosity_error()
    transformers.logging.set_verbosity_error()
    cell_worker.serve(run, "pipeline", at_most_mb=_AT_MOST_MB)
