"""The process that ``model_sweep.py`` starts: runs cells, one check of one architecture each."""

from __future__ import annotations

import gc
import pathlib
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
import transformers  # noqa: E402
import workers  # noqa: E402
from architectures import all_architectures  # noqa: E402
from cells import CELLS, Skipped, Times  # noqa: E402
from more_cells import MORE  # noqa: E402

_AT_MOST_MB = 3000
ARCHITECTURES = all_architectures()


def run(task: dict[str, Any]) -> dict[str, Any]:
    """The result of a cell: status and message, seconds, programs and host fallbacks."""
    warnings.simplefilter("ignore")
    before, fallbacks = torch.tpu.compiler.stats(), dict(torch.tpu.fallback_counts())
    start, times = time.perf_counter(), Times()
    result = {**task, "status": "pass", "message": ""}
    try:
        {**CELLS, **MORE}[task["check"]](ARCHITECTURES[task["model"]], times)
    except Skipped as e:
        result.update(status="skip", message=str(e))
    except Exception as e:
        result.update(status="fail", message=_words(e))
    after = torch.tpu.compiler.stats()
    result["fallbacks"] = sorted(n for n, k in torch.tpu.fallback_counts().items() if k > fallbacks.get(n, 0))
    if result["fallbacks"] and result["status"] == "pass":
        result.update(status="fail", message=f"falls to the host: {', '.join(result['fallbacks'])}")
    for name in ("compiled", "loaded", "compile_seconds", "load_seconds"):
        result[name] = round(after[name] - before[name], 3)
    result.update(cpu_busy=round(times.cpu, 5), first=round(times.first, 4), again_busy=round(times.again, 5))
    result["late"] = times.late
    result["seconds"] = round(time.perf_counter() - start, 2)
    return result


def _words(e: Exception) -> str:
    last = traceback.extract_tb(e.__traceback__)[-1]
    text = (str(e).strip() or type(e).__name__)[:600]
    if type(e).__name__ == "Different":
        return text
    return f"{type(e).__name__}: {text} ({pathlib.Path(last.filename).name}:{last.lineno})"


def main() -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    ran: list[str] = []

    def one(task: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        if ran and ran[-1] != task["model"]:  # the cells of a model share programs, models hardly
            torch._dynamo.reset()
            torch.tpu.compiler.clear_cache()
        ran.append(task["model"])
        return run(task)

    workers.serve(one, lambda: gc.collect() and None, at_most_mb=_AT_MOST_MB)


if __name__ == "__main__":
    main()
