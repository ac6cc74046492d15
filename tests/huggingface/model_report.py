"""Write docs/models.md from the results of the model sweep.

python tests/huggingface/model_report.py models.jsonl [more.jsonl ...]
"""

from __future__ import annotations

import collections
import json
import pathlib
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from architectures import all_architectures  # noqa: E402
from cells import CELLS  # noqa: E402
from more_cells import MORE  # noqa: E402

OUT = HERE.parents[1] / "docs" / "models.md"
Result = dict[str, Any]

_MARK = {"pass": "✓", "skip": "·", "fail": "**✗**", "crash": "**✗**", "hang": "**✗**"}
_TIMED = ["forward", "forward_bf16", "gradients", "generate_dynamic", "generate_static", "compiled", "beam_search"]
_MEANS = {
    "forward": "all outputs in float32, within 1e-4 of the largest element",
    "forward_bf16": "in bfloat16, no further from float32 than CPU is, or 2e-2",
    "sdpa": "with `scaled_dot_product_attention`",
    "eager": "with attention written out",
    "gradients": "the loss and the gradient of every parameter",
    "tied": "tied weights stay one: moved, loaded, and in their gradient",
    "save_load": '`save_pretrained`, `from_pretrained(device_map="tpu")`, and back',
    "generate_dynamic": "greedy tokens with a cache that grows",
    "generate_static": "greedy tokens with a static cache, where `generate` compiles by itself",
    "compiled": '`torch.compile(backend="tpu", fullgraph=True)`',
    "left_padding": "texts of unequal length, padded on the left, and the tokens that follow",
    "right_padding": "the same, padded on the right",
    "sampling": "a seed repeats; each token is among CPU's likeliest",
    "beam_search": "three beams, two results",
    "assisted": "a second model proposes tokens",
    "checkpointing": "gradients with the layers run again",
    "half_loading": "weights loaded as bfloat16 and float16",
    "quantized_cache": "greedy tokens with an fp8 cache",
    "exported": "`torch.export` of the model on the device",
}


def read(files: Sequence[str]) -> list[Result]:
    """The latest result of each cell, in the order of the tables."""
    latest: dict[tuple[str, str], Result] = {}
    for file in files:
        with open(file) as f:
            latest |= {(r["model"], r["check"]): r for r in map(json.loads, f)}
    order = {name: i for i, name in enumerate(all_architectures())}
    checks = [*CELLS, *MORE]
    return sorted(
        (r for r in latest.values() if r["model"] in order), key=lambda r: (order[r["model"]], checks.index(r["check"]))
    )


def summary(results: list[Result]) -> list[str]:
    run = [r for r in results if r["status"] != "skip"]
    right = [r for r in run if r["status"] == "pass"]
    unable = sum(r["status"] == "skip" and r["message"].startswith("CPU:") for r in results)
    kinds = collections.Counter(k for _, k in {(r["model"], r["kind"]) for r in results})
    fell = sorted({name for r in results for name in r.get("fallbacks", ())})
    expected = sum(len(CELLS) + len(MORE) * row.more for row in all_architectures().values())
    lines = [
        f"{sum(kinds.values())} architectures ({', '.join(f'{n} {k}' for k, n in kinds.items())}), "
        f"{len(results)} cells: {len(right)} of the {len(run)} that CPU can do are equal on the device "
        f"({100 * len(right) / len(run):.2f} %). CPU cannot do {unable}, and {len(results) - len(run) - unable} "
        "are not for the kind of model. "
        + (f"{expected - len(results)} of the {expected} cells have not been run." if len(results) < expected else ""),
        "",
        f"Cells that ended their process: {sum(r['status'] in ('crash', 'hang') for r in results)}. "
        f"Operators that fell back to the host: {', '.join(fell) or 'none'}.",
        "",
        "| check | equal | skipped | wrong | what is compared |",
        "|---|---|---|---|---|",
    ]
    for check in [*CELLS, *MORE]:
        counts = collections.Counter(r["status"] for r in results if r["check"] == check)
        wrong = counts["fail"] + counts["crash"] + counts["hang"]
        lines.append(f"| {check} | {counts['pass']} | {counts['skip']} | {wrong} | {_MEANS[check]} |")
    return lines


def failures(results: list[Result]) -> list[str]:
    wrong = [r for r in results if r["status"] not in ("pass", "skip")]
    return [f"- {r['model']}, {r['check']}: {_plain(r['message'])}" for r in wrong] or ["None."]


def _plain(message: str) -> str:
    return re.sub(r"\s+", " ", message).replace("|", "\\|")[:300]


