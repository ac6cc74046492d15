"""Autograd over device tensors: everything that the engine lets a user hook into, judged against CPU."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from device.support import both, check


def grads(f, *pairs):
    """Compare f's value and gradients on both devices."""
    results = []
    for leaves in zip(*pairs):
        out = f(*leaves)
        results.append([out, *torch.autograd.grad(out.sum(), leaves)])
    check(results[1], results[0])


def test_hooks_of_tensors_and_nodes():
    x = torch.ones(2, device="tpu", requires_grad=True)
    seen = []
    x.register_hook(lambda g: seen.append(("leaf", g.device.type)) or g * 10)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad.tolist())))
    y = x * 3
    y.register_hook(lambda g: seen.append(("inner", g.tolist())))
    y.retain_grad()
    y.grad_fn.register_hook(lambda gi, go: seen.append(("node", gi[0].tolist())))
    y.grad_fn.register_prehook(lambda go: seen.append(("pre", go[0].tolist())))
    y.sum().backward()
    assert x.grad.tolist() == [30, 30] and y.grad.tolist() == [1, 1]
    assert seen == [("inner", [1, 1]), ("pre", [1, 1]), ("node", [3, 3]), ("leaf", "tpu"), ("after", [30, 30])]


def test_hooks_of_modules():
    m = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        m.weight.fill_(1)
    m.to("tpu")
    seen = []
    m.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
    m.register_forward_hook(lambda mod, args, out: out + 1)
    m.register_full_backward_hook(lambda mod, gi, go: seen.append((gi[0].tolist(), go[0].tolist())))
    x = torch.ones(1, 2, device="tpu", requires_grad=True)
    out = m(x)
    assert out.tolist() == [[5, 5]]
    out.sum().backward()
    assert seen == [([[2, 2]], [[1, 1]])] and x.grad.tolist() == [[4, 4]]


def test_multi_grad_hook():
    a, b = (torch.ones(1, device="tpu", requires_grad=True) for _ in range(2))
    calls = []
    torch.autograd.graph.register_multi_grad_hook((a, b), lambda g: calls.append([x.item() for x in g]))
    (a * 2 + b * 3).sum().backward()
    assert calls == [[2, 3]]


def test_double_backward():
    x, y = both(3, 4, grad=True)
    results = []
    for t in (x, y):
        first = torch.autograd.grad((t.sin() * t.exp()).sum(), t, create_graph=True)[0]
        second = torch.autograd.grad((first**2).sum(), t, create_graph=True)[0]
        third = torch.autograd.grad(second.sum(), t)[0]
        results.append([first, second, third])
    check(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_gradcheck():
    x = torch.rand(2, 3, dtype=torch.float64).to("tpu").requires_grad_()
    w = torch.rand(3, 2, dtype=torch.float64).to("tpu").requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: (a @ b).tanh(), (x, w))
    assert torch.autograd.gradgradcheck(lambda a: a.sigmoid() * a, (x[0, :2].detach().requires_grad_(),))


def test_custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            ctx.mark_non_differentiable()
            return x**3 * scale, x.detach().long()

        @staticmethod
        def backward(ctx, g, _):
            (x,) = ctx.saved_tensors
            assert x.device.type == g.device.type
            return g * 3 * x**2 * ctx.scale, None

    grads(lambda t: Cube.apply(t, 2.0)[0], both(5, grad=True))


def test_custom_function_in_place():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * 2

    grads(lambda t: Double.apply(t * 1) ** 2, both(5, grad=True))


def test_saved_tensors_hooks():
    x = torch.ones(3, device="tpu", requires_grad=True)
    packed = []

    def pack(t):
        packed.append(t.device.type)
        return t.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to("tpu")):
        y = (x.exp() * x).sum()
    y.backward()
    assert packed and set(packed) == {"tpu"}
    torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 2 * torch.e))


