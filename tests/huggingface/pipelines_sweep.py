"""Run the pipelines and schedulers of Diffusers on the device and on CPU, in processes that may die.

python tests/huggingface/pipelines_sweep.py --results pipelines.jsonl    # everything; goes on where it was
python tests/huggingface/pipelines_sweep.py --shard 1/4 --jobs 2
python tests/huggingface/pipelines_sweep.py --pipelines 'flux*,wan' --checks eager,compiled
python tests/huggingface/pipelines_sweep.py --results pipelines.jsonl --again fail,crash,hang
python tests/huggingface/pipelines_sweep.py --results pipelines.jsonl --report   # writes docs/pipelines.md
"""

from __future__ import annotations

import argparse
import fnmatch
import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import workers  # noqa: E402


def tasks(options: argparse.Namespace) -> list[dict[str, Any]]:
    from pipelines_all import CASES
    from pipelines_checks import CHECKS
    from pipelines_schedulers import SCHEDULERS

    wanted = lambda name: any(fnmatch.fnmatchcase(name, o) for o in options.pipelines.split(","))  # noqa: E731
    checks = options.checks.split(",") if options.checks else [*CHECKS, "scheduler"]
    found = [
        {"pipeline": name, "check": check}
        for name in workers.sharded([n for n in CASES if wanted(n)], options.shard)
        for check in checks
        if check in CHECKS
    ]
    if "scheduler" in checks:
        names = workers.sharded([n for n in SCHEDULERS if wanted(n)], options.shard)
        found += [{"pipeline": name, "check": "scheduler"} for name in names]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", default="*", help="names with wildcards, separated by commas")
    parser.add_argument("--checks", default="", help="names of pipelines_checks.py, or scheduler, separated by commas")
    parser.add_argument("--report", action="store_true", help="write docs/pipelines.md from the results")
    workers.add_arguments(parser, jobs=1, timeout=600)
    options = parser.parse_args()
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = workers.Command(HERE / "pipelines_worker.py", (), environment, options.timeout)
    if options.report:
        import pipelines_report

        return pipelines_report.write(pathlib.Path(options.results), tasks(options))
    results = workers.sweep(tasks(options), ("pipeline", "check"), command, options, unit="cell")
    return 0 if workers.totals(results, "check") else 1


if __name__ == "__main__":
    sys.exit(main())
