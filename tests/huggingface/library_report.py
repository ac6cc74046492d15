"""Write docs/library-tests.md from the results of the sweep of Transformers' own tests.

python tests/huggingface/library_report.py library.jsonl [more.jsonl ...]
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

OUT = HERE.parents[1] / "docs" / "library-tests.md"
Result = dict[str, Any]
Pair = tuple[str, Result, Result]  # a model, its run on CPU, its run on the device


def read(files: Sequence[str]) -> dict[str, dict[str, Result]]:
    """By model and device, the latest run of each."""
    found: dict[str, dict[str, Result]] = collections.defaultdict(dict)
    for file in files:
        with open(file) as f:
            for result in map(json.loads, f):
                found[result["model"]][result["device"]] = result
    return found


def passing(run: Result) -> set[str]:
    return {test for test, outcome in run["tests"].items() if outcome == "pass"}


def one_line(outcome: str, width: int = 200) -> str:
    """An outcome for a line or a cell of Markdown."""
    return " ".join(outcome.split())[:width].replace("|", "\\|").replace("<", "&lt;")


def report(found: dict[str, dict[str, Result]]) -> str:
    pairs = [(name, of["cpu"], of["tpu"]) for name, of in found.items() if len(of) == 2]
    ended = [(name, run) for name, *runs in pairs for run in runs if run["status"] != "pass"]
    pairs = [p for p in pairs if all(run["status"] == "pass" for run in p[1:])]
    return "\n".join(
        [*_head(pairs), *_worse(pairs, ended), *_skipped(pairs), *_table(pairs), *_not_on_cpu(pairs), ""],
    )


def _head(pairs: Sequence[Pair]) -> list[str]:
    cpu = sum(len(passing(c)) for _, c, _ in pairs)
    both = sum(len(passing(c) & passing(t)) for _, c, t in pairs)
    device = sum(len(passing(t)) for _, _, t in pairs)
    share = f"{100 * both / cpu:.2f} %" if cpu else "none"
    return [
        "# Transformers' own tests on the device",
        "",
        "Written by `tests/huggingface/library_report.py` from a run of `tests/huggingface/library_sweep.py`: the "
        "tests that all models of the library share (`tests/test_modeling_common.py` of its source archive), "
        "unmodified, under `TRANSFORMERS_TEST_DEVICE=cpu` and `=tpu`, on the tiny models of "
        "[the sweep of models](models.md).",
        "",
        "    python tests/huggingface/library_sweep.py transformers-5.24.0 --results library.jsonl",
        "    python tests/huggingface/library_report.py library.jsonl",
        "",
        f"{len(pairs)} architectures. {cpu} tests pass on CPU; {both} of them pass on the device ({share}). "
        f"{device} pass on the device in all: tests that the library skips on CPU run there.",
        "",
    ]


def _worse(pairs: Sequence[Pair], ended: Sequence[tuple[str, Result]]) -> list[str]:
    lines = ["## What passes on CPU only", ""]
    lines += [
        f"- {name}, `{test}`: {one_line(tpu['tests'].get(test, 'was not run'))}"
        for name, cpu, tpu in pairs
        for test in sorted(passing(cpu) - passing(tpu))
    ]
    lines += [f"- {name} on {run['device']} ended its process: {one_line(run['message'])}" for name, run in ended]
    return [*lines, *([] if len(lines) > 2 else ["Nothing."]), ""]


def _skipped(pairs: Iterable[Pair]) -> list[str]:
    """What the library does not run on CPU, as offloading, and what fails of it on the device."""
    failed = {
        (name, test): outcome
        for name, cpu, tpu in pairs
        for test, outcome in tpu["tests"].items()
        if outcome.startswith(("failure", "error")) and cpu["tests"].get(test, "").startswith("skipped")
    }
    lines = [f"- {name}, `{test}`: {one_line(outcome)}" for (name, test), outcome in failed.items()]
    offload = (
        "Offloading is run on accelerators alone. Read from the code, not tried on another accelerator: "
        "`torch.nn.MultiheadAttention` (SigLIP's pooling) hands its projection's weight on without calling the layer, "
        "so no hook of Accelerate brings it; a model that fits one part is not dispatched and has no `hf_device_map`."
    )
    return [
        "## What fails on the device and is not run on CPU",
        "",
        *([*lines, "", offload] if lines else ["Nothing."]),
        "",
    ]


def _table(pairs: Iterable[Pair]) -> list[str]:
    lines = [
        "## By model", "",
        "| model | pass on CPU | pass on the device | on CPU only | on the device only | CPU, s | device, s |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, cpu, tpu in sorted(pairs):
        on_cpu, on_tpu = passing(cpu), passing(tpu)
        counts = [len(on_cpu), len(on_tpu), len(on_cpu - on_tpu), len(on_tpu - on_cpu), cpu["seconds"], tpu["seconds"]]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return [*lines, "", "Seconds by the clock of a machine that was busy with other work, compilation among them.", ""]


def _not_on_cpu(pairs: Iterable[Pair]) -> list[str]:
    """Why tests fail on CPU too: mostly what a tiny model made from a configuration alone does not have."""
    causes: dict[str, list[str]] = collections.defaultdict(list)
    for name, cpu, _ in pairs:
        for test, outcome in cpu["tests"].items():
            if outcome != "pass" and not outcome.startswith("skipped"):
                causes[one_line(outcome, 110)].append(f"{name} `{test}`")
    lines = [
        "## What fails on CPU too", "",
        f"{sum(map(len, causes.values()))} tests, which say nothing of the device: most ask for what only the model's "
        "own file of tests knows. The twenty commonest causes:", "",
        "| tests | cause | one of them |", "|---|---|---|",
    ]  # fmt: skip
    commonest = sorted(causes.items(), key=lambda of: -len(of[1]))[:20]
    return [*lines, *(f"| {len(tests)} | {cause} | {tests[0]} |" for cause, tests in commonest)]


if __name__ == "__main__":
    OUT.write_text(report(read(sys.argv[1:])))
