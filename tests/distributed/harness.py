"""Running a function on several ranks, each a process of its own, as torchrun would start them; with a hard end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

HERE = pathlib.Path(__file__).parent
_LAUNCHER = """
import faulthandler, importlib, os, sys
faulthandler.dump_traceback_later(float(os.environ["TEST_TIMEOUT"]) * 0.9)  # where it hangs, if it does
sys.path.insert(0, sys.argv[1])
getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(*sys.argv[4:])
"""


@dataclasses.dataclass
class Rank:
    code: int | None  # None: it had to be killed when the time was up
    out: str
    seconds: float  # from the start to its end


_MARK = "TEST_RANKS_OF"  # in the environment of the ranks and of all that they start
_SECONDS_TO_END = 10  # for what a rank started, after the last rank


def marked(mark: str) -> dict[int, str]:
    """The processes of a run that still are, with their command lines."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"{_MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def _none_left(mark: str, port: str) -> None:
    """No process of the run is there, and nobody listens at its port. What is left is ended, and is an error."""
    until = time.monotonic() + _SECONDS_TO_END
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert not left, f"still running after the ranks have ended: {left}"
    with socket.socket() as s:
        assert s.connect_ex(("127.0.0.1", int(port))) != 0, f"somebody still listens on {port}"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(
    module: str, function: str, *args: str, size: int = 2, timeout: float = 120, env: dict[str, str] | None = None
) -> list[Rank]:
    """Run ``module.function(*args)`` of this folder on ``size`` ranks; each one's exit code and output."""
    port, mark = str(free_port()), uuid.uuid4().hex
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        processes, files = [], []
        for rank in range(size):
            numbers = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TEST_TIMEOUT": str(timeout), _MARK: mark,
            }  # fmt: skip
            file = open(os.path.join(folder, str(rank)), "w+b")  # noqa: SIM115  closed below
            files.append(file)
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", _LAUNCHER, str(HERE), module, function, *args],
                    env={**os.environ, **numbers, **(env or {})}, stdout=file, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )  # fmt: skip
        codes, ends = _wait(processes, begun + timeout)
        _none_left(mark, port)
        ranks = []
        for code, end, file in zip(codes, ends, files):
            file.seek(0)
            ranks.append(Rank(code, file.read().decode(errors="replace"), end - begun))
            file.close()
    return ranks


def _wait(processes: list[subprocess.Popen[bytes]], until: float) -> tuple[list[int | None], list[float]]:
    ends = [0.0] * len(processes)
    codes: list[int | None] = [None] * len(processes)
    try:
        while time.monotonic() < until and not all(ends):
            for i, p in enumerate(processes):
                if not ends[i] and p.poll() is not None:
                    codes[i], ends[i] = p.returncode, time.monotonic()
            time.sleep(0.05)
    finally:
        for i, p in enumerate(processes):
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
                ends[i] = time.monotonic()
    return codes, ends


def run(module: str, function: str, *args: str, size: int = 2, timeout: float = 120, **kwargs: dict[str, str]) -> None:
    """``start``, and every rank must end well."""
    ranks = start(module, function, *args, size=size, timeout=timeout, **kwargs)
    for i, rank in enumerate(ranks):
        assert rank.code == 0, f"rank {i} ended with {rank.code}:\n" + "\n".join(
            f"--- rank {j}\n{r.out[-6000:]}" for j, r in enumerate(ranks)
        )
