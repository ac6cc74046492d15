"""torch.tpu.ops on the device, and where the kernels come in by themselves."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torch_tpu.aot as aot
from torch_tpu.lowering import attention, grouped_matmul, matmul
from torch_tpu.ops import chips
from torch_tpu.ops.flash_attention import reference as flash
from torch_tpu.ops.paged_cache import reference as paged
from torch_tpu.runtime import interpretation


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# Experts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_ragged_dot(compiled):
    x, w, sizes = normal(10, 16), normal(3, 16, 8, seed=1), torch.tensor([3, 0, 6])
    a, b = x.to("tpu").requires_grad_(), w.to("tpu").requires_grad_()
    fn = torch.compile(torch.tpu.ops.ragged_dot, fullgraph=True) if compiled else torch.tpu.ops.ragged_dot
    y = fn(a, b, sizes.to("tpu"))
    y.pow(2).sum().backward()
    want = torch.cat([x[:3] @ w[0], x[3:9] @ w[2], torch.zeros(1, 8)])
    torch.testing.assert_close(y.detach().cpu(), want)
    of_w = torch.stack([x[:3].T @ want[:3], torch.zeros(16, 8), x[3:9].T @ want[3:9]]) * 2
    torch.testing.assert_close(b.grad.cpu(), of_w, rtol=1e-5, atol=1e-4)
    again = torch.tpu.ops.ragged_dot_weight_grad(a.detach(), 2 * y.detach(), sizes.to("tpu"))
    torch.testing.assert_close(again.cpu(), of_w, rtol=1e-5, atol=1e-4)
    assert bool((a.grad[9] == 0).all())


def test_group_sizes_that_do_not_fit():
    x, w = normal(10, 16).to("tpu"), normal(3, 16, 8).to("tpu")
    for sizes in ([3, 9, 6], [3, -1, 6], [2**62, 2**62, 0]):
        with pytest.raises(RuntimeError, match="group_sizes are negative, or more than the 10 rows of lhs together"):
            torch.tpu.ops.ragged_dot(x, w, torch.tensor(sizes, device="tpu")).cpu()
    with pytest.raises(ValueError, match=r"vector of integers, got torch.float32 of shape \(3,\)"):
        torch.tpu.ops.ragged_dot(x, w, torch.ones(3, device="tpu"))
    with pytest.raises(ValueError, match="parameter 'group_sizes' is a tensor on cpu: pass group_sizes"):
        torch.tpu.ops.ragged_dot(x, w, torch.tensor([3, 3, 3]))
    with pytest.raises(ValueError, match=r"got \[10, 16\], \[3, 16, 8\] and \[2\]"):
        torch.tpu.ops.ragged_dot(x, w, torch.tensor([3, 3], device="tpu"))
    many = torch.ones(300, 16, device="tpu")  # more than a byte counts to
    byte = torch.tensor([150, 100, 50], dtype=torch.uint8, device="tpu")
    torch.testing.assert_close(
        torch.tpu.ops.ragged_dot(many, w, byte), F.grouped_mm(many, w, offs=byte.cumsum(0).int())
    )
    with pytest.raises(ValueError, match=r"float8_e4m3fn is not supported; use torch\._scaled_grouped_mm"):
        torch.tpu.ops.ragged_dot(x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), byte)
    # PyTorch on CPU takes ends past the rows as their number.
    ends = torch.tensor([2, 4, 20], dtype=torch.int32)
    torch.testing.assert_close(F.grouped_mm(x, w, offs=ends.to("tpu")).cpu(), F.grouped_mm(x.cpu(), w.cpu(), offs=ends))


FORMS = {
    "2x3": ((40, 16), (4, 16, 24), False),
    "2x3, transposed": ((40, 16), (4, 24, 16), True),
    "3x2": ((4, 24, 16), (16, 40), False),
    "2x2": ((24, 40), (40, 16), False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_grouped_mm_compiled(form, dtype):
    """PyTorch's own rule for fake tensors takes bfloat16 alone."""
    left, right, turned = FORMS[form]

    def call(device, wrap):
        a, b = (normal(*s, seed=i, dtype=dtype).to(device).requires_grad_() for i, s in enumerate((left, right)))
        ends = torch.tensor([2, 2, 30, 40], dtype=torch.int32, device=device)
        fn = wrap(lambda a, b, e: F.grouped_mm(a, b.transpose(-2, -1) if turned else b, offs=e))
        y = fn(a, b, ends)
        y.float().pow(2).sum().backward()
        return [t.detach().cpu() for t in (y, a.grad, b.grad)]

    got = call("tpu", lambda f: torch.compile(f, backend="tpu", fullgraph=True))
    for g, w in zip(got, call("cpu", lambda f: f), strict=True):
        torch.testing.assert_close(g, w, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-3)


