"""What compiles a program and what does not: numbers, seeds, offsets and counts never do; sizes do once."""

import pytest
import torch
from torch.nn import functional as F

from torch_tpu.runtime import programs


def made_by(f, values):
    """Programs made by ``f`` of each value but the first, which is not counted."""
    first, *rest = values
    f(first)
    with programs.counting() as made:
        for v in rest:
            f(v)
    return made()


# Symptom: a different Python float, seed, learning rate or step count never recompiles.
X = {"float": [0.3, 1.7, -2.9, 1e-8, 3.5e5], "int": [3, 17, -2, 1000, 12345], "probability": [0.1, 0.25, 0.7]}
NUMBERS = {
    "mul": ("float", lambda x, v: x * v), "add": ("float", lambda x, v: x + v), "radd": ("float", lambda x, v: v + x),
    "sub": ("float", lambda x, v: v - x), "div": ("float", lambda x, v: x / v), "rdiv": ("float", lambda x, v: v / x),
    "alpha": ("float", lambda x, v: torch.add(x, x, alpha=v)), "in place": ("float", lambda x, v: x.clone().mul_(v)),
    "fill_": ("float", lambda x, v: x.clone().fill_(v)), "full": ("float", lambda x, v: torch.full_like(x, v)),
    "clamp": ("float", lambda x, v: x.clamp(v, v + 1)), "clamp_min": ("float", lambda x, v: x.clamp_min(v)),
    "compare": ("float", lambda x, v: x > v), "where": ("float", lambda x, v: torch.where(x > 0, x, v)),
    "masked_fill": ("float", lambda x, v: x.masked_fill(x > 0, v)),
    "addcmul": ("float", lambda x, v: x.addcmul(x, x, value=v)),
    "setitem": ("float", lambda x, v: x.clone().__setitem__(0, v)), "lerp": ("float", lambda x, v: x.lerp(x, v)),
    "leaky_relu": ("probability", lambda x, v: F.leaky_relu(x, v)), "elu": ("probability", lambda x, v: F.elu(x, v)),
    "dropout": ("probability", lambda x, v: F.dropout(x, v)),
    "bernoulli_": ("probability", lambda x, v: x.clone().bernoulli_(v)),
    "uniform_": ("float", lambda x, v: x.clone().uniform_(v, v + 1)),
    "normal_": ("float", lambda x, v: x.clone().normal_(v)),
    "layer_norm": ("probability", lambda x, v: F.layer_norm(x, (4,), eps=v)),
    "int mul": ("int", lambda x, v: x.long() * v), "int add": ("int", lambda x, v: x + v),
    "fmod": ("int", lambda x, v: x % v), "floor_divide": ("float", lambda x, v: x // v),
    "baddbmm": ("float", lambda x, v: torch.addmm(x, x, x, beta=v, alpha=v)),
    "hardtanh": ("probability", lambda x, v: F.hardtanh(x, -v, v)),
    "foreach": ("float", lambda x, v: [t.sum().item() for t in torch._foreach_mul([x, x], v)]),
    "seed": ("int", lambda x, v: torch.manual_seed(v) and torch.randn(4, device="tpu")),
    "randint": ("int", lambda x, v: torch.randint(-5, 20000 + v, (4,), device="tpu")),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_another_number(name):
    kind, f = NUMBERS[name]
    x = torch.randn(4, 4, device="tpu")
    assert made_by(lambda v: f(x, v), X[kind]) == 0, torch.tpu.compiler.misses()[-1]


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.1),
    lambda p: torch.optim.AdamW(p, 0.1, foreach=False), lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    lambda p: torch.optim.RMSprop(p, 0.1), lambda p: torch.optim.Adagrad(p, 0.1),
])  # fmt: skip
def test_another_step_and_learning_rate(make):
    p = torch.nn.Parameter(torch.ones(3, 4, device="tpu"))
    optimizer = make([p])

    def step(lr):
        optimizer.param_groups[0]["lr"] = lr
        p.grad = torch.ones_like(p)
        optimizer.step()
        return p.sum().item()

    step(0.5)  # makes the state
    assert made_by(step, [0.5 / (i + 1) for i in range(8)]) == 0, torch.tpu.compiler.misses()[-1]


# Symptom: passing `timesteps[i]` (a view) each step compiles once.
VIEWS = {
    "element": lambda t, i: t[i] * 2, "row": lambda t, i: t.view(8, 4)[i] + 1, "slice": lambda t, i: t[i : i + 2].exp(),
    "negative": lambda t, i: t[-i - 1] * 2, "select": lambda t, i: t.view(8, 4).select(1, i % 3 + 1).sin(),
    "in place": lambda t, i: t.view(8, 4)[i].mul_(1.5), "written": lambda t, i: t.__setitem__(i, 0.0),
    "as a number": lambda t, i: torch.ones(3, device="tpu") * t[i], "narrow": lambda t, i: t.narrow(0, i, 3).sum(),
    "unbind": lambda t, i: t.unbind()[i] * 2, "chunk": lambda t, i: t.chunk(8)[i] * 2, "item": lambda t, i: t[i].item(),
    "indexed": lambda t, i: t[torch.tensor([i], device="tpu")] * 2,
    "embedding": lambda t, i: F.embedding(torch.tensor([i], device="tpu"), t.view(8, 4)),
    "both": lambda t, i: t[i] - t[i + 1], "roll": lambda t, i: torch.cat([t[i : i + 1], t[:1]]),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_another_offset(name):
    """The offset 0 has a program of its own, all others share one."""
    t = torch.linspace(0, 1, 32, device="tpu")
    assert made_by(lambda i: VIEWS[name](t, i), [1, 2, 3, 5, 4, 6]) == 0, torch.tpu.compiler.misses()[-1]


# Symptom: a new batch size recompiles at most once per size. The user can ask why something compiled.
def test_another_batch_size_compiles_once_and_says_why():
    m = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).to("tpu")

    def step(n):
        m(torch.ones(n, 4, device="tpu")).square().mean().backward()

    assert made_by(step, [3, 5, 7]) > 0
    last = torch.tpu.compiler.misses()[-1]
    assert last["label"] and last["nearest"] and "7" in str(last["differs"]), last
    assert made_by(step, [3, 5, 7, 3, 5, 7]) == 0
