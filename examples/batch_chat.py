"""Ask several questions at once: uneven prompts in one batch, stop strings, the first answer streamed on request.

    python examples/batch_chat.py "What is the capital of France?" "Write a short poem about the sea."
    python examples/batch_chat.py --stop "." --stream "What is the capital of France?"
    python examples/batch_chat.py --model path/or/hub-id --system "You are brief." "Why is the sky blue?" "Who are you?"

Prompts go through the model's chat template and are padded on the left, so that every answer starts in the same column.
Without --model it uses the bundled SmolLM2-135M-Instruct, as examples/chat.py does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from chat import QUESTION, load, report
from transformers import TextStreamer
from transformers.utils import logging

QUESTIONS = [QUESTION, "Write a short poem about the sea.", "Name three uses of a hammer, one a line."]


def prompts(tokenizer: Any, questions: Sequence[str], system: str = "") -> Any:
    """The questions as one left-padded batch of token ids and their mask, on the device."""
    before = [{"role": "system", "content": system}] if system else []
    conversations = [[*before, {"role": "user", "content": question}] for question in questions]
    texts = tokenizer.apply_chat_template(conversations, tokenize=False, add_generation_prompt=True)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to("tpu")


def answer(
    model: Any,
    tokenizer: Any,
    questions: Sequence[str],
    *,
    tokens: int,
    stop: Sequence[str] = (),
    stream: bool = False,
    system: str = "",
) -> tuple[list[str], int]:
    """The answers, greedily, and how many tokens the longest has; a string of ``stop`` ends an answer."""
    inputs = prompts(tokenizer, questions, system)
    options: dict[str, Any] = {"stop_strings": list(stop), "tokenizer": tokenizer} if stop else {}
    if stream:
        options["streamer"] = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    made = model.generate(
        **inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id, **options
    )
    new = made[:, inputs["input_ids"].shape[1] :]
    return tokenizer.batch_decode(new, skip_special_tokens=True), int(new.shape[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", help=f"default: {len(QUESTIONS)} examples")
    parser.add_argument("--model", help="a local path or a hub id; default: the bundled SmolLM2-135M-Instruct")
    parser.add_argument("--tokens", type=int, default=40, help="the most tokens of an answer (default 40)")
    parser.add_argument("--stop", action="append", default=[], help="a string that ends an answer; may be repeated")
    parser.add_argument("--stream", action="store_true", help="write the answer as it is made (one question)")
    parser.add_argument("--system", default="", help="what the model is told beforehand")
    parser.add_argument("--dtype", default="float32", help="dtype of the weights (default float32)")
    args = parser.parse_args()
    questions = args.questions or QUESTIONS
    if args.stream and len(questions) != 1:
        parser.error("--stream takes one question")
    logging.set_verbosity_error()
    start = time.perf_counter()
    model, tokenizer = load(args.model, args.dtype)
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    answers, tokens = answer(
        model, tokenizer, questions, tokens=args.tokens, stop=args.stop, stream=args.stream, system=args.system
    )
    torch.accelerator.synchronize()
    seconds = time.perf_counter() - start
    if not args.stream:
        for question, text in zip(questions, answers):
            print(f"\nQ: {question}\nA: {text.strip()}")
    report(loaded, tokens * len(questions), seconds)


if __name__ == "__main__":
    main()
