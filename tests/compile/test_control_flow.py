"""Higher-order operators: branches, loops, scans and flex attention, forward and backward."""

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_
from torch.utils.checkpoint import checkpoint

from compile.support import check, compiled, on


def grad(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign):
    def fn(x, y):
        return torch.cond(x.sum() > 0, lambda x, y: x.sin() + y, lambda x, y: x.cos() * y, (x, y))

    check(fn, (torch.rand(3, 4) * sign).requires_grad_(), grad(4), backward=True)


def test_cond_compiles_once_for_both_branches():
    fn = compiled(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,)))
    one = torch.ones(3, device="tpu")
    assert fn(one).tolist() == [2.0] * 3 and fn(-one).tolist() == [-2.0] * 3
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    def fn(start, xs):
        return scan(lambda c, x: (c * x + 1, (c + x).sin()), start, xs, reverse=reverse)

    check(fn, grad(3), grad(5, 3), backward=True, rtol=1e-4, atol=1e-5)


def test_associative_scan():
    def fn(xs):
        return associative_scan(lambda a, b: a * b + a, xs, 0, combine_mode="generic")

    check(fn, grad(5, 3), backward=True)


def test_map():
    check(lambda xs, y: map_(lambda x, y: x * y + 1, xs, y), grad(5, 3), grad(3), backward=True)


def test_while_loop():
    def fn(n, x):
        return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 1.5 + i), (torch.zeros_like(n), x))

    for n in (0, 1, 7):
        check(fn, torch.tensor(n), torch.randn(3))


def test_while_loop_with_a_number():
    def fn(x):
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5), (0, x))

    n, y = compiled(fn)(torch.ones(3, device="tpu"))
    assert n == 4 and y.tolist() == [1.5**4] * 3


def test_scan_of_symbolic_sizes():
    run = compiled(
        lambda x: scan(lambda c, a: (c + a.sum(), c.expand(a.shape[0]) * 1), x[0, 0] * 0, x)[1], dynamic=True
    )
    for n in (4, 5):
        assert run(torch.ones(3, n, device="tpu")).tolist() == [[0.0] * n, [n] * n, [2.0 * n] * n]


def test_backward_of_while_loop_says_what_to_use():
    def fn(x):
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5), (torch.zeros((), device=x.device), x))[1]

    with pytest.raises(Exception, match=r"(?s)backward of while_loop .* use torch\._higher_order_ops\.scan.*from user"):
        compiled(fn)(torch.ones(3, device="tpu", requires_grad=True))


def test_index_checks_come_out_of_branches_and_loops():
    def fn(x, i):
        return torch.cond(
            x.sum() > 0,
            lambda x, i: scan(lambda c, a: (c + a[i], c * 2), x[0], x)[1],
            lambda x, i: x[i].sum(0) + torch.zeros_like(x),
            (x, i),
        )

    x, index = torch.rand(5, 3), torch.tensor([0, 2, 1])
    check(fn, x, index)
    check(fn, -x, index)
    run = compiled(fn)
    for sign, size in ((1, 3), (-1, 5)):
        with pytest.raises(IndexError, match=f"index 7 is out of bounds for dimension 0 with size {size}"):
            run((x * sign).to("tpu"), torch.tensor([0, 7, 1], device="tpu"))
            torch.tpu.synchronize()


def test_each_iteration_draws_anew():
    run = compiled(lambda x: scan(lambda c, a: (c + 1, torch.rand_like(a) + c * 0), x[0], x)[1])
    x = torch.zeros(4, 1000, device="tpu")
    rows = run(x).cpu()
    assert all(not torch.equal(rows[i], rows[j]) for i in range(4) for j in range(i))
    assert (rows.mean() - 0.5).abs() < 0.05 and not torch.equal(run(x).cpu(), rows)


def test_recomputed_dropout_is_the_same():
    w = torch.randn(64, 64, device="tpu")

    def part(x):
        return torch.nn.functional.dropout(torch.sin(x @ w), 0.5)

    run = compiled(lambda x: checkpoint(part, x, use_reentrant=False, preserve_rng_state=True))
    x = torch.randn(8, 64, device="tpu", requires_grad=True)
    y = run(x)
    kept = (y != 0).float() * 2
    y.sum().backward()
    torch.testing.assert_close(x.grad, (kept * torch.cos(x.detach() @ w)) @ w.T, rtol=1e-4, atol=1e-4)
    assert not torch.equal(run(x).detach() != 0, y.detach() != 0)


def test_nested_compile_region():
    @torch.compiler.nested_compile_region
    def block(x, w):
        return torch.tanh(x @ w)

    def fn(x, w):
        return block(block(x, w), w)

    x, w = torch.randn(3, 4, device="tpu", requires_grad=True), torch.randn(4, 4, device="tpu")
    y = compiled(fn)(x, w)
    torch.testing.assert_close(y, torch.tanh(torch.tanh(x @ w) @ w))
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("masked", [False, True])
def test_flex_attention(masked):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def score(s, b, h, i, j):
        return s + (i - j) * 0.01

    def run(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="tpu") if masked else None
        return compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True))(
            q, k, v
        )

    theirs = grad(2, 4, 128, 16), grad(2, 2, 128, 16), grad(2, 2, 128, 16)
    ours = on("tpu", theirs)
    at = torch.arange(128)
    bias = (at[:, None] - at) * 0.01
    if masked:
        bias = bias.masked_fill(at[:, None] < at, -torch.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(*theirs, attn_mask=bias, enable_gqa=True)
    got = run(*ours)
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    got.square().sum().backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-4)
