"""Train a small Llama on several devices with FSDP2: parameters, gradients and optimizer states lie in parts on all.

    torchrun --nproc-per-node 4 examples/train_fsdp.py
    torchrun --nproc-per-node 2 examples/train_fsdp.py --steps 20 --text my.txt --checkpoint out --compile

The model learns the letters of a text. Every rank reads other rows of it. With --checkpoint the state is saved by all
ranks (torch.distributed.checkpoint), and training goes on from there when the script is started again, on as many
devices as then. Nothing here names a TPU but the device.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def sharded_model(hidden: int, layers: int, *, bf16: bool = False) -> Any:
    """A Llama over bytes; alike on every rank before it is divided."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512, use_cache=False,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    policy: dict[str, Any] = {}
    if bf16:
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, **policy)
    return fully_shard(model, **policy)  # moves what it divides to the device


def rows(text: torch.Tensor, step: int, count: int, length: int) -> torch.Tensor:
    """This rank's rows of a step: ``count`` pieces of the text, int64 (count, length)."""
    g = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    starts = torch.randint(0, len(text) - length, (count,), generator=g)
    return torch.stack([text[s : s + length] for s in starts]).long()


def load(folder: str, model: Any, optimizer: Any) -> int:
    """The step that a checkpoint was saved at, and its state in the model and the optimizer."""
    parts, own = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": parts, "optimizer": own, "step": 0}
    state_dict_loader.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


def save(folder: str, model: Any, optimizer: Any, step: int) -> None:
    parts, own = get_state_dict(model, optimizer)
    state = {"model": parts, "optimizer": own, "step": step}
    state_dict_saver.save(state, checkpoint_id=folder)


def main(argv: list[str] | None = None) -> float:
    """The last step's loss, averaged over the ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", default=__file__, help="a text file to learn (this script)")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=8, help="of a rank and step")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16; the parts stay in float32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", help="a folder to save in, and to go on from")
    args = parser.parse_args(argv)

    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    model = sharded_model(args.hidden, args.layers, bf16=args.bf16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if args.checkpoint and pathlib.Path(args.checkpoint, ".metadata").exists():
        first = load(args.checkpoint, model, optimizer)
    if args.compile:
        model.compile()
    text = torch.frombuffer(bytearray(pathlib.Path(args.text).read_bytes()), dtype=torch.uint8)
    loss = torch.zeros((), device="tpu")
    for step in range(first, args.steps):
        ids = rows(text, step, args.rows, args.length).to("tpu")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {mean.item():.4f}", flush=True)
    if args.checkpoint:
        save(args.checkpoint, model, optimizer, args.steps)
    mean = loss.detach().float()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    dist.destroy_process_group()
    return mean.item()


if __name__ == "__main__":
    main()
