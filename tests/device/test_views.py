"""Views and in-place operators: a view is its base, also through views of views, other types and ``out=``."""

import pytest
import torch

from device.support import check


def agree(f, *shape, dtype=torch.float32):
    """f(base) changes base and may return tensors; both devices end alike, in values and strides."""
    n = torch.Size(shape).numel()
    host = torch.arange(1, n + 1).to(dtype).view(shape)
    there = host.to("tpu")
    expected, got = f(host), f(there)
    check(there, host)
    if expected is not None:
        check(got, expected)
        for g, e in zip(*(([x] if isinstance(x, torch.Tensor) else x) for x in (got, expected))):
            assert g.stride() == e.stride() and g.storage_offset() == e.storage_offset()


# Symptoms: `torch.split`/`chunk` results alias their base; in-place on a view of a view, then reading the base.
WRITES = {
    "select": lambda b: b[1].mul_(2),
    "slice": lambda b: b[:, 1:3].zero_(),
    "step": lambda b: b[::2, ::3].add_(5),
    "transposed": lambda b: b.t()[2].fill_(7),
    "view of a view": lambda b: b[1:].t()[1:].t()[0].add_(100),
    "flat": lambda b: b.view(-1)[3:9].neg_(),
    "chunk": lambda b: b.chunk(2, 1)[1].mul_(3),
    "split": lambda b: [p.add_(i) for i, p in enumerate(b.split([1, 2, 1], 0))] and None,
    "split_with_sizes": lambda b: b.split_with_sizes([2, 4], 1)[0].zero_(),
    "tensor_split": lambda b: b.tensor_split(3, 1)[2].sub_(1),
    "unbind": lambda b: b.unbind(1)[4].fill_(-1),
    "vsplit": lambda b: b.vsplit(2)[1].zero_(),
    "dsplit": lambda b: b.view(2, 2, 6).dsplit(3)[1].neg_(),
    "split twice": lambda b: b.split(2)[1].split(3, 1)[0].add_(5),
    "chunk of a transposed": lambda b: b.t().chunk(3)[2].mul_(2),
    "hsplit": lambda b: b.hsplit(2)[0].zero_(),
    "narrow": lambda b: b.narrow(1, 2, 3).mul_(b.narrow(1, 0, 3).clone()),
    "diagonal": lambda b: b.diagonal().fill_(0),
    "unsqueeze": lambda b: b.unsqueeze(0)[:, :, 1].add_(9),
    "squeeze": lambda b: b[:1].squeeze(0).add_(9),
    "permute": lambda b: b.view(2, 2, 6).permute(2, 0, 1)[1].mul_(2),
    "movedim": lambda b: b.view(2, 2, 6).movedim(0, 2)[0, 3].zero_(),
    "unflatten": lambda b: b.unflatten(1, (2, 3))[:, 1].zero_(),
    "flatten": lambda b: b.flatten()[1].zero_(),
    "as_strided": lambda b: b.as_strided((2, 2), (7, 3), 1).mul_(4),
    "as_strided_": lambda b: b[1:].as_strided_((3,), (2,), 4).zero_(),
    "unfold": lambda b: b.unfold(1, 2, 2)[0].zero_(),
    "expand_as": lambda b: b.add_(b[:1].clone().expand_as(b)),
    "swapaxes": lambda b: b.swapaxes(0, 1).copy_(b.clone().swapaxes(0, 1) * 2),
    "setitem": lambda b: b.__setitem__((slice(1, 3), 2), torch.tensor([50.0, 60.0], device=b.device)),
    "setitem scalar": lambda b: b.__setitem__(0, 3.5),
    "setitem broadcast": lambda b: b.__setitem__((Ellipsis, slice(0, 2)), torch.ones(2, device=b.device)),
    "setitem mask": lambda b: b.__setitem__(b > 10, 0.0),
    "setitem index": lambda b: b.__setitem__(torch.tensor([0, 2], device=b.device), -1.0),
    "detach": lambda b: b.detach()[0].zero_(),
    "data": lambda b: b.data[0].add_(1),
    "data of a view": lambda b: b[1].data.add_(1),
    "real": lambda b: torch.view_as_complex(b.view(4, 3, 2))[0].mul_(1j),
    "copy to itself": lambda b: b[1:].copy_(b[:-1].clone()),
    "overlapping copy": lambda b: b[:, :2].copy_(b[:, 1:3].clone()),
    "out": lambda b: torch.add(b[0], 1, out=b[1]),
    "out transposed": lambda b: torch.mul(b[:, 0], 2, out=b.t()[3]),
    "out step": lambda b: torch.exp(b[0, :3] * 0, out=b[2, ::2]),
    "out of mm": lambda b: torch.mm(b[:2, :2], b[:2, :2], out=b[2:, 4:]),
    "foreach": lambda b: torch._foreach_add_(list(b.unbind(0)), 1.0),
    "masked_fill_": lambda b: b.t().masked_fill_(b.t() > 5, 0),
    "index_add_": lambda b: b.t().index_add_(
        0, torch.tensor([1, 1], device=b.device), torch.ones(2, 4, device=b.device)
    ),
    "index_copy_": lambda b: b[:, :3].index_copy_(
        0, torch.tensor([2], device=b.device), torch.ones(1, 3, device=b.device)
    ),
    "scatter_": lambda b: b[1:].scatter_(1, torch.tensor([[2], [0]], device=b.device), 9.0),
    "clamp_": lambda b: b[:, ::2].clamp_(3, 9),
    "swap rows": lambda b: b.__setitem__([0, 1], b[[1, 0]]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_through_a_view(name):
    agree(WRITES[name], 4, 6)


@pytest.mark.parametrize("name", ["select", "step", "transposed", "flat", "chunk", "diagonal", "as_strided"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.complex64, torch.int8])
def test_writing_through_a_view_of_other_types(name, dtype):
    agree(WRITES[name], 4, 6, dtype=dtype)


def test_an_earlier_view_sees_later_writes():
    def f(b):
        early, t = b[1:3, ::2], b.t()
        later = b.view(2, 12)[1]
        later.mul_(-1)
        b.add_(1)
        t[0].zero_()
        return [early, t, later]

    agree(f, 4, 6)


# Symptom: `view_as_complex`/`view_as_real` alias.
def test_complex_views_alias():
    def f(b):
        c = torch.view_as_complex(b.view(4, 3, 2))
        r = torch.view_as_real(c)
        r[0].zero_()
        c.imag.add_(1)
        c[1].real.mul_(2)
        return [c, r]

    agree(f, 4, 6)


@pytest.mark.parametrize("source, target", [
    (torch.float32, torch.int32), (torch.float32, torch.uint8), (torch.int64, torch.float32),
    (torch.uint8, torch.int32),
    (torch.bfloat16, torch.int16), (torch.complex64, torch.float32), (torch.int32, torch.int64),
])  # fmt: skip
def test_views_of_another_dtype_alias(source, target):
    def f(b):
        v = b.view(target)
        v[1:3].copy_(v[:2].clone())
        return v

    agree(f, 4, 8, dtype=source)


def test_expanded():
    x = torch.arange(3.0, device="tpu")
    e = x.view(3, 1).expand(3, 4)
    assert e.stride() == (1, 0)
    x.add_(1)
    assert e.tolist() == [[1] * 4, [2] * 4, [3] * 4]
    assert e.contiguous().stride() == (4, 1) and e.sum().item() == 24
    with pytest.raises(RuntimeError, match="single memory location"):
        e.add_(1)


# Symptom: `x.data = y` must be seen by older aliases as in PyTorch; `.data` with a new shape.
def test_data_semantics():
    def f(b):
        alias, view = b.detach(), b[0]
        b.data = torch.full((2, 2), 7.0, device=b.device)
        view.zero_()
        return [b.clone(), alias, b.data]

    host, there = torch.ones(4, 6), torch.ones(4, 6, device="tpu")
    check(f(there), f(host))
    assert there.shape == (2, 2)
    p = torch.nn.Parameter(torch.ones(2, device="tpu"))
    p.data = torch.zeros(3, device="tpu", dtype=torch.float32)
    assert p.shape == (3,) and p.requires_grad
    with torch.no_grad():
        p.set_(torch.ones(5, device="tpu"))
    assert p.tolist() == [1] * 5


def test_swapping_data_is_seen_by_aliases_as_in_pytorch():
    for device in ("cpu", "tpu"):
        x = torch.ones(2, device=device)
        alias, detached = x, x.detach()
        x.data = torch.zeros(2, device=device)
        assert alias.tolist() == [0, 0] and detached.tolist() == [1, 1], device


@pytest.mark.parametrize(
    "memory_format, shape", [(torch.channels_last, (2, 3, 4, 5)), (torch.channels_last_3d, (2, 3, 2, 4, 5))]
)
def test_channels_last(memory_format, shape):
    host = torch.arange(float(torch.Size(shape).numel())).view(shape)
    there = host.to("tpu")
    for f in (
        lambda t: t.contiguous(memory_format=memory_format), lambda t: t.to(memory_format=memory_format),
        lambda t: t.to(memory_format=memory_format) + 1,
        lambda t: torch.empty_like(t, memory_format=memory_format).fill_(1),
        lambda t: t.to(memory_format=memory_format).clone(), lambda t: t.to(memory_format=memory_format)[:, 1],
        lambda t: t.to(memory_format=memory_format).contiguous(),
        lambda t: t.clone(memory_format=memory_format).relu_(),
        lambda t: t.to(memory_format=memory_format).to("cpu").to(t.device),
    ):  # fmt: skip
        check(f(there), f(host))
        assert f(there).stride() == f(host).stride()
    moved = host.to(memory_format=memory_format).to("tpu")
    assert moved.is_contiguous(memory_format=memory_format) and torch.equal(moved.cpu(), host)
    moved[:, 1].zero_()
    host[:, 1] = 0
    check(moved, host)


def test_out_of_another_shape_or_type():
    out = torch.empty(0, device="tpu")
    torch.add(torch.ones(3, device="tpu"), 1, out=out)
    assert out.tolist() == [2, 2, 2]
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(torch.ones(5, device="tpu"), 1, out=out)
    wide = torch.empty(3, device="tpu", dtype=torch.float64)
    assert torch.add(torch.ones(3, device="tpu"), 1, out=wide).dtype == torch.float64 and wide.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(torch.ones(3, device="tpu"), 1.5, out=torch.empty(3, dtype=torch.int64, device="tpu"))
    strided = torch.zeros(3, 4, device="tpu").t()
    torch.mul(torch.ones(4, 3, device="tpu"), 2, out=strided)
    assert strided.sum().item() == 24 and strided.stride() == (1, 4)


def test_in_place_types():
    x = torch.ones(2, device="tpu", dtype=torch.bfloat16)
    x *= 0.5
    assert x.dtype == torch.bfloat16 and x.tolist() == [0.5, 0.5]
    i = torch.arange(6, device="tpu")
    assert i[2:].dtype == torch.int64 and i[i > 2].dtype == torch.int64
    with pytest.raises(RuntimeError):
        i += 0.5
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.ones(1, device="tpu").add_(torch.ones(3, device="tpu"))


@pytest.mark.parametrize("bad", [
    lambda b: b.view(5), lambda b: b.t().view(-1), lambda b: b[9], lambda b: b[:, 7], lambda b: b.select(0, 4),
    lambda b: b.narrow(0, 3, 3), lambda b: b.as_strided((9, 9), (9, 1)), lambda b: b.unflatten(1, (4, 2)),
    lambda b: b.view(torch.int8).view(4, 7), lambda b: b.squeeze(5), lambda b: b.expand(3, 6),
    lambda b: b.unfold(0, 9, 1),
    lambda b: b.permute(0, 0), lambda b: torch.view_as_complex(b[:, :1]), lambda b: b.as_strided((2,), (-1,)),
    lambda b: b.reshape(-1, 7), lambda b: b.diagonal(0, 0, 0), lambda b: b.chunk(0),
])  # fmt: skip
def test_errors_are_those_of_cpu(bad):
    with pytest.raises(Exception) as expected:
        bad(torch.zeros(4, 6))
    with pytest.raises(type(expected.value)):
        bad(torch.zeros(4, 6, device="tpu"))


@pytest.mark.parametrize("f", [
    lambda t: t[:, :1].t().view(1, 2, 1), lambda t: t[:, 0].reshape(2), lambda t: t[:1, :1].flatten(-2),
    lambda t: t[:0, 0].reshape(0), lambda t: t[:, :1].view(2, 1, 1), lambda t: t[1:, None, 1:].reshape(1, 1, -1),
    lambda t: torch.einsum("...k,kn->n...", t[:1, None], t.t().contiguous()), lambda t: t[:, :1].view(-1),
    lambda t: t[0].view(1, -1), lambda t: t[:0].view(0, 5), lambda t: t[1:].unflatten(0, (1, 1)),
])  # fmt: skip
def test_strides_of_dimensions_of_one_element(f):
    """They are PyTorch's too: layouts of later results are made of them."""
    host = torch.arange(6.0).view(2, 3)[:, :2]
    got, expected = f(torch.arange(6.0, device="tpu").view(2, 3)[:, :2]), f(host)
    assert got.shape == expected.shape and got.stride() == expected.stride() and torch.equal(got.cpu(), expected)


def test_views_share_programs_over_offsets():
    t = torch.zeros(50, 8, device="tpu")
    t[1].add_(t[2])
    made = torch.tpu.compiler.stats()["programs"]
    for i in range(2, 40):
        t[i].add_(t[i + 1])
    assert torch.tpu.compiler.stats()["programs"] == made
