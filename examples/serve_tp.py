"""Answer questions with a model that lies over several devices: tensor parallel, compiled, a static cache.

    torchrun --nproc-per-node 4 examples/serve_tp.py --model path/or/hub-id "Why is the sky blue?"
    torchrun --nproc-per-node 2 examples/serve_tp.py --model path/or/hub-id < questions.txt

Rank 0 reads the questions, from the arguments or line by line, and tells them to the others; every rank runs the same
program of the model on its own part of the weights, with two all-reduces a layer. Decoding is one compiled program
for all questions. A model without a tokenizer is given the numbers of its tokens: "5 17 3".
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.distributed.configuration_utils import DistributedConfig


def questions(given: list[str]) -> Iterator[str]:
    """Each question, on every rank: rank 0 has them, and an empty one ends."""
    lines = iter(given or sys.stdin) if dist.get_rank() == 0 else iter(())
    while True:
        box: list[Any] = [next(lines, "").strip()]
        dist.broadcast_object_list(box, 0)
        if not box[0]:
            return
        yield box[0]


def tokens(tokenizer: Any, question: str) -> torch.Tensor:
    """The prompt, int64 (1, tokens)."""
    if tokenizer is None:
        return torch.tensor([[int(word) for word in question.split()]])
    if not tokenizer.chat_template:
        return tokenizer(question, return_tensors="pt").input_ids
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=False
    )


def main(argv: list[str] | None = None) -> list[list[int]]:
    """The new tokens of each answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("questions", nargs="*")
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="auto", help="bfloat16, float32 (default: the model's)")
    args = parser.parse_args(argv)

    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    model: Any = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=args.dtype, distributed_config=DistributedConfig(tp_plan="auto")
    ).eval()
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    except (OSError, ValueError):
        tokenizer = None
    answers = []
    for question in questions(args.questions):
        prompt = tokens(tokenizer, question).to("tpu")
        made = model.generate(
            prompt, max_new_tokens=args.max_new_tokens, do_sample=False, cache_implementation="static"
        )[0, prompt.shape[1] :].tolist()  # fmt: skip
        answers.append(made)
        if dist.get_rank() == 0:
            text = " ".join(map(str, made)) if tokenizer is None else tokenizer.decode(made, skip_special_tokens=True)
            print(f"{question}\n  {text}", flush=True)
    dist.destroy_process_group()
    return answers


if __name__ == "__main__":
    main()
