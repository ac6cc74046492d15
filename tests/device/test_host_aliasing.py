"""Host memory: never shared with the device by accident, in either direction."""

import numpy as np
import pytest
import torch

SIZES = [1, 7, 64, 4096, 100_003]
INTO = {
    "to": lambda t: t.to("tpu"), "non_blocking": lambda t: t.to("tpu", non_blocking=True),
    "copy_": lambda t: torch.empty_like(t, device="tpu").copy_(t),
    "tensor": lambda t: torch.tensor(t.numpy(), device="tpu"),
    "from_numpy": lambda t: torch.from_numpy(t.numpy()).to("tpu"), "pinned": lambda t: t.pin_memory().to("tpu"),
    "asarray": lambda t: torch.asarray(t.numpy(), device="tpu"),
    "as_tensor": lambda t: torch.as_tensor(t, device="tpu"),
    "copy_ into a part": lambda t: torch.zeros(2, t.numel(), device="tpu")[1].copy_(t, non_blocking=True),
    "Parameter": lambda t: torch.nn.Parameter(t).to("tpu").data,
}  # fmt: skip


@pytest.mark.parametrize("into", INTO.values(), ids=INTO)
@pytest.mark.parametrize("n", SIZES)
def test_changing_the_host_tensor_changes_nothing(into, n):
    host = torch.arange(float(n))
    there = into(host)
    host.fill_(-1)
    assert torch.equal(there.detach().cpu(), torch.arange(float(n)))


OUT = {
    "cpu": lambda t: t.cpu(), "to": lambda t: t.to("cpu"), "numpy": lambda t: torch.from_numpy(t.cpu().numpy()),
    "copy_": lambda t: torch.empty(t.shape).copy_(t), "non_blocking": lambda t: t.to("cpu", non_blocking=True),
    "of a view": lambda t: t.view(-1).cpu(),
}  # fmt: skip


@pytest.mark.parametrize("out", OUT.values(), ids=OUT)
@pytest.mark.parametrize("n", SIZES)
def test_what_comes_back_is_writable_and_independent(out, n):
    there = torch.arange(float(n)).to("tpu")
    host = out(there)
    assert host.numpy().flags.writeable
    host.fill_(-5)
    host.numpy()[...] = -7
    assert torch.equal(there.cpu(), torch.arange(float(n)))
    again = out(there)
    there.add_(1)
    torch.tpu.synchronize()
    assert torch.equal(again, torch.arange(float(n)))


def test_numpy_of_a_device_tensor_is_refused():
    with pytest.raises(TypeError, match=r"(?i)can't convert tpu.* device type tensor to numpy|host memory"):
        torch.ones(2, device="tpu").numpy()
    assert np.asarray(torch.ones(2, device="tpu").cpu()).tolist() == [1, 1]
    assert torch.ones(2, device="tpu").numpy(force=True).tolist() == [1, 1]


def test_clones_do_not_share():
    t = torch.ones(4, device="tpu")
    c = t.clone()
    t.add_(1)
    assert c.tolist() == [1] * 4
    c.mul_(5)
    assert t.tolist() == [2] * 4 and c.tolist() == [5] * 4
    d = torch.empty_like(t).copy_(t)
    t.zero_()
    assert d.tolist() == [2] * 4


def test_strided_sources():
    base = torch.arange(24.0).view(2, 3, 4)
    for view in (base.t() if base.ndim == 2 else base.transpose(0, 2), base[:, 1], base[..., ::2],
    base.permute(2, 0, 1),
                 base[0].expand(5, 3, 4), base[:, :0], base.flip(0), base[1, 2, 3]):  # fmt: skip
        there = view.to("tpu")
        assert torch.equal(there.cpu(), view) and there.stride() == view.to("cpu", copy=True).stride()
    z = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(z.conj().to("tpu").cpu(), z.conj()) and torch.equal(z.imag.neg().to("tpu").cpu(), z.imag.neg())


def test_dlpack_and_lists():
    assert torch.tensor([[1, 2], [3, 4]], device="tpu").tolist() == [[1, 2], [3, 4]]
    assert torch.tensor(np.float64(2.5), device="tpu").dtype == torch.float64
    assert torch.tensor([torch.tensor(1, device="tpu"), 2], device="tpu").tolist() == [1, 2]
    assert torch.from_numpy(np.arange(3, dtype=np.uint16)).to("tpu").tolist() == [0, 1, 2]
    assert np.array(torch.ones(2, device="tpu").tolist()).tolist() == [1, 1]
