"""Moving modules: ties, identity, optimizers built before, buffers, types, and meta."""

import copy

import pytest
import torch
from torch import nn


def tied():
    m = nn.Module()
    m.embed, m.head, m.norm = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.BatchNorm1d(4)
    m.head.weight = m.embed.weight
    m.register_buffer("table", torch.arange(3.0))
    m.register_buffer("view", m.table[1:])
    m.register_buffer("ints", torch.arange(3))
    m.register_buffer("scratch", torch.ones(1), persistent=False)
    return m


MOVES = {
    "to": lambda m: m.to("tpu"), "to index": lambda m: m.to(torch.device("tpu", 0)), "tpu": lambda m: m.tpu(),
    "to dtype": lambda m: m.to("tpu", torch.float32), "like": lambda m: m.to(torch.ones(1, device="tpu")),
    "_apply": lambda m: m._apply(lambda t: t.to("tpu")),
}  # fmt: skip


# Symptom: weights tied before `.to("tpu")` stay tied; an optimizer built before `.to` still trains them.
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_ties_and_identity(move):
    m = tied()
    before = dict(m.named_parameters())
    assert move(m) is m
    assert m.embed.weight is m.head.weight
    assert all(p is before[n] for n, p in m.named_parameters()) and all(p.is_tpu for p in m.parameters())
    assert all(b.is_tpu for b in m.buffers()) and m.ints.dtype == torch.int64
    assert m.table.tolist() == [0, 1, 2] and m.norm.num_batches_tracked.is_tpu
    assert all(isinstance(p, nn.Parameter) and p.requires_grad and p.is_leaf for p in m.parameters())
    m.cpu()
    assert m.embed.weight is m.head.weight and all(p is before[n] for n, p in m.named_parameters())
    assert all(not t.is_tpu for t in (*m.parameters(), *m.buffers()))
    m.to("tpu").to("cpu").to("tpu")
    assert m.embed.weight is m.head.weight and m.embed.weight.is_tpu


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.AdamW(p, 0.1)])
def test_an_optimizer_built_before_still_trains(make):
    m = tied()
    opt = make(m.parameters())
    start = m.embed.weight.detach().clone()
    m.to("tpu")
    m.head(m.norm(m.embed(torch.tensor([0, 1, 2], device="tpu")))).square().sum().backward()
    opt.step()
    assert not torch.equal(m.embed.weight.cpu(), start) and torch.equal(m.head.weight.cpu(), m.embed.weight.cpu())


def test_gradients_move_along():
    m = nn.Linear(2, 2)
    m(torch.ones(1, 2)).sum().backward()
    g = m.weight.grad.clone()
    m.to("tpu")
    assert m.weight.grad.is_tpu and torch.equal(m.weight.grad.cpu(), g)
    m.cpu()
    assert torch.equal(m.weight.grad, g)


def test_no_gradient_stays_none_and_frozen_stays_frozen():
    m = nn.Linear(2, 2)
    m.bias.requires_grad_(False)
    m.to("tpu")
    assert m.weight.grad is None and not m.bias.requires_grad and m.weight.requires_grad


# Symptom: `module.half()` after `.to("tpu")`.
@pytest.mark.parametrize("convert, dtype", [
    (lambda m: m.half(), torch.float16), (lambda m: m.bfloat16(), torch.bfloat16),
    (lambda m: m.double(), torch.float64),
    (lambda m: m.to(torch.bfloat16), torch.bfloat16), (lambda m: m.to("cpu").half().to("tpu"), torch.float16),
    (lambda m: m.to("tpu", torch.float16), torch.float16),
])  # fmt: skip
def test_types_after_moving(convert, dtype):
    m = tied().to("tpu")
    convert(m)
    assert m.embed.weight is m.head.weight
    assert all(p.dtype == dtype and p.is_tpu for p in m.parameters())
    assert m.table.dtype == dtype and m.ints.dtype == torch.int64
    out = m.head(m.embed(torch.tensor([1], device="tpu")))
    assert out.dtype == dtype


def test_a_forward_hook_and_training_flag_survive():
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    seen = []
    m[0].register_forward_hook(lambda *a: seen.append(1))
    m.to("tpu")
    m(torch.ones(1, 2, device="tpu"))
    assert seen == [1] and not m.training


