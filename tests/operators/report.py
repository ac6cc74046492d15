"""Write docs/operators.md from the results of the sweeps.

    python tests/operators/report.py --sweep sweep.jsonl --tpu tpu.jsonl

One line an entry of PyTorch's operator database: dtypes that pass forward, backward and twice backward, ``out=``, in
place, torch.compile, whether its programs compile for TPUs, what runs on the host; below, every gap with its reason.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from entries import ENTRIES
from gaps import GAPS, gap

HERE = pathlib.Path(__file__).resolve().parent

_SHORT = {
    "float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_CHECKS = {
    "backward": "backward", "second_order": "twice", "out": "out=", "inplace": "in place", "noncontiguous": "strided",
    "errors": "errors", "refused": "refuses", "compiled": "compiled", "compiled_backward": "compiled backward",
}  # fmt: skip
_BAD = ("fail", "crash", "hang")
Results = Mapping[tuple[str, str, str], dict[str, Any]]


def read(paths: Iterable[str]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(entry, check, dtype) -> the latest result."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in paths:
        with open(path) as f:
            for r in map(json.loads, f):
                found[r["op"], r["check"], r["dtype"]] = r
    return found


def _mark(results: Results, entry: str, check: str) -> str:
    """Whether an entry passes a check in every dtype: yes, the dtypes that fail, or - where there is none."""
    of = {d: r for (e, c, d), r in results.items() if e == entry and c == check and r["status"] != "skip"}
    failing = [_SHORT[d] for d, r in of.items() if r["status"] in _BAD]
    return "-" if not of else "no: " + " ".join(failing) if failing else "yes"


def _dtypes(results: Results, entry: str) -> str:
    of = {d: results.get((entry, "forward", d)) for d in _SHORT}
    ran = {d: r for d, r in of.items() if r is not None and r["status"] != "skip"}
    failing = [_SHORT[d] for d, r in ran.items() if r["status"] in _BAD]
    passing = [_SHORT[d] for d, r in ran.items() if r["status"] == "pass"]
    return " ".join(passing) + (f" (not {' '.join(failing)})" if failing else "")


class TpuResults:
    """What libtpu said of each (lowering, class of dtypes), and which of them an entry's programs are."""

    def __init__(self, path: str):
        self.words: dict[tuple[str, str], dict[str, str]] = collections.defaultdict(dict)
        self.used: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
        with open(path) as f:
            for r in map(json.loads, f):
                for p in r.get("programs", ()):
                    self.words[p["lowering"], p["kind"]][p["topology"]] = p["word"]
                for u in r.get("used", ()):
                    self.used[r["op"]].add(tuple(u.split(" ")))  # type: ignore[arg-type]

    def mark(self, entry: str) -> str:
        of = [u for u in self.used.get(entry, ()) if u in self.words]
        refused = sorted({kind for (name, kind) in of if any(self.words[name, kind].values())})
        return "-" if not of else f"not {' '.join(refused)}" if refused else "yes"


def _summary(results: Results) -> list[str]:
    lines = ["| check | passes | fails | of (entry, dtype) pairs |", "|---|---|---|---|"]
    for check in ("forward", *_CHECKS):
        ran = [r for (_, c, _), r in results.items() if c == check and r["status"] != "skip"]
        good = sum(r["status"] == "pass" for r in ran)
        if ran:
            lines.append(f"| {check} | {good} ({100 * good / len(ran):.2f} %) | {len(ran) - good} | {len(ran)} |")
    on_host = {e for (e, c, _), r in results.items() if c == "forward" and r.get("fallbacks")}
    entries = {e for (e, c, _) in results if c == "forward"}
    lines += ["", f"{len(entries) - len(on_host)} of {len(entries)} entries run without the host."]
    return lines


def _tpu_summary(tpu: TpuResults) -> list[str]:
    lines = ["| class of dtypes | lowerings | compile for all | refused |", "|---|---|---|---|"]
    kinds = collections.Counter(kind for _, kind in tpu.words)
    for kind, count in sorted(kinds.items(), key=lambda x: -x[1]):
        bad = sum(any(w.values()) for (_, k), w in tpu.words.items() if k == kind)
        lines.append(f"| {kind} | {count} | {count - bad} ({100 * (count - bad) / count:.1f} %) | {bad} |")
    lines += ["", "Refused, with the compiler's word:", ""]
    for (name, kind), words in sorted(tpu.words.items()):
        said = next((w for w in words.values() if w), "")
        if said and kind != "complex128":
            lines.append(f"- `{name}` {kind}: {' '.join(said.split())[:220]}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", nargs="+", required=True)
    parser.add_argument("--tpu", required=True)
    parser.add_argument("--to", default=str(HERE.parent.parent / "docs" / "operators.md"))
    options = parser.parse_args()
    results, tpu = read(options.sweep), TpuResults(options.tpu)
    ran = {check for _, check, _ in results}
    checks = [c for c in _CHECKS if c in ran]
    lines = [
        "# Operators", "",
        "Generated by `tests/operators/report.py` from full sweeps of PyTorch's operator database on device tpu "
        "(XLA:CPU), and from libtpu's answers for v6e and v5e. What a column means: `tests/operators/checks.py`.", "",
        *_summary(results), "", "## Compiling for TPUs", "", *_tpu_summary(tpu), "", "## Entries", "",
        f"| operator | forward | {' | '.join(_CHECKS[c] for c in checks)} | TPU | host |",
        f"|{'---|' * (4 + len(checks))}",
    ]  # fmt: skip
    for entry in sorted(ENTRIES):
        host = sorted({f for (e, _, _), r in results.items() if e == entry for f in r.get("fallbacks", ())})
        marks = " | ".join(_mark(results, entry, c) for c in checks)
        names = " ".join(h.removeprefix("aten::") for h in host)
        lines.append(f"| {entry} | {_dtypes(results, entry)} | {marks} | {tpu.mark(entry)} | {names} |")
    lines += ["", "## Gaps", "", "| entry | check | dtypes | reason |", "|---|---|---|---|"]
    lines += [f"| {g.entry} | {g.check} | {g.dtypes} | {g.reason} |" for g in GAPS]
    unexplained = [k for k, r in results.items() if r["status"] in _BAD and gap(*k) is None]
    if unexplained:
        lines += ["", "Failing with no reason written down:", ""]
        lines += [f"- {e} {c} {d}: {results[e, c, d]['message'][:200]}" for e, c, d in sorted(unexplained)]
    pathlib.Path(options.to).write_text("\n".join(lines) + "\n")
    print("\n".join(_summary(results)))
    print(f"{len(unexplained)} failures without a reason")
    failing = [k for k, r in results.items() if r["status"] in _BAD]
    for g in GAPS:
        if any(fnmatch.fnmatchcase(c, g.check) for c in ran) and not any(g.covers(*k) for k in failing):
            print(f"no failure needs this gap: {g.entry} {g.check} {g.dtypes}")


if __name__ == "__main__":
    main()
