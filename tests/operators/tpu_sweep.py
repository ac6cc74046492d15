"""Compile every lowering for TPUs with libtpu, one program for each class of dtypes. No TPU is needed.

    python tests/operators/tpu_sweep.py --results tpu.jsonl            # all; goes on where it was
    python tests/operators/tpu_sweep.py --results tpu.jsonl --ops 'linalg.*' --again

Programs come from the samples of PyTorch's operator database, forward and backward (a program of the device is
compiled as it is: views, results' strides and all), and from `pytest tests/lowering --record-programs`.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import os
import sys
from typing import Any

import sweep
import workers
from tpu_compile import TOPOLOGIES

_DTYPES = ["float32", "int64", "bool", "complex64", "bfloat16", "float64", "complex128"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="*")
    parser.add_argument("--dtypes", default=",".join(_DTYPES))
    parser.add_argument("--results", required=True)
    parser.add_argument("--again", action="store_true", help="run all named operators again")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900)
    options = parser.parse_args()
    options.limit = 3  # samples, spread evenly; the largest program of each kind is compiled
    from tqdm import tqdm

    todo = _tasks(options)
    done: set[tuple[str, str]] = set()
    known: dict[tuple[str, str, str], dict[str, Any]] = {}
    if os.path.exists(options.results):
        with open(options.results) as f:
            for record in map(json.loads, f):
                _remember(record, done, known)
    todo = [t for t in todo if options.again or (t["op"], t["dtype"]) not in done]
    bar = tqdm(total=len(todo), unit="task", disable=None)
    with open(options.results, "a") as log:

        def report(record: dict[str, Any]) -> dict[str, Any] | None:
            task = {k: record[k] for k in ("op", "dtype", "check")}
            if aborted := record.get("doing"):  # libtpu ended the process: the task goes on without that program
                record["programs"] = [
                    {**aborted, "word": f"libtpu aborts the process ({record['message']})", "seconds": 0}
                ]
            log.write(json.dumps(record) + "\n")
            log.flush()
            _remember(record, done, known)
            if record["status"] in ("crash", "hang"):
                tqdm.write(f"{record['status']} {record['op']} {record['dtype']}: {record['message']}")
            for p in record.get("programs", ()):
                if p["word"]:
                    tqdm.write(f"{p['topology']} {p['lowering']} {p['kind']}: {p['word']}")
            if aborted:
                return task
            bar.update()
            return None

        # What a worker has compiled is not told to the others: each asks this list at its start.
        os.environ["TPU_SWEEP_RESULTS"] = os.path.abspath(options.results)
        workers.run(todo, sweep.command(options), options.jobs, report)
    bar.close()
    for topology in TOPOLOGIES:
        words = [p["word"] for (_, _, at), p in known.items() if at == topology]
        print(topology, dict(collections.Counter("refused" if w else "compiled" for w in words)))
    return 0


def _tasks(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    from entries import ENTRIES

    return [
        {"op": name, "dtype": dtype, "check": "tpu"}
        for dtype in options.dtypes.split(",")
        for name, entry in ENTRIES.items()
        if any(fnmatch.fnmatchcase(name, o) for o in options.ops.split(","))
        and getattr(torch, dtype) in entry.supported_dtypes("cpu")
    ]


def _remember(record: dict[str, Any], done: set[Any], known: dict[Any, Any]) -> None:
    if not record.get("doing"):
        done.add((record["op"], record["dtype"]))
    for p in record.get("programs", ()):
        known[p["lowering"], p["kind"], p["topology"]] = p


if __name__ == "__main__":
    sys.exit(main())
