"""Eager generation with a cache that grows: SmolLM2-135M, 64 tokens, against torch on CPU.

    TORCH_TPU_CACHE_DIR=$(mktemp -d) python benchmarks/dynamic_cache.py     # cold: nothing compiled before

Every token's cache has another length, so its operators are other programs the first time that length is met. Prints
tokens, seconds and programs of three runs in one process (cold, again, and another prompt of the same length), CPU's
time, how often a program was new for another reason than a shape, and the time by what it went into.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import re
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

import chat
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

PROMPTS = ("Once upon a time there was a", "The best way to cook a good")


def generate(model: Any, inputs: Any, tokens: int) -> tuple[list[int], float, float]:
    """The new tokens, and the seconds by the clock and of the process."""
    start, busy = time.perf_counter(), time.process_time()
    out = model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    new = out[0, inputs["input_ids"].shape[1] :].tolist()
    return new, time.perf_counter() - start, time.process_time() - busy


def reason(miss: dict[str, Any]) -> str:
    """What was new about a program: the operator, the types of its operands, or shapes (and how they lie) alone."""
    if miss["nearest"] is None:
        return "operator"
    for new, old in (d.partition(" (was ")[::2] for d in miss["differs"]):
        if sorted(re.findall(r"[a-z]+\d+", new)) != sorted(re.findall(r"[a-z]+\d+", old)):
            return "types"
    return "shapes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=64, help="how many to generate (default 64)")
    args = parser.parse_args()
    logging.set_verbosity_error()
    path, extra = chat.bundled_model()
    tokenizer = AutoTokenizer.from_pretrained(path, **extra)
    on_cpu = AutoModelForCausalLM.from_pretrained(path, dtype="float32", **extra).eval()
    model = AutoModelForCausalLM.from_pretrained(path, dtype="float32", device_map="tpu", **extra).eval()
    runs = {}
    for name, prompt in (("cold", PROMPTS[0]), ("again", PROMPTS[0]), ("another prompt", PROMPTS[1])):
        inputs = tokenizer(prompt, return_tensors="pt")
        before = torch.tpu.compiler.stats()
        tokens, seconds, busy = generate(model, inputs.to("tpu"), args.tokens)
        after = torch.tpu.compiler.stats()
        compiled, loaded = after["compiled"] - before["compiled"], after["loaded"] - before["loaded"]
        compiling = after["compile_seconds"] - before["compile_seconds"]
        loading = after["load_seconds"] - before["load_seconds"]
        runs[name] = tokens
        print(
            f"{name:15} {seconds:7.2f} s ({busy:.2f} of the process): {compiled} compiled in {compiling:.2f} s, "
            f"{loaded} loaded in {loading:.2f} s"
        )
        cpu_tokens, cpu_seconds, cpu_busy = generate(on_cpu, tokenizer(prompt, return_tensors="pt"), args.tokens)
        same = "the same tokens" if cpu_tokens == tokens else "OTHER TOKENS"
        print(f"{'  torch on CPU':15} {cpu_seconds:7.2f} s ({cpu_busy:.2f} of the process): {same}")
    reasons = collections.Counter(map(reason, torch.tpu.compiler.misses()))
    print("programs by what was new:", dict(reasons.most_common()))
    print("host fallbacks:", torch.tpu.fallback_counts())


if __name__ == "__main__":
    main()
