"""Graphs are rewritten where one operator can do what several do: results stay, nodes go."""

import pytest
import torch
from torch.nn import functional as F

from torch_tpu.compile import rewrite


def repeated(x, n):
    b, h, t, d = x.shape
    return x[:, :, None, :, :].expand(b, h, n, t, d).reshape(b, h * n, t, d)


def attend(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4), attn_mask=mask)


def count(monkeypatch, name):
    found, original = [], getattr(rewrite, name)
    monkeypatch.setattr(rewrite, name, lambda node: (found.append(original(node)), found[-1])[1])
    return found


@pytest.mark.parametrize("masked", [False, True])
def test_repeated_heads_of_keys_are_not_copied(monkeypatch, masked):
    torch._dynamo.reset()
    forward, backward = count(monkeypatch, "_group_forward"), count(monkeypatch, "_group_backward")
    q, k, v = torch.randn(2, 8, 6, 16), torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 16)
    mask = torch.rand(2, 1, 6, 6) > 0.3 if masked else None

    def run(device, fn):
        args = [t.detach().to(device).requires_grad_() for t in (q, k, v)]
        out = fn(*args, *([mask.to(device)] if masked else []))
        out.square().sum().backward()
        return [out.detach().cpu(), *(a.grad.cpu() for a in args)]

    expected = run("cpu", attend)
    for got, want in zip(run("tpu", torch.compile(attend, fullgraph=True)), expected, strict=True):
        torch.testing.assert_close(got, want)
    assert any(forward) and any(backward)


def test_heads_in_another_order_are_left_alone(monkeypatch):
    """``repeat`` puts whole sets of heads one after the other: no group."""
    torch._dynamo.reset()
    forward = count(monkeypatch, "_group_forward")

    def tiled(q, k, v):
        return F.scaled_dot_product_attention(q, k.repeat(1, 4, 1, 1), v.repeat(1, 4, 1, 1))

    args = torch.randn(2, 8, 6, 16), torch.randn(2, 2, 6, 16), torch.randn(2, 2, 6, 16)
    got = torch.compile(tiled, fullgraph=True)(*(a.to("tpu") for a in args))
    torch.testing.assert_close(got.cpu(), tiled(*args))
    assert forward and not any(forward)


def put(cache, at, new):
    return cache.index_copy(1, torch.arange(new.shape[1], device=cache.device) + at, new)


def test_consecutive_rows_are_one_block(monkeypatch):
    torch._dynamo.reset()
    found = count(monkeypatch, "_consecutive_rows")
    cache, new = torch.randn(2, 10, 3), torch.randn(2, 4, 3)
    compiled = torch.compile(put, fullgraph=True)
    for at in (0, 3, 6):
        got = compiled(cache.to("tpu"), torch.tensor(at, device="tpu"), new.to("tpu"))
        assert torch.equal(got.cpu(), put(cache, torch.tensor(at), new))
    assert any(found)
    with pytest.raises(IndexError, match="index 10 is out of bounds for dimension 1 with size 10"):
        compiled(cache.to("tpu"), torch.tensor(7, device="tpu"), new.to("tpu")).cpu()


def test_rows_at_a_tensor_of_positions_are_scattered(monkeypatch):
    torch._dynamo.reset()
    found = count(monkeypatch, "_consecutive_rows")
    cache, new, at = torch.randn(2, 10, 3), torch.randn(2, 4, 3), torch.tensor([7, 0, 3, 1])
    got = torch.compile(put, fullgraph=True)(cache.to("tpu"), at.to("tpu"), new.to("tpu"))
    assert torch.equal(got.cpu(), put(cache, at, new)) and not any(found)