OTHER_TYPES = [
    (torch.float8_e4m3fn, None, None), (torch.float8_e5m2, None, None), (torch.float64, None, None),
    (torch.int32, None, None), (torch.complex64, None, None), (torch.bfloat16, torch.float8_e4m3fn, None),
    (torch.float32, torch.bfloat16, None), (torch.bfloat16, None, torch.float32),
    (torch.float32, None, torch.float8_e4m3fn), (torch.float16, None, torch.int64),
]  # fmt: skip


@pytest.mark.parametrize("rows", [16, 512])  # with many CPU is not asked in advance
@pytest.mark.parametrize(("left", "right", "out"), OTHER_TYPES, ids=str)
def test_grouped_mm_takes_no_types_but_cpus(left, right, out, rows):
    said = []
    for device in ("cpu", "tpu"):
        x = torch.ones(rows, 32).to(left).to(device)
        w, ends = torch.ones(2, 32, 16).to(right or left).to(device), torch.tensor([4, rows], dtype=torch.int32)
        calls = [torch._grouped_mm, torch.compile(torch._grouped_mm, backend="tpu")]
        for call in calls[: 1 if device == "cpu" else 2]:
            with pytest.raises(RuntimeError) as e:
                call(x, w, offs=ends.to(device), out_dtype=out)
            said.append(str(e.value))
    assert said[1] == said[0]
    assert re.search("Expected mat_|output dtype must match|the same dtype", said[2])


@pytest.mark.parametrize("compiled", [False, True])
def test_scaled_grouped_mm(compiled):
    """PyTorch has no CPU kernel of it: against the same in float64."""
    x, w = (normal(*s, seed=i).to(torch.float8_e4m3fn) for i, s in enumerate([(16, 32), (3, 48, 32)]))
    a, b, ends = normal(16, seed=3).abs(), normal(3, 48, seed=4).abs(), torch.tensor([5, 5, 16], dtype=torch.int32)
    on = [t.to("tpu") for t in (x, w, a, b, ends)]

    def call(x, w, a, b, e):
        return torch._scaled_grouped_mm(x, w.transpose(-2, -1), a, b, offs=e)

    fn = torch.compile(call, backend="tpu", fullgraph=True) if compiled else call
    wide, group = [t.float().double() for t in (x, w)], torch.tensor([0] * 5 + [2] * 11)
    want = torch.einsum("rk,rnk->rn", wide[0], wide[1][group]) * a.double()[:, None] * b.double()[group]
    torch.testing.assert_close(fn(*on).cpu(), want.bfloat16(), rtol=1e-2, atol=1e-2)
    with pytest.raises((NotImplementedError, RuntimeError), match="scale"):
        torch._scaled_grouped_mm(on[0], on[1].transpose(-2, -1), on[2][:3], on[3], offs=on[4])


def kernels(fn, *avals, chip="v6e"):
    """Names of the Pallas kernels in the program for a TPU, and the shapes that it transposes or gathers."""
    with jax.enable_x64(True), interpretation.lowering_for("tpu", chip), interpretation.seen_as(chip):
        jaxpr = jax.jit(lambda *a: fn(*a)).trace(*(jax.ShapeDtypeStruct(s, d) for s, d in avals)).jaxpr.jaxpr
    found, live = [], {id(v) for v in jaxpr.outvars}
    for eqn in reversed(jaxpr.eqns):  # what nothing uses, XLA drops
        if any(id(v) in live for v in eqn.outvars):
            live |= {id(v) for v in eqn.invars}
            name = eqn.params.get("name", "") if eqn.primitive.name == "pallas_call" else ""
            found += [name] if name else []
            if eqn.primitive.name in ("transpose", "gather", "convert_element_type"):
                found.append(tuple(eqn.outvars[0].aval.shape))
    return found


