"""Every optimizer of PyTorch's optimizer database: each of its settings in each form, several steps, as on CPU.

The CPU runs the plain form (for-loop, not capturable) of the same settings: all forms compute the same.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from compare import compare
from mirror import mapped
from torch.optim import asgd
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo, optim_db

OPTIMIZERS: dict[str, OptimizerInfo] = {o.optim_cls.__name__: o for o in optim_db}
STEPS = 4
Settings = dict[str, Any]


def _parameters(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Matrices for all, and what has other ranks, for those that take it."""
    g = torch.Generator().manual_seed(1)
    shapes = [(3, 4), (5, 2)] if name == "Muon" else [(3, 4), (4,), (2, 1, 3), ()]
    if name == "SparseAdam":
        shapes = shapes[:2]
    elif name not in ("Muon", "Adafactor"):  # which divide by the number of elements
        shapes.append((0,))
    return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes]


def _gradients(parameters: list[torch.Tensor], step: int, *, sparse: bool) -> list[torch.Tensor | None]:
    """Drawn anew for each step; the second parameter has none in two of them."""
    g = torch.Generator().manual_seed(100 + step)
    made: list[torch.Tensor | None] = []
    for i, p in enumerate(parameters):
        grad = torch.randn(p.shape, generator=g, dtype=torch.float64).to(p.dtype)
        if i == 1 and step in (1, 2):
            made.append(None)
        elif sparse:
            rows = torch.tensor([[0, 2, 0]]) % max(p.shape[0], 1)
            made.append(torch.sparse_coo_tensor(rows, grad[rows[0]], p.shape, check_invariants=True))
        else:
            made.append(grad)
    return made


def _is_sparse(name: str) -> bool:
    return name == "SparseAdam"


def _forms(info: OptimizerInfo) -> list[Settings]:
    return [dict.fromkeys(info.supported_impls, False), *({f: True} for f in info.supported_impls)]


def _overwrites(name: str, settings: Settings) -> bool:
    return name == "ASGD" and bool(settings.get("capturable")) and bool(settings.get("weight_decay"))


def _cases() -> Iterator[Any]:
    """Every setting as the database gives it for an accelerator, in every form it supports."""
    for name, info in OPTIMIZERS.items():
        for i, given in enumerate(info.optim_inputs_func("cuda")):
            for form in _forms(info):
                chosen = next((f for f, on in form.items() if on), "loop")
                tensors = [v for v in given.kwargs.values() if isinstance(v, (torch.Tensor, tuple))]
                named = any(isinstance(x, torch.Tensor) for v in tensors for x in (v if type(v) is tuple else (v,)))
                if named and chosen == "foreach" and not given.kwargs.get("capturable"):
                    continue  # PyTorch refuses it
                if chosen == "differentiable" and _overwrites(name, given.kwargs):
                    continue  # test_asgd_overwrites_what_it_saved
                label = given.desc.replace(" ", "_").replace(",", "")
                yield pytest.param(name, given.kwargs, form, id=f"{name}-{i}-{label}-{chosen}")


def _plain(info: OptimizerInfo, settings: Settings) -> Settings:
    """The same in the for-loop form; betas as numbers, since their shapes are for capturable forms alone."""
    kept = {k: v for k, v in settings.items() if k != "capturable"}
    if isinstance(kept.get("betas"), tuple):
        kept["betas"] = tuple(float(b) for b in kept["betas"])
    return {**kept, **dict.fromkeys(info.supported_impls, False)}


class _Run:
    """An optimizer over parameters of its own, on a device."""

    def __init__(self, name: str, settings: Settings, device: str, dtype: torch.dtype = torch.float32):
        self.name, self.device, self.info = name, device, OPTIMIZERS[name]
        self.differentiable = bool(settings.get("differentiable"))
        self.leaves = [p.to(device).requires_grad_() for p in _parameters(name, dtype)]
        self.params = [p.clone() if self.differentiable else p for p in self.leaves]
        # Steps in a graph overwrite what the one before saved of its state: one step is what PyTorch can differentiate.
        self.steps = 1 if self.differentiable else STEPS
        self.optimizer = self.info.optim_cls(self.params, **copy.deepcopy(settings))

    def step(self, step: int) -> None:
        if self.info.step_requires_closure:
            self.optimizer.step(self._closure)
            return
        grads = _gradients(self.leaves_on_host(), step, sparse=_is_sparse(self.name))
        for p, g in zip(self.params, grads, strict=True):
            p.grad = None if g is None else g.to(self.device)
        self.optimizer.step()

    def leaves_on_host(self) -> list[torch.Tensor]:
        return [torch.empty(p.shape, dtype=p.dtype) for p in self.leaves]

    def _closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.stack([(p - 0.5).abs().square().sum() for p in self.params]).sum()
        loss.backward()
        return loss

    def results(self) -> list[torch.Tensor]:
        """Parameters and state, in their order."""
        state = [
            v for p in self.params for _, v in sorted(self.optimizer.state[p].items()) if isinstance(v, torch.Tensor)
        ]
        return [t.detach().clone() for t in (*self.params, *(s for s in state if s.ndim))]

    def backward(self) -> list[torch.Tensor | None]:
        """Through the steps to the parameters that they began with."""
        return list(torch.autograd.grad(sum(p.sin().sum() for p in self.params), self.leaves, allow_unused=True))


