"""Run Transformers' own tests of models on CPU and on the device: what passes on CPU must pass on the device.

    pip download transformers==5.24.0 --no-binary :all: --no-deps && tar xzf transformers-5.24.0.tar.gz
    pip install parameterized
    python tests/huggingface/library_sweep.py transformers-5.24.0 --results library.jsonl

The archive carries the tests that all models share (``tests/test_modeling_common.py``), which run here on the tiny
models of the sweep under ``TRANSFORMERS_TEST_DEVICE``; each model's own file of tests is not in it.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import workers  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sdist", type=pathlib.Path, help="the unpacked archive")
    parser.add_argument("--models", default="", help="names, separated by commas; one or two of each kind if not given")
    workers.add_arguments(parser, jobs=1, timeout=3600)
    options = parser.parse_args()
    from architectures import all_architectures

    names = options.models.split(",") if options.models else [r.name for r in all_architectures().values() if r.more]
    tasks = [{"model": n, "device": d} for n in workers.sharded(names, options.shard) for d in ("cpu", "tpu")]
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = workers.Command(HERE / "library_worker.py", [str(options.sdist.resolve())], environment, options.timeout)
    results = workers.sweep(tasks, ("model", "device"), command, options, unit="run")
    of = {(r["model"], r["device"]): r["tests"] for r in results if r["status"] == "pass"}
    return 1 if sum(report(name, of) for name in names) else 0


def report(name: str, of: dict[tuple[str, str], dict[str, str]]) -> int:
    """Print how many tests of a model pass on each device, and which pass on CPU only; how many those are."""
    if (name, "cpu") not in of or (name, "tpu") not in of:
        print(f"{name}: did not run")
        return 1
    cpu, tpu = of[name, "cpu"], of[name, "tpu"]
    worse = {t: tpu.get(t, "missing") for t, o in cpu.items() if o == "pass" and tpu.get(t) != "pass"}
    count = lambda found: sum(o == "pass" for o in found.values())  # noqa: E731
    print(f"{name}: {count(cpu)} pass on CPU, {count(tpu)} on the device, {len(worse)} on CPU only")
    for test, outcome in worse.items():
        print(f"  {test}: {outcome}")
    return len(worse)


if __name__ == "__main__":
    sys.exit(main())
