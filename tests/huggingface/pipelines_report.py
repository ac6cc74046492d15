"""docs/pipelines.md from the results of ``pipelines_sweep.py``."""

from __future__ import annotations

import collections
import json
import pathlib
import statistics
from typing import Any

_DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"
_MARKS = {"pass": "✓", "skip": "–", "fail": "**fail**", "crash": "**crash**", "hang": "**hang**"}
_HEAD = """# Diffusers: what runs

Written by `python tests/huggingface/pipelines_sweep.py --results FILE --report`; do not edit. Unmodified diffusers
0.42.1, components of a few channels with random weights, XLA:CPU. Each cell compares device tpu with CPU from the same
weights and seeds: images within 1e-3, schedulers within 1e-4, bfloat16 as near to float32 as CPU's bfloat16.
A host fallback fails a cell.

- **eager**: equal images; another seed compiles nothing.
- **compiled**: `denoiser.compile(backend="tpu", fullgraph=True, dynamic=False)`; one compilation for all steps.
- **tiling**: the VAE's slices and tiles. **offload**: of whole models, of layers, of groups of blocks.
- **lora**: loaded, fused, unfused, unloaded. **reloaded**: `save_pretrained`, then `from_pretrained(device_map="tpu")`.
"""


def _table(results: dict[tuple[str, str], dict[str, Any]], names: list[str], checks: list[str]) -> list[str]:
    lines = ["| pipeline | " + " | ".join(checks) + " |", "|---" * (len(checks) + 1) + "|"]
    for name in names:
        marks = [_MARKS[results[name, c]["status"]] if (name, c) in results else " " for c in checks]
        lines.append(f"| {name} | " + " | ".join(marks) + " |")
    return lines


def _reasons(results: dict[tuple[str, str], dict[str, Any]], statuses: tuple[str, ...]) -> list[str]:
    """Messages with what they are the messages of, the frequent ones first."""
    by_message = collections.defaultdict(list)
    for (name, check), r in results.items():
        if r["status"] in statuses:
            by_message[f"{check}: {r['message'].splitlines()[0]}"].append(name)
    longest_first = sorted(by_message.items(), key=lambda item: -len(item[1]))
    return [f"- {message.replace('|', '/')} ({', '.join(names)})" for message, names in longest_first]


def _times(results: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    rows = [r for (_, check), r in results.items() if check == "eager" and r["status"] == "pass" and r["cpu"]]
    if not rows:
        return []
    ratio = lambda r: r["again"] / r["cpu"]  # noqa: E731
    worst = sorted(rows, key=ratio, reverse=True)[:10]
    first = sum(r["first"] for r in rows)
    compiling = sum(r["compile_seconds"] + r["load_seconds"] for r in rows)
    return [
        "## Time, eager",
        "",
        f"Second call against CPU's second call, one thread: median ratio {statistics.median(map(ratio, rows)):.2f}. "
        f"First calls take {first:.0f} s in all, XLA's compiler {100 * compiling / first:.0f} % of it. The models are "
        "tiny: what is compared is the cost of an operator, not of arithmetic.",
        "",
        "| the ten slowest | CPU, s | tpu, s | ratio | programs |",
        "|---|---|---|---|---|",
        *(
            f"| {r['pipeline']} | {r['cpu']:.3f} | {r['again']:.3f} | {ratio(r):.2f} | {r['compiled'] + r['loaded']} |"
            for r in worst
        ),
        "",
    ]


def write(path: pathlib.Path, tasks: list[dict[str, Any]]) -> int:
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    with open(path) as f:
        for r in map(json.loads, f):
            latest[r["pipeline"], r["check"]] = r
    wanted = [(t["pipeline"], t["check"]) for t in tasks]
    missing = [w for w in wanted if w not in latest]
    results = {w: latest[w] for w in wanted if w in latest}
    checks = list(dict.fromkeys(c for _, c in wanted if c != "scheduler"))
    names = list(dict.fromkeys(n for n, c in wanted if c != "scheduler"))
    schedulers = [n for n, c in wanted if c == "scheduler"]
    counts = collections.Counter(r["status"] for r in results.values())
    ran = counts.total() - counts["skip"]
    passed = [n for n in schedulers if results.get((n, "scheduler"), {}).get("status") == "pass"]
    lines = [
        _HEAD,
        f"{len(names)} pipelines and {len(schedulers)} schedulers, {counts.total()} cells: {counts['pass']} of {ran} "
        f"that CPU can run pass ({100 * counts['pass'] / max(ran, 1):.1f} %), {counts['skip']} do not apply"
        + (f", {len(missing)} were not run." if missing else "."),
        "",
        *_table(results, names, checks),
        "",
        f"**Schedulers** ({len(passed)} of {len(schedulers)}): {', '.join(passed)}.",
        "",
        *_times(results),
    ]
    failures = _reasons(results, ("fail", "crash", "hang"))
    if failures:
        lines += ["## What fails", "", *failures, ""]
    lines += ["## What does not apply", "", *_reasons(results, ("skip",)), ""]
    _DOCUMENT.write_text("\n".join(lines))
    print(f"{_DOCUMENT}: {dict(counts)}, {len(missing)} missing")
    return 0
