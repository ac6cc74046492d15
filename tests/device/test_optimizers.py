"""Every optimizer of torch.optim: losses as on CPU, one set of programs however many steps."""

import copy

import pytest
import torch

from device.support import check

OPTIMIZERS = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01}, "Adamax": {"lr": 0.01}, "NAdam": {"lr": 0.01}, "RAdam": {"lr": 0.01},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 1.0}, "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True}, "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.05}, "Adafactor": {"lr": 0.01}, "Muon": {"lr": 0.01}, "LBFGS": {"lr": 0.5, "max_iter": 4},
    "SparseAdam": None,  # takes sparse gradients, which tpu has none of
}  # fmt: skip
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


def test_no_optimizer_is_forgotten():
    found = {n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    assert found - {"Optimizer"} == set(OPTIMIZERS)


def model(bias=True):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8, bias=bias), torch.nn.Tanh(), torch.nn.Linear(8, 2, bias=bias))


def train(m, make, steps, device, lr_of=None):
    m = copy.deepcopy(m).to(device)
    opt = make(m.parameters())
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(2)).to(device)
    losses, programs = [], []

    def closure():
        opt.zero_grad()
        loss = (m(x) - 1).square().mean()
        loss.backward()
        return loss

    for i in range(steps):
        for group in opt.param_groups:
            group["lr"] = group["lr"] if lr_of is None else lr_of(i)
        losses.append(opt.step(closure).item())
        programs.append(torch.tpu.compiler.stats()["programs"])
    return losses, programs, [p.detach() for p in m.parameters()], opt


CASES = [(n, form) for n in OPTIMIZERS if OPTIMIZERS[n] is not None and n not in ("LBFGS", "Muon", "Adafactor")
         for form in ("foreach", "loop", *(["fused"] if n in FUSED else []))]  # fmt: skip
CASES += [("LBFGS", "plain"), ("Muon", "plain"), ("Adafactor", "foreach"), ("Adafactor", "loop")]


@pytest.mark.parametrize("name, form", CASES)
def test_losses_as_on_cpu(name, form):
    kw = dict(OPTIMIZERS[name])
    choice = {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}, "plain": {}}[form]
    cls = getattr(torch.optim, name)
    m = model(bias=name != "Muon")
    steps, settled = (8, 5) if name == "RAdam" else (6, 2)  # RAdam begins to rectify in its sixth step
    want, _, params, _ = train(m, lambda p: cls(p, **kw), steps, "cpu")
    got, programs, moved, _ = train(m, lambda p: cls(p, **kw, **choice), steps, "tpu")
    assert got == pytest.approx(want, rel=2e-3) and got[-1] < got[0]
    check(moved, params, rtol=1e-2, atol=2e-3)
    if name != "LBFGS":
        assert programs[-1] == programs[settled], torch.tpu.compiler.misses()[-3:]


def test_a_schedule_of_learning_rates_compiles_nothing():
    _, programs, _, _ = train(model(), lambda p: torch.optim.AdamW(p), 8, "tpu", lambda i: 0.01 / (i + 1))
    assert programs[-1] == programs[2]


def test_schedulers_and_tensor_learning_rates():
    m = model().to("tpu")
    opt = torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.1), foreach=False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5)
    for _ in range(3):
        m(torch.ones(1, 6, device="tpu")).sum().backward()
        opt.step()
        scheduler.step()
    assert 0 < float(opt.param_groups[0]["lr"]) < 0.1


def test_state_is_on_the_device_and_survives_a_round_trip():
    _, _, _, opt = train(model(), lambda p: torch.optim.Adam(p, lr=0.01), 2, "tpu")
    state = opt.state_dict()["state"]
    assert all(s["exp_avg"].is_tpu for s in state.values())
    other = copy.deepcopy(opt)
    assert all(s["exp_avg"].is_tpu for s in other.state.values())


@pytest.mark.parametrize("foreach", [False, True])
def test_clipping(foreach):
    results = []
    for device in ("cpu", "tpu"):
        m = model().to(device)
        m(torch.ones(3, 6, device=device)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5, foreach=foreach)
        torch.nn.utils.clip_grad_value_(m.parameters(), 0.1, foreach=foreach)
        results.append([norm, [p.grad for p in m.parameters()]])
    check(results[1], results[0], rtol=1e-4)


def test_zero_grad_and_added_groups():
    m = model().to("tpu")
    opt = torch.optim.SGD(m[0].parameters(), lr=0.1)
    opt.add_param_group({"params": m[2].parameters(), "lr": 0.0})
    before = m[2].weight.tolist()
    m(torch.ones(1, 6, device="tpu")).sum().backward()
    opt.step()
    assert m[2].weight.tolist() == before
    opt.zero_grad(set_to_none=False)
    assert all(p.grad.abs().sum().item() == 0 for p in m.parameters())


def test_averaged_models():
    m = model().to("tpu")
    average = torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    average.update_parameters(m)
    average.update_parameters(m)
    torch.testing.assert_close(average.module[0].weight.cpu(), m[0].weight.cpu())
