"""Functions under torch.compile: dtypes, arguments, outputs, sizes, modes, errors."""

import pytest
import torch
import torch.nn.functional as F

from compile.support import check, close, compilations, compiled, on

COUNTERS = torch._dynamo.utils.counters


def graphs():
    return COUNTERS["stats"]["unique_graphs"]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    COUNTERS.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    def fn(x, w):
        return torch.softmax(x @ w, -1) + 1, (x * 2).sum(), x.mean(0)

    check(fn, torch.randn(4, 8, dtype=dtype).requires_grad_(), torch.randn(8, 8, dtype=dtype), backward=True,
          **({"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-5}))  # fmt: skip


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode):
    x = torch.randn(3, device="tpu")
    torch.testing.assert_close(compiled(torch.sin, mode=mode)(x), x.sin())


def test_default_backend():
    x = torch.randn(3, device="tpu")
    torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)


def test_unknown_options():
    with pytest.raises(Exception, match="unknown option nonsense; known: xla_options"):
        compiled(torch.sin, options={"nonsense": 1})(torch.ones(1, device="tpu"))


def test_arguments_of_every_kind():
    def fn(x, n, scale, name, nothing, pairs):
        if nothing is None and name == "add":
            return x + n * scale + pairs["a"][0]
        return x

    args = (torch.randn(3), 4, 0.5, "add", None, {"a": [torch.randn(3)]})
    check(fn, *args)


def test_floats_recompile_once_at_most():
    run = compiled(lambda x, f: x * f + f)
    x = torch.ones(3, device="tpu")
    for f in (0.5, 1.5, 2.25, 3.0, -1.0, 1e-3):
        torch.testing.assert_close(run(x, f).cpu(), torch.ones(3) * f + f)
    assert graphs() <= 2
    before = compilations()
    run(x, 17.0)
    assert compilations() == before


def test_nested_outputs():
    def fn(x):
        return {"a": [x + 1, (x * 2, None)], "b": 3, "c": ("text", x.shape[0], 1.5)}

    check(fn, torch.randn(4))


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_sizes(dynamic):
    def fn(x, y):
        return (x @ y).relu().sum(0), x.reshape(-1), torch.cat([x, x]), x.shape[0]

    run = compiled(fn, dynamic=dynamic)
    for n in (5, 6, 7, 12, 2):
        args = torch.randn(n, 4), torch.randn(4, 3)
        close(run(*on("tpu", args)), fn(*args), rtol=1e-5, atol=1e-5)
    assert graphs() == {None: 2, True: 1, False: 5}[dynamic]


def test_sizes_under_training():
    def fn(x, w):
        return torch.tanh(x @ w).sum()

    run = compiled(fn, dynamic=True)
    for n in (5, 9, 6):
        theirs = torch.randn(n, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        ours = on("tpu", theirs)
        fn(*theirs).backward()
        run(*ours).backward()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-5, atol=1e-5)
    assert graphs() == 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty(shape):
    check(lambda x: (x + 1, x.sum(), torch.cat([x, x])), torch.randn(shape, requires_grad=True), backward=True)


def test_scalars_of_the_host():
    run = compiled(lambda x, s: x * s + 1)
    x = torch.randn(3, device="tpu")
    for value in (2.5, 3.5):
        torch.testing.assert_close(run(x, torch.tensor(value)), x * value + 1)


def test_a_host_tensor_is_refused_with_the_line():
    with pytest.raises(Exception, match=r"(?s)(same device|tpu).*test_functions.py"):
        compiled(lambda x, y: x + y)(torch.ones(3, device="tpu"), torch.ones(3))


@pytest.mark.parametrize("fn", [lambda x: x[x > 0], torch.nonzero, torch.unique])
def test_a_shape_of_values_is_refused_with_the_line(fn):
    with pytest.raises(Exception, match=r"(?s)shape of this result depends on values.*test_functions.py"):
        compiled(lambda x: fn(x) + 1)(torch.ones(3, device="tpu"))
    torch._dynamo.reset()
    x = torch.tensor([1.0, 0.0, 2.0], device="tpu")
    torch.testing.assert_close(torch.compile(lambda x: fn(x) + 1, backend="tpu")(x), fn(x) + 1)


def test_graph_breaks():
    seen = []

    def fn(x):
        y = x * 2
        seen.append(y.sum().item())
        if seen[-1] > 0:
            y = y + 1
        return y * 3

    x = torch.ones(3, device="tpu")
    assert compiled(fn, fullgraph=False)(x).tolist() == [9.0] * 3 and seen == [6.0]


def test_an_index_out_of_range():
    run = compiled(lambda x, i: x[i] * 2)
    x = torch.arange(4.0, device="tpu")
    assert run(x, torch.tensor([3, 0], device="tpu")).tolist() == [6.0, 0.0]
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 0 with size 4"):
        run(x, torch.tensor([3, 4], device="tpu"))
        torch.tpu.synchronize()


def test_functional_transforms():
    def fn(x, w):
        one = torch.func.grad(lambda w, row: torch.tanh(row @ w).sum())
        return torch.func.vmap(one, in_dims=(None, 0))(w, x), torch.func.vjp(torch.sin, x)[1](x)[0]

    check(fn, torch.randn(5, 4), torch.randn(4), rtol=1e-5, atol=1e-5)


def test_twice_differentiating_is_refused():
    x = torch.ones(3, device="tpu", requires_grad=True)
    y = compiled(lambda x: x.sin())(x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        g.sum().backward()


def test_attention():
    q, k, v = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v, backward=True,
          rtol=1e-4, atol=1e-5)  # fmt: skip


def test_without_gradients():
    w = torch.randn(4, 4, device="tpu", requires_grad=True)
    run = compiled(lambda x: (x @ w).relu())
    x = torch.randn(3, 4, device="tpu")
    with torch.no_grad():
        assert not run(x).requires_grad
    with torch.inference_mode():
        y = run(x)
        assert y.is_inference()
    torch.testing.assert_close(run(x).detach(), torch.relu(x @ w).detach())
    assert run(x).requires_grad


def test_autocast():
    def fn(x, w):
        with torch.autocast("tpu", dtype=torch.bfloat16):
            return x @ w, torch.softmax(x, -1)

    x, w = torch.randn(4, 8, device="tpu"), torch.randn(8, 8, device="tpu")
    a, b = compiled(fn)(x, w)
    assert a.dtype == torch.bfloat16 and b.dtype == torch.float32
    torch.testing.assert_close(a, fn(x, w)[0], rtol=2e-2, atol=2e-2)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert compiled(lambda x, w: x @ w)(x, w).dtype == torch.bfloat16


def test_random_numbers():
    run = compiled(lambda x: (F.dropout(x, 0.5), torch.rand_like(x), torch.randn(5, device=x.device)))
    x = torch.ones(1000, device="tpu")
    torch.manual_seed(7)
    first, second = run(x), run(x)
    before = compilations()
    torch.manual_seed(7)
    again = run(x)
    assert compilations() == before
    for a, b, c in zip(first, second, again):
        assert not torch.equal(a, b) and torch.equal(a, c)
    assert set(first[0].tolist()) == {0.0, 2.0} and 400 < int((first[0] != 0).sum()) < 600
    assert not torch.equal(first[1][:5], first[2])


def test_dropout_in_training():
    run = compiled(lambda x: F.dropout(x.sin(), 0.5))
    x = torch.ones(1000, device="tpu", requires_grad=True)
    y = run(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y.detach() != 0).float() * 2 * x.detach().cos())


