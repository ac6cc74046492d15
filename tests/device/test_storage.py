"""Storages: made, sized, read, shared and exchanged from Python, where PyTorch's code would crash or read nothing."""

import copy
import itertools

import pytest
import torch


def test_made_by_size_and_by_list():
    s = torch.UntypedStorage(12, device="tpu")
    assert len(s) == s.nbytes() == s.size() == 12 and s.device == torch.device("tpu:0")
    assert s.tolist() == [0] * 12 and s.device.type == "tpu" and s.is_tpu if hasattr(s, "is_tpu") else True
    assert torch.UntypedStorage([1, 2, 3], device="tpu").tolist() == [1, 2, 3]
    assert torch.UntypedStorage(0, device="tpu").tolist() == []
    assert torch.UntypedStorage(4).device.type == "cpu" and torch.UntypedStorage([5]).tolist() == [5]
    with pytest.raises(IndexError):
        torch.UntypedStorage(4, device="tpu:5")


@pytest.mark.parametrize("size", [-1, 2.5, "x"])
def test_made_of_nonsense(size):
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        torch.UntypedStorage(size, device="tpu")


def test_items():
    t = torch.tensor([1, 256, -1], dtype=torch.int32, device="tpu")
    s = t.untyped_storage()
    assert s[0] == 1 and s[5] == 1 and s[-1] == 255
    assert s[4:8].tolist() == [0, 1, 0, 0]
    assert list(s)[:4] == [1, 0, 0, 0]
    s[0] = 7
    assert t.tolist() == [7, 256, -1]
    s.fill_(0)
    assert t.tolist() == [0, 0, 0]
    with pytest.raises(IndexError):
        s[99]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.uint8])
def test_resize(dtype):
    t = torch.ones(4, dtype=dtype, device="tpu")
    s = t.untyped_storage()
    size = t.element_size()
    s.resize_(8 * size)
    assert s.nbytes() == len(s) == 8 * size and t.tolist() == [1] * 4
    grown = torch.empty(0, dtype=dtype, device="tpu").set_(s, 0, (8,))
    assert grown[:4].tolist() == [1] * 4
    s.resize_(2 * size)
    assert s.nbytes() == 2 * size
    with pytest.raises((RuntimeError, IndexError)):
        t.tolist()
    before = torch.tpu.memory_allocated()
    s.resize_(0)
    assert s.nbytes() == 0 and torch.tpu.memory_allocated() <= before
    s.resize_(4 * size)
    t.copy_(torch.ones(4))
    assert t.tolist() == [1] * 4


def test_resize_as_fsdp_uses_it():
    t = torch.randn(256, 256).to("tpu")
    kept = t.cpu()
    held = torch.tpu.memory_allocated()
    nbytes = t.untyped_storage().nbytes()
    t.untyped_storage().resize_(0)
    assert held - torch.tpu.memory_allocated() == nbytes
    t.untyped_storage().resize_(nbytes)
    t.copy_(kept)
    assert torch.equal(t.cpu(), kept) and torch.tpu.memory_allocated() == held


def test_addresses_are_unique_and_shared_by_views():
    a, b = torch.ones(4, device="tpu"), torch.ones(4, device="tpu")
    empty = torch.empty(0, device="tpu")
    assert len({a.data_ptr(), b.data_ptr()}) == 2 and a.data_ptr() != 0
    assert a.data_ptr() == a.view(2, 2).data_ptr() == a.detach().data_ptr() == torch.nn.Parameter(a).data_ptr()
    assert a[1:].data_ptr() == a.data_ptr() + 4
    assert a.untyped_storage().data_ptr() == a[1:].untyped_storage().data_ptr()
    assert a.clone().data_ptr() != a.data_ptr()
    assert empty.numel() == 0 and isinstance(empty.data_ptr(), int)
    many = [torch.empty(3, device="tpu") for _ in range(1000)]
    assert len({t.data_ptr() for t in many}) == 1000


def test_addresses_do_not_overlap():
    ts = [torch.empty(n, dtype=torch.uint8, device="tpu") for n in (0, 1, 511, 512, 513, 10**6, 3, 2**33)]
    spans = sorted((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in ts)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))


def test_copy_between_storages():
    a = torch.arange(4.0, device="tpu")
    s = torch.UntypedStorage(16, device="tpu")
    s.copy_(a.untyped_storage())
    assert torch.empty(0, device="tpu").set_(s, 0, (4,)).tolist() == [0, 1, 2, 3]
    host = torch.UntypedStorage(16)
    host.copy_(a.untyped_storage())
    assert torch.empty(0).set_(host, 0, (4,)).tolist() == [0, 1, 2, 3]
    s.fill_(0)
    s.copy_(host)
    assert torch.empty(0, device="tpu").set_(s, 0, (4,)).tolist() == [0, 1, 2, 3]