def _ran(name: str, settings: Settings, device: str, dtype: torch.dtype = torch.float32) -> list[Any]:
    run = _Run(name, settings, device, dtype)
    for step in range(run.steps):
        run.step(step)
    found = run.results()
    return [*found, *("None" if g is None else g for g in run.backward())] if run.differentiable else found


@pytest.mark.parametrize(("name", "settings", "form"), list(_cases()))
def test_steps(name: str, settings: Settings, form: Settings) -> None:
    reference = {**_plain(OPTIMIZERS[name], settings), "differentiable": True} if form.get("differentiable") else {}
    reference = reference or _plain(OPTIMIZERS[name], settings)
    got = _ran(name, {**settings, **form}, "tpu")
    compare(got, _ran(name, reference, "cpu"), lambda: _ran(name, reference, "cpu", torch.float64))


@pytest.mark.parametrize("device", ["cpu", "tpu"])
@pytest.mark.parametrize(
    "settings", [g.kwargs for g in OPTIMIZERS["ASGD"].optim_inputs_func("cuda") if _overwrites("ASGD", g.kwargs)]
)
def test_asgd_overwrites_what_it_saved(device: str, settings: Settings) -> None:
    """PyTorch's step writes to ``eta``, which its graph saved to multiply the decayed gradient: none has a gradient.

    CPU takes no capturable form of its own accord; where it is let, its graph is as unusable as the device's.
    """
    allowed = mock.patch.object(asgd, "_get_capturable_supported_devices", lambda *_: ["cpu", "tpu"])
    with allowed, pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _ran("ASGD", {**settings, "differentiable": True, "foreach": False}, device)


_EACH = pytest.mark.parametrize("name", list(OPTIMIZERS))


@_EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_types(name: str, dtype: torch.dtype) -> None:
    if dtype.is_complex and not OPTIMIZERS[name].supports_complex:
        pytest.skip("no complex parameters")
    wide = torch.complex128 if dtype.is_complex else torch.float64
    compare(_ran(name, {}, "tpu", dtype), _ran(name, {}, "cpu", dtype), lambda: _ran(name, {}, "cpu", wide))


