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
import collections
import fnmatch
import json
import os
import pathlib
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

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
    shard, of = (int(x) for x in options.shard.split("/"))
    return [t for i, t in enumerate(found) if i % of == shard - 1]


class Worker:
    """A child process that runs tasks one by one."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.task: dict[str, Any] | None = None
        self.since = 0.0
        self.doing: Any = None  # what the child said last that it was about to do

    def start(self) -> None:
        read, write = os.pipe()
        environment = {**os.environ, "TORCH_TPU_PERSISTENT_CACHE": "0", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sweep_worker.py"), str(write), str(self.options.limit or 0)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[write],
            env=environment,
        )  # fmt: skip
        os.close(write)
        self.results = os.fdopen(read, "rb")

    def give(self, task: dict[str, Any]) -> None:
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.process is not None and self.process.stdin is not None
        self.task, self.since, self.doing = task, time.time(), None
        self.process.stdin.write((json.dumps(task) + "\n").encode())
        self.process.stdin.flush()

    def take(self) -> dict[str, Any]:
        while (line := self.results.readline()).startswith(b'{"doing"'):
            self.doing = json.loads(line)["doing"]
        task, self.task = self.task, None
        assert task is not None and self.process is not None
        if line:
            result = json.loads(line)
            if result.pop("last", False):
                self.stop()
            return result
        status = self.process.wait()
        self.results.close()
        message = f"ended with {status}"
        return {**task, "status": "crash", "message": message, "seconds": 0, "doing": self.doing}

    def stop(self) -> dict[str, Any] | None:
        task, self.task = self.task, None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        return task and {**task, "status": "hang", "message": f"more than {self.options.timeout} s", "seconds": 0}


def run(
    todo: list[dict[str, Any]], options: argparse.Namespace, report: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Run tasks in ``options.jobs`` processes; ``report`` gets each result, and may return a task to run again."""
    workers = [Worker(options) for _ in range(options.jobs)]
    queue = collections.deque(todo)
    while queue or any(w.task for w in workers):
        for w in workers:
            if w.task is None and queue:
                w.give(queue.popleft())
        with selectors.DefaultSelector() as ready:
            for w in workers:
                if w.task is not None:
                    ready.register(w.results, selectors.EVENT_READ, w)
            for key, _ in ready.select(timeout=5):
                again = report(key.data.take())
                if again is not None:
                    queue.append(again)
        for w in workers:
            if w.task is not None and time.time() - w.since > options.timeout:
                report(w.stop())
    for w in workers:
        w.stop()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="*", help="names with wildcards, separated by commas")
    parser.add_argument("--dtypes", default="")
    parser.add_argument("--checks", default=",".join(_KINDS))
    parser.add_argument("--limit", type=int, help="at most so many samples of each task, spread evenly")
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one task")
    parser.add_argument("--results", help="file of finished tasks (JSON lines)")
    parser.add_argument("--again", default="", help="statuses to run again: fail,crash,hang")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    from tqdm import tqdm

    todo, latest = tasks(options), {}
    name = lambda t: (t["op"], t["dtype"], t["check"])  # noqa: E731
    if options.results and os.path.exists(options.results):
        with open(options.results) as f:
            latest = {name(r): r for r in map(json.loads, f)}
    wanted = {name(t) for t in todo}
    todo = [t for t in todo if name(t) not in latest or latest[name(t)]["status"] in options.again.split(",")]
    log = open(options.results, "a") if options.results else None  # noqa: SIM115
    bar = tqdm(total=len(todo), unit="task", disable=None)

    def report(result: dict[str, Any]) -> None:
        latest[name(result)] = result
        if log:
            log.write(json.dumps(result) + "\n")
            log.flush()
        if result["status"] not in ("pass", "skip"):
            tqdm.write(f"{result['status']} {result['check']} {result['op']} {result['dtype']}: {result['message']}")
        bar.update()

    run(todo, options, report)
    bar.close()
    done = [r for n, r in latest.items() if n in wanted]
    for check in options.checks.split(","):
        count = collections.Counter(r["status"] for r in done if r["check"] == check)
        print(f"{check}: {dict(count)}")
    return 0 if all(r["status"] in ("pass", "skip") for r in done) else 1


if __name__ == "__main__":
    sys.exit(main())
