"""Run the operator database through the device: every check, dtype and sample, in processes that may die.

    python tests/operators/sweep.py                         # everything; prints what fails, and the totals
    python tests/operators/sweep.py --shard 1/4 --jobs 2
    python tests/operators/sweep.py --ops 'linalg.*' --dtypes float32,complex64 --checks forward,backward
    python tests/operators/sweep.py --results sweep.jsonl --again fail,crash,hang

With ``--results`` each finished task is appended to the file, and a task that is in it is not run again unless
``--again`` names its status: an interrupted run goes on where it was.
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

# One dtype of each kind for the checks that PyTorch's own tests run in one dtype of each kind.
_KINDS = {
    "forward": [
        "float32",
        "int64",
        "bool",
        "complex64",
        "float64",
        "bfloat16",
        "float16",
        "int32",
        "int16",
        "int8",
        "uint8",
        "complex128",
    ],
    "noncontiguous": ["float32", "int64", "complex64"],
    "inplace": ["float32", "int64", "bool", "complex64", "bfloat16"],
    "out": ["float32", "int64", "complex64"],
    "errors": ["float32"],
    "refused": ["bool", "int64", "complex64"],  # where CPU does not take them
    "backward": ["float32", "complex64"],
    "second_order": ["float64", "complex128"],
    "compiled": ["float32", "int64", "bool", "complex64"],
    "compiled_backward": ["float32"],
}


def tasks(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    from entries import ENTRIES

    found = []
    for check in options.checks.split(","):
        for dtype in _KINDS[check]:
            if options.dtypes and dtype not in options.dtypes.split(","):
                continue
            for name, entry in ENTRIES.items():
                if not any(fnmatch.fnmatchcase(name, o) for o in options.ops.split(",")):
                    continue
                wanted = (
                    entry.supported_backward_dtypes
                    if "backward" in check or check == "second_order"
                    else (entry.supported_dtypes)
                )
                if check == "errors" or (getattr(torch, dtype) in wanted("cpu")) == (check != "refused"):
                    found.append({"op": name, "dtype": dtype, "check": check})
    return workers.sharded(found, options.shard)


def command(options: argparse.Namespace) -> workers.Command:
    environment = {"TORCH_TPU_PERSISTENT_CACHE": "0", "OMP_NUM_THREADS": "1"}
    script = pathlib.Path(__file__).with_name("sweep_worker.py")
    return workers.Command(script, [str(options.limit or 0)], environment, options.timeout)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="*", help="names with wildcards, separated by commas")
    parser.add_argument("--dtypes", default="")
    parser.add_argument("--checks", default=",".join(_KINDS))
    parser.add_argument("--limit", type=int, help="at most so many samples of each task, spread evenly")
    workers.add_arguments(parser, jobs=2, timeout=900)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    results = workers.sweep(tasks(options), ("check", "op", "dtype"), command(options), options)
    return 0 if workers.totals(results, "check") else 1


if __name__ == "__main__":
    sys.exit(main())
