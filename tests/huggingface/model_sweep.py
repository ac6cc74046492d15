"""Run the architectures of Transformers on the device and on CPU, cell by cell, in processes that may die.

python tests/huggingface/model_sweep.py --results models.jsonl        # everything; goes on where it was
python tests/huggingface/model_sweep.py --shard 1/4 --jobs 2
python tests/huggingface/model_sweep.py --models 'llama,gemma*' --checks forward,gradients
python tests/huggingface/model_sweep.py --results models.jsonl --again fail,crash,hang
python tests/huggingface/model_report.py models.jsonl                 # writes docs/models.md
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
    from architectures import all_architectures
    from cells import CELLS
    from more_cells import MORE

    rows = [
        row
        for row in all_architectures().values()
        if any(fnmatch.fnmatchcase(row.name, o) or row.kind == o for o in options.models.split(","))
    ]
    checks = options.checks.split(",") if options.checks else [*CELLS, *MORE]
    return [
        {"model": row.name, "kind": row.kind, "check": check}
        for row in workers.sharded(rows, options.shard)
        for check in checks
        if check not in MORE or row.more
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="*", help="names with wildcards or kinds, separated by commas")
    parser.add_argument("--checks", default="", help="names of cells.py, separated by commas")
    workers.add_arguments(parser, jobs=1, timeout=600)
    options = parser.parse_args()
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = workers.Command(HERE / "model_worker.py", (), environment, options.timeout)
    results = workers.sweep(tasks(options), ("model", "check"), command, options, unit="cell")
    return 0 if workers.totals(results, "check") else 1


if __name__ == "__main__":
    sys.exit(main())