def times(results: list[Result]) -> list[str]:
    """How long the device takes against CPU, and on what."""
    timed = [r for r in results if r["status"] == "pass" and min(r.get("cpu_busy", 0), r.get("again_busy", 0)) > 0]
    lines = [
        "| check | cells | programs | compiling, s | first, s | again, ms | CPU, ms | again / CPU |",
        "|---" * 8 + "|",
    ]
    for check in _TIMED:
        rows = [r for r in timed if r["check"] == check]
        if not rows:
            continue
        of = lambda key, rows=rows: statistics.median(r[key] for r in rows)  # noqa: E731
        programs = statistics.median(r["compiled"] + r["loaded"] for r in rows)
        ratio = statistics.median(r["again_busy"] / r["cpu_busy"] for r in rows)
        lines.append(
            f"| {check} | {len(rows)} | {programs:.0f} | {of('compile_seconds'):.2f} | {of('first'):.2f} "
            f"| {1000 * of('again_busy'):.1f} | {1000 * of('cpu_busy'):.1f} | {ratio:.1f} |"
        )
    first = sum(r["first"] for r in timed)
    compiling = sum(r["compile_seconds"] for r in timed)
    loading = sum(r["load_seconds"] for r in timed)
    again, cpu = sum(r["again_busy"] for r in timed), sum(r["cpu_busy"] for r in timed)
    lines += [
        "",
        f"Medians of cells. Over all {len(timed)} timed cells the first run takes {first:.0f} s, of which compiling "
        f"{compiling:.0f} s ({100 * compiling / first:.0f} %) and loading programs from the disk {loading:.0f} s; the "
        f"best of three more {again:.2f} s in all, CPU's {cpu:.2f} s. The median ratio of these is "
        f"{statistics.median(r['again_busy'] / r['cpu_busy'] for r in timed):.1f}: at these sizes operators are "
        "dispatched rather than computed. Cold, compiling dominates.",
        "",
        "The ten slowest against CPU, programs in memory:",
        "",
        "| model | check | again, ms | CPU, ms | ratio |",
        "|---|---|---|---|---|",
    ]
    worst = sorted(timed, key=lambda r: -r["again_busy"] / r["cpu_busy"])[:10]
    for r in worst:
        ours, theirs = r["again_busy"], r["cpu_busy"]
        lines.append(f"| {r['model']} | {r['check']} | {1000 * ours:.1f} | {1000 * theirs:.1f} | {ours / theirs:.0f} |")
    late = [f"{r['model']} {r['check']} ({r['late']})" for r in results if r.get("late")]
    lines += ["", f"Cells that compile something after their first run: {', '.join(late) or 'none'}.", ""]
    lines += ["The ten that compile longest:", "", "| model | check | programs | compiling, s |", "|---|---|---|---|"]
    longest = sorted(results, key=lambda r: -r.get("compile_seconds", 0))[:10]
    lines += [f"| {r['model']} | {r['check']} | {r['compiled']} | {r['compile_seconds']:.1f} |" for r in longest]
    return lines


def table(results: list[Result]) -> list[str]:
    """Architectures by checks."""
    kinds: dict[str, dict[str, dict[str, str]]] = {}
    for r in results:
        kinds.setdefault(r["kind"], {}).setdefault(r["model"], {})[r["check"]] = _MARK[r["status"]]
    lines: list[str] = []
    for kind, models in kinds.items():
        lines += [f"### {kind}", "", "| | " + " | ".join(CELLS) + " | more |", "|---" * (len(CELLS) + 2) + "|"]
        for model, cells in models.items():
            more = "".join(cells[c] for c in MORE if c in cells)
            lines.append(f"| {model} | " + " | ".join(cells.get(c, "") for c in CELLS) + f" | {more} |")
        lines.append("")
    return lines


def skips(results: list[Result]) -> list[str]:
    """CPU's words for what it cannot do, or why a check is not for a model, with those they are said of."""
    said: dict[str, list[str]] = {}
    for r in results:
        if r["status"] == "skip":
            word = re.sub(r"\b\w+For\w+|\b\w+Model\b", "The model", _plain(r["message"]))
            said.setdefault(word[:120], []).append(f"{r['model']} {r['check']}")
    lines = ["| why | cells | of |", "|---|---|---|"]
    for word, of in sorted(said.items(), key=lambda x: -len(x[1])):
        lines.append(f"| {word} | {len(of)} | {', '.join(of[:3])}{', ...' if len(of) > 3 else ''} |")
    return lines


def main() -> int:
    results = read(sys.argv[1:])
    text = [
        "# Models of Transformers on the device", "",
        "Written by `tests/huggingface/model_report.py` from a run of `tests/huggingface/model_sweep.py`: unmodified "
        "Transformers, tiny models with random weights made from the configuration classes, each cell on CPU and on "
        '`torch.device("tpu")` with the same weights and inputs. The library\'s own tests: '
        "[library-tests.md](library-tests.md).", "",
        "    python tests/huggingface/model_sweep.py --results models.jsonl",
        "    python tests/huggingface/model_report.py models.jsonl", "",
        *summary(results), "",
        f"The last {len(MORE)} run on one architecture or two of each kind.", "",
        "## What is wrong", "",
        "A shape that depends on values (data-dependent, `GraphError`) has no XLA program: `fullgraph=False` lets the "
        "graph break there.", "",
        *failures(results), "",
        "## Time", "",
        "On a machine without a TPU: XLA on two CPU cores, busy with other work. Programs are kept on the disk, so "
        "a cell finds what earlier ones compiled. `first` is by the clock; `again` and `CPU` are the process's own "
        "time, the best of three runs with programs in memory.", "",
        *times(results), "",
        "## Cell by cell", "",
        "✓ equal, · skipped, ✗ wrong; an empty place has not been run. `more` is, in this order: "
        f"{', '.join(MORE)}.", "",
        *table(results),
        "## Skipped cells", "", *skips(results), "",
    ]  # fmt: skip
    OUT.write_text("\n".join(text))
    print(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
