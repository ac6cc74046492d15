"""What the workers of the two sweeps share: a cell is one check of one subject, timed, its programs counted."""

from __future__ import annotations

import gc
import pathlib
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import workers

Task = dict[str, Any]


def run(
    task: Task, check: Callable[[], None], *, skipped: type[Exception], different: type[Exception]
) -> dict[str, Any]:
    """The result of a cell: status and message, seconds, programs and host fallbacks.

    Args:
      skipped: what a check raises that does not apply.
      different: what it raises where the device's result is not CPU's.
    """
    warnings.simplefilter("ignore")
    before, fallbacks = torch.tpu.compiler.stats(), dict(torch.tpu.fallback_counts())
    start = time.perf_counter()
    result = {**task, "status": "pass", "message": ""}
    try:
        check()
    except skipped as e:
        result.update(status="skip", message=str(e))
    except Exception as e:
        result.update(status="fail", message=_words(e, different))
    after = torch.tpu.compiler.stats()
    result["fallbacks"] = sorted(n for n, k in torch.tpu.fallback_counts().items() if k > fallbacks.get(n, 0))
    if result["fallbacks"] and result["status"] == "pass":
        result.update(status="fail", message=f"falls to the host: {', '.join(result['fallbacks'])}")
    for name in ("compiled", "loaded", "compile_seconds", "load_seconds"):
        result[name] = round(after[name] - before[name], 3)
    result["seconds"] = round(time.perf_counter() - start, 2)
    return result


def _words(e: Exception, different: type[Exception]) -> str:
    text = (str(e).strip() or type(e).__name__)[:600]
    if isinstance(e, different):
        return text
    last = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {text} ({pathlib.Path(last.filename).name}:{last.lineno})"


def serve(one: Callable[[Task], dict[str, Any]], subject: str, *, at_most_mb: int) -> None:
    """Run the tasks of stdin. The cells of a subject (``task[subject]``) share programs, subjects hardly."""
    torch.set_num_threads(1)
    ran: list[str] = []

    def next_one(task: Task, say: Callable[[Task], None]) -> dict[str, Any]:
        if ran and ran[-1] != task[subject]:
            torch._dynamo.reset()
            torch.tpu.compiler.clear_cache()
        ran.append(task[subject])
        return one(task)

    workers.serve(next_one, lambda: gc.collect() and None, at_most_mb=at_most_mb)