def test_constants_made_in_the_graph():
    check(
        lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device) + torch.arange(3, device=x.device), torch.randn(3)
    )


def test_a_skipped_frame_leaves_the_package_alone():
    """Where Dynamo gives up in the middle of a function, its operators run one by one, in code it must not look at."""

    def fn(x):
        total = torch.zeros((), device=x.device)
        for i in range(3):
            if x[i].item() > 0:
                total += x[i] * 3
            torch._dynamo.graph_break()
            total = torch.sort(torch.stack([total, x[i]])).values[-1]
        return total

    x = torch.tensor([1.0, -2.0, 3.0])
    torch.testing.assert_close(torch.compile(fn, backend="tpu")(x.to("tpu")).cpu(), fn(x))


def test_numbers_that_the_program_computes():
    def fn(x):
        total = x.sum().item()
        return x * total + 1, total * 2, x.max().to(torch.int64).item() + 1, (x > 0).all().item()

    check(fn, torch.tensor([1.0, 2.0, 4.0]))


def test_an_assertion():
    def fn(x):
        torch._assert_async((x > 0).all(), "all must be {positive}")
        return x * 2

    run = compiled(fn)
    assert run(torch.ones(3, device="tpu")).tolist() == [2] * 3
    with pytest.raises(RuntimeError, match=r"all must be \{positive\}"):
        run(-torch.ones(3, device="tpu"))
        torch.tpu.synchronize()