BF16_TORCH = torch.bfloat16
BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_weights_are_read_as_they_lie(dtype):
    def stored(x, w, e):
        return grouped_matmul.grouped_mm(x, jnp.swapaxes(w, 1, 2), e)

    found = kernels(stored, ((64, 32), dtype), ((4, 48, 32), dtype), ((4,), I32))
    assert "grouped_rows" in found and not any(len(f) == 3 for f in found if not isinstance(f, str))
    found = kernels(
        lambda x, g, e: grouped_matmul.grouped_mm(x.T, g, e), ((64, 32), dtype), ((64, 48), dtype), ((4,), I32)
    )
    assert "grouped_sum" in found and (32, 64) not in found


def test_where_there_are_no_kernels():
    call = (lambda x, w, e: grouped_matmul.grouped_mm(x, w, e)), ((64, 32), F32), ((4, 32, 48), F32), ((4,), I32)
    half = (call[0], *((s, jnp.float16 if d == F32 else d) for s, d in call[1:]))
    assert "grouped_rows" in kernels(*call) and "grouped_rows" not in kernels(*half)
    with chips.partitioned():  # XLA cannot split a kernel over devices
        assert "grouped_rows" not in kernels(*call)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_by_chosen_matrices(dtype, compiled):
    """Transformers' "batched_mm" experts, to which ``generate`` changes for decode, in both layouts of weights."""
    x, up, down = (
        normal(6, 16, dtype=dtype),
        normal(4, 24, 16, seed=1, dtype=dtype),
        normal(4, 24, 8, seed=2, dtype=dtype),
    )
    index = torch.tensor([[0, 1], [3, 2], [1, 1]])

    def experts(x, up, down, index):
        index = index.reshape(-1)
        hidden = torch.bmm(up[index], x.unsqueeze(-1)).squeeze(-1)
        return torch.bmm(hidden.unsqueeze(1), down[index]).squeeze(1)

    fn = torch.compile(experts, backend="tpu", fullgraph=True) if compiled else experts
    got = fn(*(t.to("tpu") for t in (x, up, down, index))).cpu()
    torch.testing.assert_close(
        got, experts(x, up, down, index), rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-4
    )


def test_no_copy_of_chosen_matrices():
    def stored(x, w, i):
        return grouped_matmul.bmm(w[i], x[:, :, None])

    avals = (((6, 16), BF16), ((4, 24, 16), BF16), ((6,), I32))
    found = kernels(stored, *avals)
    assert "grouped_rows" in found and (6, 24, 16) not in found
    # Several columns, or an index of columns, are products as ever.
    assert "grouped_rows" not in kernels(lambda x, w, i: grouped_matmul.bmm(w[i], x), ((6, 16, 2), BF16), *avals[1:])
    assert "grouped_rows" not in kernels(lambda x, w: matmul.product(w, x), ((4, 16, 1), BF16), avals[1])


