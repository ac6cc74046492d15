"""Bodies that ``test_models`` runs on every rank: models of the libraries over several ranks equal one process."""

from __future__ import annotations

import copy
import math
import os
import re

import torch
import torch.distributed as dist
from on_ranks import run_parts
from on_ranks_compiled import Programs
from on_ranks_training import begin

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAYERS = 2


def saved(make, folder):
    """A random model on the CPU, the same on every rank, and the folder that rank 0 has saved it in."""
    torch.manual_seed(0)
    found = make().eval()
    if RANK == 0:
        found.save_pretrained(folder)
    dist.barrier()
    return found


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def qwen_moe():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=LAYERS,
            num_attention_heads=4, num_key_value_heads=4, head_dim=8, num_experts=8, num_experts_per_tok=2,
            max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


IDS = torch.arange(3, 11)[None]


def whole(p):
    return p.full_tensor() if hasattr(p, "full_tensor") else p


OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, foreach=False),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3, foreach=False),
}


def language_loss(net, ids):
    return net(input_ids=ids, labels=ids, use_cache=False).loss


def three_steps(net, inputs, loss_of, make, after_backward=lambda net: None):
    """The losses of three optimizer steps."""
    optimizer = make(net.parameters())
    losses = []
    for _ in range(3):
        loss = loss_of(net, inputs)
        loss.backward()
        after_backward(net)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return torch.stack(losses)


def close(got, wanted, exact, what):
    """Within 1e-5 of one process; where one process is itself further from float64, not twice as far as it is."""
    try:
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    except AssertionError as e:
        error, own = ((x.double() - exact).abs().max().item() for x in (got, wanted))
        assert own > 0.5e-5 and error <= 2 * own, f"{what}: {error:.1e} from float64, one process {own:.1e}: {e}"
        print(f"{what}: {error:.1e} from float64, one process {own:.1e}", flush=True)


def same_training(net, wanted, inputs, loss_of, optimizer, after_backward=lambda net: None, order=lambda n, v: v):
    """Forward, backward and three optimizer steps.

    Args:
      net: on the device, in parts.
      wanted: the same on the CPU. It is trained too.
      order: puts a parameter as the ranks hold it together as the model has it.
    """
    make = OPTIMIZERS[optimizer]
    exact = copy.deepcopy(wanted).double()
    if hasattr(exact, "set_experts_implementation"):
        exact.set_experts_implementation("eager")  # PyTorch has no grouped products of float64
    there, doubled = ({k: f(v) for k, v in inputs.items()} for f in (lambda v: v.to("tpu"), _doubled))
    losses = [
        three_steps(wanted, inputs, loss_of, make), three_steps(exact, doubled, loss_of, make)
    ]  # fmt: skip
    close(three_steps(net, there, loss_of, make, after_backward), *losses, f"losses with {optimizer}")
    references = [dict(m.named_parameters()) for m in (wanted, exact)]
    for name, p in net.named_parameters():
        value = order(name, whole(p).detach().cpu())
        close(value, *(r[name].detach() for r in references), f"{name} after {optimizer}")


def _doubled(x):
    return x.double() if x.is_floating_point() else x


