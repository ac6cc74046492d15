"""``torch-tpu plan``: what a model would need and do on a TPU slice, with no TPU and no weights."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

DTYPES = ("bfloat16", "float32", "float16")
OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "none")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan", help="memory, roofline time and largest operations of a model on a TPU slice that is not attached"
    )
    parser.add_argument(
        "--model",
        required=True,
        help="a preset (llama-3.2-1b, llama-3.1-8b, llama-3.1-70b, mixtral-8x7b, flux) or the path of a config.json",
    )
    parser.add_argument("--topology", default="v6e-1", help="a slice: v6e-1, v5p-8, ... (default: %(default)s)")
    parser.add_argument("--mode", choices=("decode", "prefill", "train"), default="decode", help="default: %(default)s")
    parser.add_argument("--batch", type=_positive, default=1, help="sequences, images (default: 1)")
    parser.add_argument("--length", type=_positive, default=2048, help="tokens a sequence in prefill and train (2048)")
    parser.add_argument("--cache", type=_positive, default=2048, help="positions of the static KV cache (2048)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: %(default)s")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="for train (default: %(default)s)")
    parser.add_argument(
        "--tensor",
        type=_positive,
        default=1,
        metavar="CHIPS",
        help="split the model over so many chips, by its own plan",
    )
    parser.add_argument(
        "--experts", action="store_true", help="with --tensor: whole experts on the chips, not a part of every one"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def run(args: argparse.Namespace) -> int:
    import torch

    from torch_tpu import aot
    from torch_tpu.aot import layouts, models
    from torch_tpu.aot.chips import topology
    from torch_tpu.aot.compiler import require_libtpu

    try:
        topology(args.topology)
        if args.html and not pathlib.Path(args.html).absolute().parent.is_dir():
            raise ValueError(f"--html: there is no folder {pathlib.Path(args.html).parent}")
        require_libtpu()
        call = models.call(
            args.model, args.mode, batch=args.batch, length=args.length, cache=args.cache,
            dtype=getattr(torch, args.dtype),
        )  # fmt: skip
        if args.experts and args.tensor == 1:
            raise ValueError("--experts needs --tensor CHIPS: over how many chips the experts lie")
        laid = None
        if args.tensor > 1:
            laid = layouts.tensor_parallel(call.model, args.tensor, whole_experts=args.experts)
        report = aot.compile(
            call.model, call.args, call.kwargs, topology=args.topology, train=args.mode == "train", loss=call.loss,
            optimizer=_optimizer(args.optimizer) if args.mode == "train" else None, items=call.items, unit=call.unit,
            title=call.title + (f", over {args.tensor} chips" if args.tensor > 1 else ""), shardings=laid,
        )  # fmt: skip
    except (ValueError, ImportError, aot.CompilerError) as e:
        print(f"torch-tpu plan: {e}", file=sys.stderr)
        return 2
    if args.html:
        pathlib.Path(args.html).write_text(report.to_html(), encoding="utf-8")
    print(report.to_json() if args.json else report)
    return 0 if report.fits else 1


def _optimizer(name: str) -> Any:
    import torch

    kinds = {
        "adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD,
        "adafactor": torch.optim.Adafactor,
    }  # fmt: skip
    return kinds.get(name)
