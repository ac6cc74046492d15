"""Child processes that run the tasks of a sweep: one that crashes or hangs is a result, not the end of the sweep."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tqdm import tqdm

Task = dict[str, Any]


@dataclasses.dataclass
class Command:
    """How a child process is started."""

    script: pathlib.Path  # calls ``serve``
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout: float = 900.0  # seconds for one task


class Worker:
    """A child process that runs tasks one by one."""

    def __init__(self, command: Command):
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.task: Task | None = None
        self.since = 0.0
        self.doing: Any = None  # what the child said last that it was about to do

    def start(self) -> None:
        read, write = os.pipe()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(self.command.script), str(write), *self.command.arguments],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self.errors, pass_fds=[write],
            env={**os.environ, **self.command.environment},
        )  # fmt: skip
        os.close(write)
        self.results = os.fdopen(read, "rb")

    def give(self, task: Task) -> None:
        if self.process is None or self.process.poll() is not None:
            self.start()
        assert self.process is not None and self.process.stdin is not None
        self.task, self.since, self.doing = task, time.time(), None
        self.process.stdin.write((json.dumps(task) + "\n").encode())
        self.process.stdin.flush()

    def take(self) -> Task:
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
        message = f"ended with {status}: {self._last_words()}"
        return {**task, "status": "crash", "message": message, "seconds": 0, "doing": self.doing}

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-400:]

    def stop(self) -> Task | None:
        task, self.task = self.task, None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        return task and {**task, "status": "hang", "message": f"more than {self.command.timeout} s", "seconds": 0}


def run(todo: Sequence[Task], command: Command, jobs: int, report: Callable[[Task], Task | None]) -> None:
    """Run tasks in ``jobs`` processes; ``report`` gets each result, and may return a task to run again."""
    workers = [Worker(command) for _ in range(jobs)]
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
            if w.task is not None and time.time() - w.since > command.timeout:
                hung = w.stop()
                assert hung is not None
                report(hung)
    for w in workers:
        w.stop()


def add_arguments(parser: argparse.ArgumentParser, *, jobs: int, timeout: float) -> None:
    """The options that every sweep has."""
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--timeout", type=float, default=timeout, help="seconds for one task")
    parser.add_argument("--results", help="file of finished tasks (JSON lines)")
    parser.add_argument("--again", default="", help="statuses to run again: fail,crash,hang")


def sharded(tasks: Sequence[Any], shard: str) -> list[Any]:
    """Those of ``tasks`` that fall to shard "i/n"."""
    number, of = (int(x) for x in shard.split("/"))
    return [t for i, t in enumerate(tasks) if i % of == number - 1]


def sweep(
    tasks: Sequence[Task], keys: Sequence[str], command: Command, options: argparse.Namespace, *, unit: str = "task"
) -> list[Task]:
    """Run ``tasks`` with a progress bar, those that ``options.results`` has finished aside; the latest result of each.

    Args:
      keys: the entries of a task that name it, in a result too.
    """
    latest: dict[Any, Task] = {}
    name = lambda t: tuple(t[k] for k in keys)  # noqa: E731
    if options.results and os.path.exists(options.results):
        with open(options.results) as f:
            latest = {name(r): r for r in map(json.loads, f)}
    wanted = {name(t) for t in tasks}
    todo = [t for t in tasks if name(t) not in latest or latest[name(t)]["status"] in options.again.split(",")]
    log = open(options.results, "a") if options.results else None  # noqa: SIM115
    bar = tqdm(total=len(todo), unit=unit, disable=None)

    def report(result: Task) -> None:
        latest[name(result)] = result
        if log:
            log.write(json.dumps(result) + "\n")
            log.flush()
        if result["status"] not in ("pass", "skip"):
            tqdm.write(f"{result['status']} {' '.join(map(str, name(result)))}: {result['message']}")
        bar.update()

    run(todo, command, options.jobs, report)
    bar.close()
    return [r for n, r in latest.items() if n in wanted]


def totals(results: Sequence[Task], key: str) -> bool:
    """Print how many results of each status there are for each value of ``key``; whether all are right."""
    counts: dict[str, collections.Counter[str]] = {}
    for r in results:
        counts.setdefault(r[key], collections.Counter())[r["status"]] += 1
    for value, count in counts.items():
        print(f"{value}: {dict(count)}")
    return all(r["status"] in ("pass", "skip") for r in results)


def serve(one: Callable[[Task, Callable[[Task], None]], Task], after: Callable[[], None], *, at_most_mb: int) -> None:
    """The child's part: run ``one`` on each task of stdin, write a result a line to the descriptor of argv[1].

    Args:
      one: runs a task; its second argument sends a message ``{"doing": ...}``.
      after: what to let go of between two tasks.
      at_most_mb: a process that has grown larger ends, and the next task gets a new one.
    """
    to = os.fdopen(int(sys.argv[1]), "w")

    def say(message: Task) -> None:
        to.write(json.dumps(message) + "\n")
        to.flush()

    for line in sys.stdin:
        result = one(json.loads(line), say)
        after()
        full = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > at_most_mb * 1024
        say({**result, "last": True} if full else result)
        if full:
            break
