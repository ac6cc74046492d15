"""The process that ``library_sweep.py`` starts: runs the library's tests of a model on a device, in pytest."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import workers  # noqa: E402

_SECONDS = 120  # for one test


def prepared(sdist: pathlib.Path, folder: pathlib.Path) -> None:
    """A folder with the library's ``tests`` and stand-ins for the files of it that the archive leaves out."""
    (folder / "tests").symlink_to(sdist / "tests")
    for package, module, mixin in (
        ("exporters", "test_export", "ExportTesterMixin"),
        ("generation", "test_utils", "GenerationTesterMixin"),
    ):
        (sdist / "tests" / package).mkdir(exist_ok=True)
        (sdist / "tests" / package / f"{module}.py").write_text(f"class {mixin}:\n    pass\n")
    (folder / "test_model.py").write_text((HERE / "library_cases.py").read_text())


def run(task: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepared(pathlib.Path(sys.argv[2]), folder)
        path = os.pathsep.join([str(folder), str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ, "SWEEP_MODEL": task["model"], "TRANSFORMERS_TEST_DEVICE": task["device"],
            "TRANSFORMERS_TEST_BACKEND": "torch_tpu", "PYTHONPATH": path,
        }  # fmt: skip
        options = ["-q", "-p", "no:cacheprovider", f"--timeout={_SECONDS}", "--junitxml=results.xml"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "test_model.py"], cwd=folder, env=environment,
            capture_output=True, text=True,
        )  # fmt: skip
        results = folder / "results.xml"
        if not results.exists():
            return {**task, "status": "crash", "message": done.stdout[-400:] + done.stderr[-400:], "tests": {}}
        tests = {case.get("name"): _outcome(case) for case in xml.parse(results).iter("testcase")}
    return {**task, "status": "pass", "message": "", "tests": tests, "seconds": round(time.perf_counter() - start)}


def _outcome(case: xml.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return f"{kind}: {(found.get('message') or '')[:300]}"
    return "pass"


if __name__ == "__main__":
    workers.serve(run, lambda: None, at_most_mb=10**6)
