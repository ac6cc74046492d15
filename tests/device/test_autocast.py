"""``torch.autocast("tpu")``: cast rules, default and custom dtype, nesting, the cache of cast weights, GradScaler."""

import pytest
import torch
import torch.nn.functional as F

from device.support import both

LOW = {
    "mm": lambda x: torch.mm(x, x),
    "matmul": lambda x: x @ x,
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "mv": lambda x: torch.mv(x, x[0]),
    "linear": lambda x: F.linear(x, x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], x[None, None, :2, :2]),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
}
FULL = {
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs()),
    "pow": lambda x: torch.pow(x, 2),
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
    "softplus": F.softplus,
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x[None], 2),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(4, device=x.device)),
    "bce_logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.sigmoid(x)),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "sum": lambda x: x.sum(),
    "sum dim": lambda x: x.sum(0),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(),
    "vector_norm": torch.linalg.vector_norm,
    "cdist": lambda x: torch.cdist(x, x),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
    "logsumexp": lambda x: x.logsumexp(0),
}


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_products_run_in_bfloat16(name, given):
    x, y = both(4, 4, dtype=given)
    with torch.autocast("tpu"):
        got = LOW[name](y)
    with torch.autocast("cpu", enabled=False):
        expected = LOW[name](x.bfloat16())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.cpu(), expected, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("name", FULL)
def test_sums_and_losses_run_in_float32(name):
    x, y = both(4, 4, dtype=torch.bfloat16)
    with torch.autocast("tpu"):
        got = FULL[name](y)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu(), FULL[name](x.float()), rtol=1e-3, atol=1e-3)


def test_the_widest_type_wins():
    low, full = torch.ones(2, 2, device="tpu", dtype=torch.bfloat16), torch.ones(2, 2, device="tpu")
    with torch.autocast("tpu"):
        assert torch.cat([low, full]).dtype == torch.float32
        assert torch.stack([low, low]).dtype == torch.bfloat16
        assert torch.addcmul(low, full, low).dtype == torch.float32
        assert torch.atan2(low, low).dtype == torch.bfloat16
        # Operators in no list promote as they always do.
        assert (low + full).dtype == torch.float32 and (low + low).dtype == torch.bfloat16
        assert F.relu(full).dtype == torch.float32


def test_what_is_not_cast():
    ints, wide = torch.ones(2, 2, device="tpu", dtype=torch.int64), torch.ones(2, 2, device="tpu", dtype=torch.float64)
    with torch.autocast("tpu"):
        assert (wide @ wide).dtype == torch.float64
        assert (ints @ ints).dtype == torch.int64
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype == torch.float32  # CPU tensors are not tpu's
        assert torch.softmax(wide, 0).dtype == torch.float64
        assert (
            torch.sum(torch.ones(2, device="tpu", dtype=torch.bfloat16), dtype=torch.bfloat16).dtype == torch.bfloat16
        )


def test_dtypes_and_nesting():
    x = torch.ones(2, 2, device="tpu")
    assert torch.get_autocast_dtype("tpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("tpu")
    with torch.autocast("tpu", dtype=torch.float16):
        assert torch.is_autocast_enabled("tpu") and (x @ x).dtype == torch.float16
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
            with torch.autocast("tpu", dtype=torch.bfloat16):
                assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float16
    assert (x @ x).dtype == torch.float32 and torch.get_autocast_dtype("tpu") == torch.bfloat16

    @torch.autocast("tpu")
    def decorated(x):
        return x @ x

    assert decorated(x).dtype == torch.bfloat16


def test_a_dtype_that_is_not_supported_warns_and_disables():
    x = torch.ones(2, 2, device="tpu")
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("tpu", dtype=torch.float64):
        assert (x @ x).dtype == torch.float32


def test_binary_cross_entropy_is_refused():
    x = torch.full((2,), 0.5, device="tpu")
    with torch.autocast("tpu"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


def cast_count(body):
    """How many casts of a [8, 8] weight the autograd graph of ``body``'s result holds."""
    seen, todo = set(), [body().grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [n for n, _ in node.next_functions]
    return sum(n.name() == "ToCopyBackward0" for n in seen)


def test_a_weight_is_cast_once_a_region():
    w, x = torch.ones(8, 8, device="tpu", requires_grad=True), torch.ones(8, 8, device="tpu", dtype=torch.bfloat16)

    def used_twice(**kw):
        with torch.autocast("tpu", **kw):
            return (x @ w + x @ w).float().mean()

    assert cast_count(used_twice) == 2  # the weight, and the mean's float()
    assert cast_count(lambda: used_twice(cache_enabled=False)) == 3


def test_the_cache_does_not_outlive_its_region():
    w, x = torch.ones(4, 4, device="tpu", requires_grad=True), torch.ones(4, 4, device="tpu")
    for value in (1.0, 2.0):
        with torch.no_grad():
            w.fill_(value)
        with torch.autocast("tpu"):
            y = x @ w
        assert y.float().mean().item() == 4 * value
    with torch.autocast("tpu"):
        with torch.no_grad():
            x @ w
        y = x @ w
    assert y.requires_grad
    y.sum().backward()
    assert w.grad.dtype == torch.float32 and w.grad.mean().item() == 4


def test_training_matches_cpu_autocast():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    losses = {}
    for device in ("cpu", "tpu"):
        import copy

        m = copy.deepcopy(model).to(device)
        opt = torch.optim.SGD(m.parameters(), lr=0.1)
        losses[device] = []
        for _ in range(5):
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                out = m(x.to(device))
                loss = F.cross_entropy(out, y.to(device))
            assert out.dtype == torch.bfloat16 and loss.dtype == torch.float32
            loss.backward()
            opt.step()
            losses[device].append(loss.item())
    assert losses["cpu"] == pytest.approx(losses["tpu"], rel=2e-2)
    assert losses["tpu"][-1] < losses["tpu"][0]


def test_custom_function_with_custom_fwd():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            assert not torch.is_autocast_enabled("tpu")
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g @ b.t(), a.t() @ g

    a = torch.ones(2, 2, device="tpu", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("tpu"):
        out = Product.apply(a, a)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert a.grad.dtype == torch.bfloat16


def test_grad_scaler():
    w = torch.ones(4, device="tpu", requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.5)
    scaler = torch.amp.GradScaler("tpu", init_scale=1024.0, growth_interval=2)
    assert scaler.is_enabled()
    for _ in range(2):
        opt.zero_grad()
        scaler.scale((w * 2).sum()).backward()
        assert w.grad[0].item() == 2048
        scaler.unscale_(opt)
        assert w.grad[0].item() == 2
        scaler.step(opt)
        scaler.update()
    assert w.tolist() == [-1.0] * 4 and scaler.get_scale() == 2048.0
    opt.zero_grad()
    scaler.scale((w * float("inf")).sum()).backward()
    scaler.step(opt)
    scaler.update()
    assert w.tolist() == [-1.0] * 4 and scaler.get_scale() == 1024.0
    again = torch.amp.GradScaler("tpu")
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 1024.0