def test_experts_by_the_compilers_numbers():
    """One layer of 64 experts for 32 tokens: the work of its rows, the weights of its experts, once."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(64, 512, 1024, dtype=torch.bfloat16, device="meta"))

        def forward(self, x, ends):
            return F.grouped_mm(x, self.weight.transpose(-2, -1), offs=ends)

    x = torch.empty(128, 1024, dtype=torch.bfloat16, device="meta")
    ends = torch.empty(64, dtype=torch.int32, device="meta")
    program = aot.compile(Layer(), (x, ends), topology="v6e-1").programs[0]
    useful, weights = 2 * 128 * 1024 * 512, 64 * 512 * 1024 * 2
    assert useful <= program.flops < 1.3 * useful and program.matrix_flops == useful
    assert program.hbm_bytes < 1.05 * weights


# Attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"is_causal": True, "window": 7}, {"soft_cap": 3.0, "scale": 0.2}], ids=str
)
def test_splash_sdpa(options):
    q, k, v = normal(1, 4, 40, 32), normal(1, 2, 40, 32, seed=1), normal(1, 2, 40, 32, seed=2)
    grad = normal(1, 4, 40, 32, seed=3)
    on = [t.to("tpu").requires_grad_() for t in (q, k, v)]
    out = torch.tpu.ops.splash_sdpa(*on, **options)
    out.backward(grad.to("tpu"))
    wide = [t.double().numpy() for t in (q, k, v, grad)]
    given = {"scale": 32**-0.5} | options
    for got, want in zip(
        (out.detach(), *(t.grad for t in on)),
        (flash.flash_attention(*wide[:3], **given), *flash.gradients(*wide, **given)),
        strict=True,
    ):
        np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-4, atol=1e-5)


def test_attention_that_does_not_fit():
    q, k = normal(1, 4, 8, 32).to("tpu"), normal(1, 3, 8, 32).to("tpu")
    with pytest.raises(ValueError, match="splash_sdpa: shapes do not fit"):
        torch.tpu.ops.splash_sdpa(q, k, k)
    with pytest.raises(ValueError, match="splash_sdpa: shapes do not fit"):
        torch.tpu.ops.splash_sdpa(q, k[:, :0], k[:, :0])
    with pytest.raises(ValueError, match=r"soft_cap=0.0 has to be more than 0"):
        torch.tpu.ops.splash_sdpa(q, q, q, soft_cap=0.0)
    with pytest.raises(ValueError, match="expected bfloat16 or float32"):
        torch.tpu.ops.splash_sdpa(q.half(), q.half(), q.half())
    with pytest.raises(ValueError, match="a head's size has to be a multiple of 128, got 32"):
        pages = normal(4, 2, 4, 32).to("tpu")
        one, index = (torch.ones(s, dtype=torch.int32, device="tpu") for s in (1, (1, 2)))
        torch.tpu.ops.paged_attention(q[:, :, 0], pages, pages, one, index)


def test_attention_over_pages():
    q, pages = normal(3, 4, 128), [normal(2, 12, 4, 128, seed=i) for i in (1, 2)]
    lengths = torch.tensor([1, 7, 16], dtype=torch.int32)
    index = torch.randperm(12, generator=torch.Generator().manual_seed(3)).reshape(3, 4).int()
    got = torch.tpu.ops.paged_attention(*(t.to("tpu") for t in (q, *pages, lengths, index)))
    arrays = [t.numpy() for t in (q, *pages, lengths, index)]
    np.testing.assert_allclose(
        got.cpu().numpy(), paged.paged_attention(np, *arrays, 128**-0.5, np.float64), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(RuntimeError, match="a page index is not one of 12 pages"):
        torch.tpu.ops.paged_attention(*(t.to("tpu") for t in (q, *pages, lengths, index + 1))).cpu()
    for wrong in ([0, 7, 16], [1, 7, 17]):
        with pytest.raises(RuntimeError, match="or a length is not of 1 to 16 tokens"):
            given = (q, *pages, torch.tensor(wrong), index)
            torch.tpu.ops.paged_attention(*(t.to("tpu") for t in given)).cpu()
    with pytest.raises(ValueError, match=r"page_indices has to hold integers, got torch\.float32"):
        torch.tpu.ops.paged_attention(*(t.to("tpu") for t in (q, *pages, lengths, index.float())))
    query, both = normal(9, 4, 128, seed=4), normal(12, 4, 4, 128, seed=5)
    rest = [torch.tensor(v, dtype=torch.int32) for v in ([5, 7, 16], [0, 5, 6, 9], [3])]
    operands = [query, both, rest[0], index, *rest[1:]]
    got = torch.tpu.ops.ragged_paged_attention(*(t.to("tpu") for t in operands))
    want = paged.ragged_paged_attention(np, *(t.numpy() for t in operands), 128**-0.5, np.float64)
    np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-4, atol=1e-5)
    two = [
        *operands[:4],
        torch.tensor([0, 5, 6, 0], dtype=torch.int32),
        torch.tensor([2]),
    ]  # what is behind is anything
    torch.testing.assert_close(torch.tpu.ops.ragged_paged_attention(*(t.to("tpu") for t in two))[:6], got[:6])
    for at, wrong in ((2, [2, 7, 16]), (4, [0, 6, 5, 9]), (4, [0, 5, 6, 19]), (5, [4])):
        changed = [*operands[:at], torch.tensor(wrong), *operands[at + 1 :]]
        with pytest.raises(RuntimeError, match="starts do not ascend from 0 to 9 at most, or count"):
            torch.tpu.ops.ragged_paged_attention(*(t.to("tpu") for t in changed)).cpu()


def attend(q, k, v):
    return attention.fused_attention(q, k, v, None, 0.0, True)[0]


def attend_masked(q, k, v, mask):
    return attention.fused_attention(q, k, v, mask, 0.0, False)[0]


def back(q, k, v, g):
    lse = jnp.zeros(q.shape[:3], F32)
    mask = (True, True, True, False)
    return attention.fused_attention_backward(
        g, q, k, v, None, mask, g, lse, None, None, 0, 0, 0.0, True, None, None
    )[:3]  # fmt: skip


def test_sdpa_takes_a_flash_kernel_where_scores_would_go_to_hbm():
    def shapes(length, dtype=BF16):
        return ((1, 32, length, 64), dtype), ((1, 8, length, 64), dtype), ((1, 8, length, 64), dtype)

    def text(fn, avals):
        with jax.enable_x64(True), interpretation.lowering_for("tpu", "v6e"), interpretation.seen_as("v6e"):
            return str(jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(s, d) for s, d in avals)))

    assert "pallas_call" in text(attend, shapes(2048))
    assert "pallas_call" in text(back, (*shapes(2048), ((1, 32, 2048, 64), BF16)))
    assert "pallas_call" not in text(attend, shapes(512))
    mask = ((1, 1, 1, 2048), jnp.bool_)  # of padding; one that is added is XLA's
    assert "pallas_call" in text(attend_masked, (*shapes(2048), mask))
    assert "pallas_call" not in text(attend_masked, (*shapes(2048), (mask[0], F32)))
    assert "pallas_call" not in text(attend, shapes(2048, F32))


class _Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        kind = {"bias": False, "dtype": BF16_TORCH, "device": "meta"}
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(256, 64 * h, **kind) for h in (16, 4, 4))
        self.out = torch.nn.Linear(1024, 256, **kind)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 64)).transpose(1, 2) for f in self.qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


def test_a_flash_kernel_on_each_chips_heads_and_batch():
    """Ahead of time over a mesh: no more is sent between chips than the product behind attention needs."""
    rules = {"qkv.*.weight": ("tensor", None), "out.weight": (None, "tensor"), "args.0": ("data",)}
    x = torch.empty(2, 4096, 256, dtype=BF16_TORCH, device="meta")
    laid = aot.Shardings({"data": 2, "tensor": 2}, rules)
    forward, backward = aot.compile(
        _Attention(), (x,), topology="v6e-4", shardings=laid, train=True, loss=lambda y: y.sum()
    ).programs
    assert [(k.name, k.count) for k in forward.kernels] == [("splash_mha_fwd_residuals", 1)]
    assert forward.kernels[0].vmem_bytes > 1 << 20
    ours = {"splash_mha_fwd_residuals": 1, "splash_mha_dkv_no_residuals": 1, "splash_mha_dq_no_residuals": 1}
    assert {k.name: k.count for k in backward.kernels} == ours
    assert [(c.kind, c.ranks) for c in forward.collectives] == [("all-reduce", 2)] * 2  # the product's, and the loss's
    assert [(c.kind, c.ranks) for c in backward.collectives] == [("all-reduce", 2)]  # of the weights' gradients


def test_heads_that_the_mesh_does_not_divide_take_xlas_attention():
    shapes = ((1, 32, 2048, 64), BF16), ((1, 8, 2048, 64), BF16), ((1, 8, 2048, 64), BF16)

    def text(mesh):
        with (
            jax.enable_x64(True), interpretation.lowering_for("tpu", "v6e"),
            chips.partitioned(True, chips.Split(mesh)),
        ):  # fmt: skip
            return str(jax.make_jaxpr(lambda *a: attend(*a))(*(jax.ShapeDtypeStruct(s, d) for s, d in shapes)))

    assert "pallas_call" in text({"tensor": 2}) and "shard_map" in text({"tensor": 2})
    assert "pallas_call" not in text({"tensor": 3})
    assert "pallas_call" not in text({"tensor": 8})  # 64 MiB of scores on each: XLA's stay on the chip


def test_a_backward_without_dropout_makes_no_mask():
    from torch_tpu.eager.spec import find, spec_for

    lowering = spec_for(find("aten::_scaled_dot_product_fused_attention_overrideable_backward")).lowering
    assert lowering.specialize["dropout_p"] == (0,)


def test_a_barrier_changes_nothing():
    x, y = normal(3).to("tpu"), normal(4).to("tpu")
    a, b = torch.tpu.ops.optimization_barrier(x, y)
    assert torch.equal(a, x) and torch.equal(b, y) and torch.equal(torch.tpu.ops.optimization_barrier(x), x)
    assert torch.tpu.ops.max_pool2d is F.max_pool2d
