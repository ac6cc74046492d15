"""Random programs on the device and on CPU: prints where they disagree, cut down to the lines that are needed.

python tests/operators/fuzz.py --cases 5000 --seed 0
python tests/operators/fuzz.py --seed 0 --only 1234        # one case, with its source
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import warnings
from typing import Any

import torch
from compare import Mismatch, compare, significant_strides
from fuzz_programs import draw, maker

_NARROW = re.compile(r"torch\.(float32|float16|bfloat16)\b")


class _Raises:
    """``raises(Error, lambda: ...)`` in a program: that line raises on CPU, and has to everywhere."""

    def __call__(self, kind: type[Exception], run: Any) -> None:
        try:
            result = run()
        except kind:
            return
        except Exception as e:
            raise Mismatch(f"{type(e).__name__} for CPU's {kind.__name__}: {str(e)[:200]}") from e
        shown = f"{result.dtype}{list(result.shape)}" if isinstance(result, torch.Tensor) else repr(result)
        raise Mismatch(f"gave {shown} where CPU raises {kind.__name__}")


def execute(lines: list[str], device: str, *, wide: bool = False) -> dict[str, torch.Tensor]:
    """The tensors that a program ends with, by name."""
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "make": maker(device)}
    # What CPU refuses is looked for on the device alone.
    scope["raises"] = _Raises() if device == "tpu" else lambda kind, run: None
    for line in lines:
        if wide:
            line = _NARROW.sub("torch.float64", line).replace("torch.complex64", "torch.complex128")
        try:
            exec(line, scope)
        except Mismatch as e:
            raise Mismatch(f"{line}: {e}") from None
        except Exception as e:
            raise Mismatch(f"{line}: {type(e).__name__}: {e}") from e
    return {n: t for n, t in scope.items() if isinstance(t, torch.Tensor)}


def _same_strides(lines: list[str], got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Strides are CPU's or, for new tensors, those of PyTorch's meta kernels."""
    meta: dict[str, torch.Tensor] | None = None
    for name, e in expected.items():
        if significant_strides(got[name]) == significant_strides(e):
            continue
        try:
            meta = execute(lines, "meta") if meta is None else meta
        except Exception:
            return  # a shape that depends on values
        if name not in meta or significant_strides(got[name]) != significant_strides(meta[name]):
            raise Mismatch(f"{name}: strides {got[name].stride()} for CPU's {e.stride()}, shape {list(e.shape)}")


def check(lines: list[str]) -> None:
    """Raise unless the device ends a program as CPU does: values, types, shapes, strides, and what raises."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = execute(lines, "cpu")
        got = execute(lines, "tpu")
        torch.tpu.synchronize()
        for name, e in expected.items():

            def judge(name: str = name) -> list[torch.Tensor]:
                try:
                    return [execute(lines, "cpu", wide=True)[name]]
                except Exception:  # bits of another type, say, have no wide form
                    return [torch.empty(0, 0, 0)]

            try:
                compare(got[name], e, judge)
            except Mismatch as m:
                raise Mismatch(f"{name}: {m}") from None
        _same_strides(lines, got, expected)


def failure(lines: list[str]) -> str | None:
    try:
        check(lines)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None


def _runs(lines: list[str]) -> bool:
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            execute(lines, "cpu")
            for line in lines:  # a line that has to raise needs its operands
                names = set(re.findall(r"\bt\d+\b", line)) if line.startswith("raises") else set()
                if any(not any(x.startswith(f"{n} =") for x in lines) for n in names):
                    return False
    except Exception:
        return False
    return True


def minimized(lines: list[str]) -> list[str]:
    """Without the lines that are not needed to disagree."""
    at = len(lines) - 1
    while at >= 0:
        fewer = lines[:at] + lines[at + 1 :]
        if fewer and _runs(fewer) and failure(fewer):
            lines = fewer
        at -= 1
    return lines


def program(seed: int, case: int) -> list[str]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return draw(random.Random(f"{seed}:{case}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="the first case")
    parser.add_argument("--only", type=int, help="run this case alone, and print it")
    options = parser.parse_args()
    if options.only is not None:
        lines = program(options.seed, options.only)
        print("\n".join(lines))
        print(failure(lines) or "agrees")
        return 0
    from tqdm import tqdm

    wrong = 0
    for case in tqdm(range(options.start, options.start + options.cases), unit="case", disable=None):
        lines = program(options.seed, case)
        if failure(lines):
            wrong += 1
            lines = minimized(lines)
            tqdm.write(f"case {case}: {failure(lines)}\n    " + "\n    ".join(lines))
            sys.stdout.flush()
        if case % 500 == 499:
            torch.tpu.compiler.clear_cache()
    fallbacks = dict(torch.tpu.fallback_counts())
    print(f"{options.cases} cases, {wrong} mismatches; host fallbacks: {fallbacks}")
    return 1 if wrong else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