@_EACH
def test_state_goes_on(name: str) -> None:
    """Saved after two steps, on either device, and loaded on the other: the rest of the steps are as without."""
    form = {"foreach": True} if "foreach" in OPTIMIZERS[name].supported_impls else {}
    expected = _ran(name, {}, "cpu")
    for start, then in (("tpu", "tpu"), ("cpu", "tpu"), ("tpu", "cpu")):
        first, second = _Run(name, form, start), _Run(name, form, then)
        for step in range(2):
            first.step(step)
        saved = mapped(
            first.optimizer.state_dict(), lambda x, d=then: x.to(d, copy=True) if isinstance(x, torch.Tensor) else x
        )
        with torch.no_grad():
            for mine, theirs in zip(second.params, first.params, strict=True):
                mine.copy_(theirs)
        second.optimizer.load_state_dict(saved)
        for step in range(2, STEPS):
            second.step(step)
        compare([t.to("tpu") for t in second.results()], expected, lambda: _ran(name, {}, "cpu", torch.float64))
        kept = [v for s in second.optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        assert all(v.device.type == then for v in kept if v.ndim)  # scalars may be on the host


@_EACH
def test_groups(name: str) -> None:
    """Groups with settings of their own, one added later, names, and a scheduler over all."""
    if not OPTIMIZERS[name].supports_param_groups:
        pytest.skip("one group only")
    ended = []
    for device in ("cpu", "tpu"):
        params = [p.to(device).requires_grad_() for p in _parameters(name, torch.float32)]
        groups: Any = [{"params": [("first", params[0])], "lr": 0.02}]
        optimizer = OPTIMIZERS[name].optim_cls(groups, lr=0.01)
        optimizer.add_param_group({"params": [(f"other{i}", p) for i, p in enumerate(params[1:])]})
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        for step in range(STEPS):
            host = [torch.empty(p.shape) for p in params]
            for p, g in zip(params, _gradients(host, step, sparse=_is_sparse(name)), strict=True):
                p.grad = None if g is None else g.to(device)
            optimizer.step()
            scheduler.step()
        assert [g["lr"] for g in optimizer.param_groups] == [0.02 / 2**STEPS, 0.01 / 2**STEPS]
        ended.append([p.detach() for p in params])
    compare(ended[1], ended[0], None)


@_EACH
def test_closures(name: str) -> None:
    """``step`` returns the closure's loss, computed with gradients; several evaluations are several."""
    if _is_sparse(name):
        pytest.skip("the gradients of a dense loss are dense")
    losses = []
    for device in ("cpu", "tpu"):
        run = _Run(name, {}, device)
        losses.append([run.optimizer.step(run._closure) for _ in range(3)])
        assert all(loss.device.type == device for loss in losses[-1])
    compare(losses[1], losses[0], None)


@pytest.mark.parametrize("name", [n for n, o in OPTIMIZERS.items() if o.supports_sparse])
def test_sparse_gradients(name: str) -> None:
    ended = []
    for device in ("cpu", "tpu"):
        params = [p.to(device).requires_grad_() for p in _parameters(name, torch.float32)[:2]]
        optimizer = OPTIMIZERS[name].optim_cls(params, **OPTIMIZERS[name].metadata_for_sparse[0])
        for step in range(STEPS):
            host = [torch.empty(p.shape) for p in params]
            for p, g in zip(params, _gradients(host, step, sparse=True), strict=True):
                p.grad = None if g is None else g.to(device)
            optimizer.step()
        ended.append([p.detach() for p in params])
    compare(ended[1], ended[0], None)


_FUSED = [n for n, o in OPTIMIZERS.items() if "fused" in o.supported_impls]


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
@pytest.mark.parametrize("name", _FUSED)
def test_fused_unscaling(name: str, found_inf: float) -> None:
    """The scaler's ``grad_scale`` divides the gradients in the step; ``found_inf`` makes it leave all as it is."""
    runs = [_Run(name, {"fused": fused}, "tpu" if fused else "cpu") for fused in (False, True)]
    for step in range(STEPS):
        runs[1].optimizer.grad_scale = torch.tensor(1.0 if step % 2 == 0 else 4.0, device="tpu")
        skipped = found_inf and step == 2
        runs[1].optimizer.found_inf = torch.tensor(found_inf if skipped else 0.0, device="tpu")
        for run in runs:
            for p, g in zip(run.params, _gradients(run.leaves_on_host(), step, sparse=False), strict=True):
                scale = 4 if run is runs[1] and step % 2 else 1
                p.grad = None if g is None else (g * scale).to(run.device)
            if run is runs[1] or not skipped:
                run.optimizer.step()
    compare(runs[1].results(), runs[0].results(), None)


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("name", _FUSED)
def test_a_scaler(name: str, form: str) -> None:
    """``GradScaler``: an infinite gradient skips the step and halves the scale, in every form."""
    settings = {} if form == "loop" else {form: True}
    run, plain = _Run(name, settings, "tpu"), _Run(name, {"foreach": False}, "cpu")
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=2)
    for step in range(STEPS):
        bad = step == 1
        for p, g in zip(run.params, _gradients(run.leaves_on_host(), step, sparse=False), strict=True):
            p.grad = None if g is None else (g * scaler.get_scale()).to("tpu")
        scaler.scale(torch.zeros((), device="tpu"))  # a scaler is set up by its first loss
        if bad:
            run.params[0].grad[1, 2] = float("inf")
        scaler.step(run.optimizer)
        scaler.update()
        if not bad:
            plain.step(step)
    assert scaler.get_scale() == 8.0
    compare(run.results(), plain.results(), None)


@_EACH
def test_wrong_settings(name: str) -> None:
    """What the database says is refused, with its words, for parameters on the device."""
    info = OPTIMIZERS[name]
    for case in info.optim_error_inputs_func("cpu", torch.float32):
        given = case.optimizer_error_input
        memo: dict[int, torch.Tensor] = {}
        params = mapped(
            given.params,
            lambda p, memo=memo: memo.setdefault(id(p), _on_device(p)) if isinstance(p, torch.Tensor) else p,
        )
        params = [torch.nn.Parameter(torch.randn(2, 3, device="tpu"))] if given.params is None else params
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            with pytest.raises(case.error_type, match=case.error_regex):
                optimizer = info.optim_cls(params, **given.kwargs)
                assert case.error_on is OptimizerErrorEnum.STEP_ERROR
                optimizer.step()


def _on_device(p: torch.Tensor) -> torch.Tensor:
    moved = p.detach().to("tpu").requires_grad_(p.requires_grad)
    moved = torch.nn.Parameter(moved) if isinstance(p, torch.nn.Parameter) else moved
    if p.grad is not None:
        moved.grad = p.grad.to("tpu")
    return moved