def decode(folder):
    """Compiled tensor-parallel decoding: tokens equal, two all-reduces a layer, nothing gathered but the logits."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    wanted = saved(llama, folder)
    net = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto")).eval()
    assert net.model.layers[0].self_attn.q_proj.weight.to_local().shape[0] == 32 // SIZE
    how = {"max_new_tokens": 6, "do_sample": False}
    tokens = wanted.generate(IDS, **how)
    with Programs() as made:
        got = net.generate(IDS.to("tpu"), cache_implementation="static", **how)
    assert got.tolist() == tokens.tolist()
    (counts,) = made.counts()
    # One more all-reduce for the embedding, which is split over its rows; the head's logits are gathered.
    assert counts == {"all-reduce": 2 * LAYERS + 1, "all-gather": 1}, counts
    (text,) = made.texts
    (gather,) = [line for line in text.splitlines() if " all-gather(" in line]
    shape = re.findall(r"= f32\[([0-9,]*)\]", gather)
    assert [math.prod(map(int, s.split(","))) for s in shape] == [96], gather
    with torch.no_grad():
        torch.testing.assert_close(net(IDS.to("tpu")).logits.cpu(), wanted(IDS).logits, rtol=1e-5, atol=1e-5)


def same_tokens(net, wanted):
    """What both generate, with a cache that grows."""
    how = {"max_new_tokens": 6, "do_sample": False}
    assert net.generate(IDS.to("tpu"), **how).tolist() == wanted.generate(IDS, **how).tolist()


def training(make, folder, how, parts):
    """A language model over the ranks: logits, tokens, three steps with every optimizer.

    Args:
      how: what ``DistributedConfig`` takes.
      parts: asserts that a rank has its part of the model.
    """
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    wanted = saved(make, folder)
    for optimizer in OPTIMIZERS:
        net = AutoModelForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(**how))
        parts(net)
        if optimizer == "SGD":
            with torch.no_grad():
                torch.testing.assert_close(net(IDS.to("tpu")).logits.cpu(), wanted(IDS).logits, rtol=1e-5, atol=1e-5)
            same_tokens(net, wanted)
        same_training(
            net, copy.deepcopy(wanted), {"ids": IDS}, lambda m, given: language_loss(m, given["ids"]), optimizer
        )


def part_of(p):
    return p.to_local() if hasattr(p, "to_local") else p


def llama_training(folder):
    def parts(net):
        assert part_of(net.model.layers[0].self_attn.q_proj.weight).shape == (32 // SIZE, 32)

    training(llama, folder, {"tp_plan": "auto"}, parts)


def _expert_weights(net):
    return part_of(net.model.layers[0].mlp.experts.gate_up_proj).shape


def experts(folder):
    """Every rank has some of the experts, whole."""

    def parts(net):
        assert _expert_weights(net) == (8 // SIZE, 32, 32), _expert_weights(net)

    training(qwen_moe, folder, {"ep_size": SIZE, "tp_size": SIZE}, parts)


def experts_in_parts(folder):
    """Every rank has a part of every expert."""

    def parts(net):
        assert _expert_weights(net) == (8, 32 // SIZE, 32), _expert_weights(net)

    training(qwen_moe, folder, {"tp_plan": "auto"}, parts)


def flux():
    from diffusers import FluxTransformer2DModel

    return FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


def flux_inputs():
    g = torch.Generator().manual_seed(2)
    return {
        "hidden_states": torch.randn(1, 16, 4, generator=g),
        "encoder_hidden_states": torch.randn(1, 8, 32, generator=g),
        "pooled_projections": torch.randn(1, 32, generator=g),
        "timestep": torch.tensor([0.7]),
        "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0)),
        "txt_ids": torch.zeros(8, 3),
    }


def _sum_over_heads(net):
    """Norms of queries and keys are whole on every rank, which applies them to its own heads. Diffusers, which splits
    models to make images, leaves their gradients so; on every device."""
    for name, p in net.named_parameters():
        if any(n in name for n in (".norm_q.", ".norm_k.", ".norm_added_")):
            dist.all_reduce(p.grad)


def _in_order(name, value):
    """Columns of a packed product lie rank by rank: of attention (64) and of the MLP (256)."""
    if not (name.startswith("single_transformer_blocks") and name.endswith("proj_out.weight")):
        return value
    parts = [chunk.split([64 // SIZE, 256 // SIZE], 1) for chunk in value.chunk(SIZE, 1)]
    return torch.cat([torch.cat(both, 1) for both in zip(*parts)], 1)


def images(folder):
    """Diffusers' TensorParallelConfig: forward, backward and three steps of a small FLUX, eager and compiled."""
    from diffusers import FluxTransformer2DModel, TensorParallelConfig

    wanted = saved(flux, folder)
    parallel = TensorParallelConfig(tp_degree=SIZE)
    net = FluxTransformer2DModel.from_pretrained(folder, parallel_config=parallel).eval()
    inputs = flux_inputs()
    there = {k: v.to("tpu") for k, v in inputs.items()}
    with torch.no_grad():
        expected = wanted(**inputs).sample
        torch.testing.assert_close(net(**there).sample.cpu(), expected, rtol=1e-5, atol=1e-5)
        with Programs() as made:
            got = torch.compile(net)(**there).sample
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    (counts,) = made.counts()
    assert set(counts) == {"all-reduce"}, counts
    for optimizer in OPTIMIZERS:
        net = FluxTransformer2DModel.from_pretrained(folder, parallel_config=parallel).eval()
        same_training(
            net, copy.deepcopy(wanted), inputs, lambda m, given: m(**given).sample.square().mean(), optimizer,
            _sum_over_heads, _in_order,
        )  # fmt: skip


PARTS = (decode, llama_training, experts, experts_in_parts, images)


def everything(folder, *names):
    begin()
    parts = [_in(part, os.path.join(folder, part.__name__)) for part in PARTS]
    run_parts(parts, names)


def _in(part, folder):
    def run():
        part(folder)

    run.__name__ = part.__name__
    return run