def test_to_empty_and_meta():
    with torch.device("meta"):
        m = tied()
    m.to_empty(device="tpu")
    assert all(t.is_tpu for t in (*m.parameters(), *m.buffers())) and m.embed.weight.shape == (5, 4)
    nn.init.ones_(m.embed.weight)
    assert m.embed.weight.sum().item() == 20
    with torch.device("meta"):
        other = nn.Linear(3, 2)
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        other.to("tpu")
    other.load_state_dict({"weight": torch.ones(2, 3, device="tpu"), "bias": torch.zeros(2, device="tpu")}, assign=True)
    assert other(torch.ones(1, 3, device="tpu")).tolist() == [[3, 3]]
    assert torch.empty_like(torch.empty(3, 2, device="meta"), device="tpu").shape == (3, 2)
    assert m.to("meta").embed.weight.device.type == "meta"


def test_made_on_the_device():
    m = nn.Sequential(nn.Linear(3, 4, device="tpu"), nn.BatchNorm1d(4, device="tpu", dtype=torch.float64))
    assert all(t.is_tpu for t in (*m.parameters(), *m.buffers())) and m[1].weight.dtype == torch.float64


def test_the_global_swapping_switch_is_left_alone():
    before = torch.__future__.get_swap_module_params_on_conversion()
    nn.Linear(2, 2).to("tpu").cpu()
    assert torch.__future__.get_swap_module_params_on_conversion() == before
    m = nn.Linear(2, 2)
    with pytest.raises(IndexError):
        m.to("tpu:7")
    assert torch.__future__.get_swap_module_params_on_conversion() == before
    assert m.weight.device.type == "cpu"


def test_a_module_whose_parameters_others_hold():
    """A weak reference or a view of a parameter must not stop the move."""
    import weakref

    m = nn.Linear(2, 2)
    ref, view = weakref.ref(m.weight), m.weight[0]
    m.to("tpu")
    assert m.weight.is_tpu and view.shape == (2,) and ref() is not None
    m = nn.Linear(2, 2)
    out = m(torch.ones(1, 2))
    m.to("tpu")
    assert m.weight.is_tpu
    with pytest.raises(RuntimeError, match="run the forward pass again"):
        out.sum().backward()
    m(torch.ones(1, 2, device="tpu")).sum().backward()
    assert m.weight.grad.is_tpu


def test_data_across_devices():
    p = nn.Parameter(torch.ones(2))
    calls = []
    p.register_hook(lambda g: calls.append(g.device.type))
    p.data = p.data.to("tpu")
    assert p.is_tpu and p.requires_grad and isinstance(p, nn.Parameter)
    (p * 2).sum().backward()
    assert p.grad.tolist() == [2, 2] and calls == ["tpu"]
    p.data = p.data.cpu()
    assert not p.is_tpu and p.grad.device.type == "cpu"
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        p.data = torch.ones(2, device="meta")


def test_parametrizations_and_weight_norm():
    m = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    x = torch.ones(1, 3)
    want = m(x)
    m.to("tpu")
    torch.testing.assert_close(m(x.to("tpu")).cpu(), want)


def test_deepcopy_of_a_moved_module():
    m = tied().to("tpu")
    c = copy.deepcopy(m)
    assert c.embed.weight is c.head.weight and c.embed.weight is not m.embed.weight and c.embed.weight.is_tpu
    with torch.no_grad():
        c.embed.weight.zero_()
    assert m.embed.weight.abs().sum().item() > 0


def test_lazy_modules_move_before_their_shapes_are_known():
    m = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)).to("tpu")
    m(torch.ones(2, 3, 6, 6, device="tpu")).sum().backward()
    assert m[3].weight.shape == (2, 64) and m[3].weight.is_tpu and m[3].weight.grad is not None
    assert type(m[3]) is nn.Linear and m[1].running_mean.is_tpu


def test_data_of_a_parameter_from_a_result_of_operators():
    """What fully_shard does with a model on the host: the new value was made with gradients on."""
    p = nn.Parameter(torch.ones(3))
    p.data = p.to("tpu")
    assert p.device.type == "tpu" and p.is_leaf and p.requires_grad
    (p * 2).sum().backward()
    assert p.grad.tolist() == [2, 2, 2]