def test_moves_and_copies():
    a = torch.arange(3.0, device="tpu")
    s = a.untyped_storage()
    down = s.cpu()
    assert down.device.type == "cpu" and down.tolist() == torch.arange(3.0).untyped_storage().tolist()
    up = down.to(device="tpu") if hasattr(down, "to") else down.tpu()
    assert up.device.type == "tpu" and up.tolist() == down.tolist()
    for made in (s.clone(), copy.copy(s), copy.deepcopy(s)):
        assert made.device.type == "tpu" and made.tolist() == s.tolist()
    clone = s.clone()
    a.zero_()
    assert sum(clone.tolist()) and not sum(s.tolist())
    assert s.new().nbytes() == 0
    assert not s.is_shared() and not s.is_pinned() if hasattr(s, "is_pinned") else True
    with pytest.raises(RuntimeError, match="shared memory"):
        s.share_memory_()
    with pytest.raises(RuntimeError, match="shared memory"):
        a.share_memory_()


def test_typed_storage():
    with pytest.warns(UserWarning, match="TypedStorage is deprecated"):
        s = torch.arange(3.0, device="tpu").storage()
    assert s.dtype == torch.float32 and s.device.type == "tpu" and len(s) == 3
    assert s.tolist() == [0, 1, 2] and s[1] == 1.0
    s[1] = 5.0
    assert s.tolist() == [0, 5, 2]
    assert s.cpu().tolist() == [0, 5, 2] and s.nbytes() == 12
    s.resize_(5)
    assert len(s) == 5


def test_set_forms():
    base = torch.arange(6.0, device="tpu")
    t = torch.empty(0, device="tpu")
    t.set_(base)
    assert t.tolist() == base.tolist() and t.is_set_to(base)
    t.set_(base.untyped_storage(), 2, (2, 2), (2, 1))
    t[0, 0] = 9
    assert t.tolist() == [[9, 3], [4, 5]] and base[2] == 9 and t.storage_offset() == 2
    t.set_(base.untyped_storage())
    assert t.shape == (6,)
    t.set_()
    assert t.numel() == 0 and base[2] == 9
    with pytest.raises(RuntimeError, match="storage"):
        torch.empty(0, device="tpu").set_(base.untyped_storage(), 0, (7,))
    with pytest.raises(RuntimeError):
        torch.empty(0, device="tpu").set_(torch.arange(3.0).untyped_storage())
    with pytest.raises(RuntimeError):
        torch.empty(0).set_(base.untyped_storage())


def test_resize_of_tensors():
    t = torch.arange(4.0, device="tpu")
    t.resize_(2, 3)
    assert t.shape == (2, 3) and t.flatten()[:4].tolist() == [0, 1, 2, 3] and t.untyped_storage().nbytes() == 24
    t.resize_(2)
    assert t.tolist() == [0, 1] and t.untyped_storage().nbytes() == 24
    t.resize_as_(torch.empty(1, 2, device="tpu"))
    assert t.shape == (1, 2)
    v = torch.arange(6.0, device="tpu")[2:]
    v.resize_(2, 2)
    assert v.tolist() == [[2, 3], [4, 5]]
    with pytest.raises(RuntimeError):
        torch.ones(2, device="tpu", requires_grad=True).resize_(3)


def test_resize_keeps_the_other_views():
    base = torch.arange(4.0, device="tpu")
    view = base[1:3]
    base.resize_(100)
    base[1] = 7
    assert view.tolist() == [7, 2]


def test_a_storage_made_by_another_route_finds_its_data():
    t = torch.arange(4.0, device="tpu")
    s = t.untyped_storage()
    made = torch._C._construct_storage_from_data_pointer(s.data_ptr(), s.device, s.nbytes())
    alias = torch.empty(0, device="tpu").set_(made, 0, (4,))
    alias.add_(1)
    assert t.tolist() == alias.tolist() == [1, 2, 3, 4]
    stray = torch._C._construct_storage_from_data_pointer(0x1234567, s.device, 16)
    with pytest.raises(RuntimeError, match="has no data"):
        torch.empty(0, device="tpu").set_(stray, 0, (4,)).tolist()


def test_nbytes_of_views_and_strides():
    for t in (torch.empty(3, 4), torch.empty(3, 4).t(), torch.empty_strided((2, 3), (7, 2)), torch.empty(4, 3)[1:],
              torch.empty(2, 3, 4, 5, memory_format=torch.channels_last), torch.empty(0, 5),
              torch.empty(())):  # fmt: skip
        d = torch.empty_strided(t.shape, t.stride(), device="tpu")
        assert d.stride() == t.stride() and d.untyped_storage().nbytes() >= d.numel() * 4
        assert d.nbytes == t.nbytes and d.element_size() == 4


@pytest.mark.parametrize("dtype", [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.float64, torch.int8, torch.int16,
])  # fmt: skip
def test_storages_of_every_type(dtype):
    t = torch.ones(2, 3).to(dtype).to("tpu")
    assert t.untyped_storage().nbytes() == 6 * dtype.itemsize
    assert t.untyped_storage().tolist() == torch.ones(2, 3).to(dtype).untyped_storage().tolist()
    assert t.view(torch.uint8).cpu().tolist() == torch.ones(2, 3).to(dtype).view(torch.uint8).tolist()