def test_save_on_cpu():
    x = torch.ones(3, device="tpu", requires_grad=True)
    for pin in (False, True):
        with torch.autograd.graph.save_on_cpu(pin_memory=pin, device_type="tpu"):
            y = (x * x * x).sum()
        x.grad = None
        y.backward()
        assert x.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoint(reentrant, preserve):
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    calls = []
    layer.register_forward_pre_hook(lambda *a: calls.append(1))
    x, y = both(3, 4, grad=True)
    results = []
    for device, t in (("cpu", x), ("tpu", y)):
        layer.to(device)
        layer.zero_grad()
        out = checkpoint(layer, t, use_reentrant=reentrant, preserve_rng_state=preserve)
        out.square().sum().backward()
        results.append([out, t.grad, *[p.grad for p in layer.parameters()]])
        results[-1] = [r.detach().clone() for r in results[-1]]
    check(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert len(calls) == 4  # forward ran twice on each device


def test_checkpoint_repeats_its_dropout():
    x = torch.ones(64, device="tpu", requires_grad=True)
    out = checkpoint(lambda t: torch.nn.functional.dropout(t * 1, 0.5) * 3, x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(out.cpu(), x.grad.cpu())  # an element's gradient is what it was scaled by


def test_anomaly_mode_names_the_operation():
    x = torch.zeros(1, device="tpu", requires_grad=True)
    with pytest.warns(UserWarning, match="Error detected in SqrtBackward0"), torch.autograd.detect_anomaly():
        y = torch.sqrt(x) * 0
        with pytest.raises(RuntimeError, match="returned nan values"):
            y.sum().backward()


def test_retain_graph():
    x = torch.ones(2, device="tpu", requires_grad=True)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [4, 4]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@pytest.mark.parametrize("change", [
    lambda t: t.add_(1), lambda t: t[0].zero_(), lambda t: t.view(-1).mul_(2), lambda t: t.copy_(t + 1),
    lambda t: t.__setitem__(slice(0, 1), 3.0), lambda t: torch.exp(t.detach(), out=t.detach()),
])  # fmt: skip
def test_a_changed_saved_tensor_is_noticed(change):
    x = torch.ones(2, 2, device="tpu", requires_grad=True)
    saved = x * 2
    y = saved * saved
    with torch.no_grad():
        change(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_version_counters():
    t = torch.zeros(4, device="tpu")
    assert t._version == 0
    t.add_(1)
    t[1:].fill_(2)
    assert t._version == 2 and t.view(2, 2)._version == 2 and t.detach()._version == 2 and t.data._version == 0


def test_in_place_on_a_leaf_is_refused():
    x = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x[0].add_(1)


def test_in_place_on_views_in_a_graph():
    def f(t):
        y = t * 2
        y[0].mul_(3)
        y[:, 1].add_(y[:, 0].clone())
        y.view(-1)[5].zero_()
        return y * t

    grads(f, both(2, 3, grad=True))


def test_grad_modes():
    x = torch.ones(2, device="tpu", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        assert y.is_inference() and y.view(1, 2).is_inference()
        y.add_(1)
    assert y.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="Inference tensors"):
        x.mul(y).sum().backward()
    with torch.set_grad_enabled(False), torch.enable_grad():
        assert (x * 2).requires_grad


def test_accumulation_and_none():
    x = torch.ones(2, device="tpu", requires_grad=True)
    for _ in range(3):
        (x * 2).sum().backward()
    assert x.grad.tolist() == [6, 6]
    unused = torch.ones(1, device="tpu", requires_grad=True)
    assert torch.autograd.grad((x * 1).sum(), [x, unused], allow_unused=True)[1] is None
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad((x * 1).sum(), unused)


def test_gradient_on_the_wrong_device_is_refused():
    x = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="device"):
        (x * 2).backward(torch.ones(2))
    with pytest.raises(RuntimeError, match="device"):
        x.grad = torch.ones(2)


def test_across_devices():
    x = torch.ones(2, requires_grad=True)
    y = (x.to("tpu") * 3).cpu() * 2
    y.sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.tolist() == [6, 6]


def test_an_exception_in_backward_keeps_its_type():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise KeyError("mine")

    x = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(KeyError, match="mine"):
        Fails.apply(x).sum().backward()
    (x * 2).sum().backward()  # the engine still works
    assert x.grad.tolist() == [2, 2]


def test_forward_mode():
    import torch.autograd.forward_ad as fwad

    x, y = both(4)
    results = []
    for t in (x, y):
        with fwad.dual_level():
            out = torch.sin(fwad.make_dual(t, torch.ones_like(t))) * 2
            results.append(list(fwad.unpack_dual(out)))
    check(results[1], results[0])


def test_functional_jacobian_and_hessian():
    x, y = both(3)
    f = lambda t: (t**3).sum()  # noqa: E731
    check(torch.autograd.functional.hessian(f, y), torch.autograd.functional.hessian(f, x))
    g = lambda t: t.sin()  # noqa: E731
    check(torch.autograd.functional.jacobian(g, y), torch.autograd.functional.jacobian(g, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_matmul(dtype):
    """As Transformers' mixtures of experts call it."""

    def call(device):
        g = torch.Generator().manual_seed(0)
        x, w = (torch.randn(s, generator=g).to(dtype).to(device).requires_grad_() for s in [(8, 16), (3, 16, 8)])
        offs = torch.tensor([2, 4, 8], dtype=torch.int32, device=device)
        y = torch._grouped_mm(x, w, offs=offs)
        y.float().pow(2).sum().backward()
        return y, x.grad, w.grad

    check(call("tpu"), call("cpu"), 2e-2 if dtype == torch.bfloat16 else 1e-5, 2e-2)


def test_grouped_matmul_of_what_does_not_fit():
    """In CPU's words."""
    said = []
    for device in ("cpu", "tpu"):
        x, w = torch.ones(8, 16, device=device), torch.ones(3, 16, 8, device=device)
        ends, two = (torch.tensor(e, dtype=torch.int32, device=device) for e in ([2, 4, 8], [2, 8]))
        bad = [(x, w), (x, w, two), (x, w.mT, ends), (x, w, ends.long()), (w, w.mT, ends), (x, w.bfloat16(), ends)]
        said.append([])
        for arguments in bad:
            with pytest.raises(RuntimeError) as e:
                torch._grouped_mm(*arguments)
            said[-1].append(str(e.value))
    assert said[0] == said[1]
