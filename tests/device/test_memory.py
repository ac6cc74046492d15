"""Memory: counters, peaks, and that memory is back as soon as its tensors are gone."""

import gc

import pytest
import torch

MIB = 2**20


def held():
    return torch.tpu.memory_allocated()


def test_a_deleted_tensors_memory_is_back_at_once():
    before = held()
    t = torch.ones(MIB, device="tpu")
    assert held() - before == 4 * MIB
    view = t[5:]
    del t
    assert held() - before == 4 * MIB  # the view keeps it
    del view
    assert held() == before


def test_empty_takes_nothing_until_it_is_used():
    before = held()
    t = torch.empty(2**40, dtype=torch.float16, device="tpu")  # 2 TiB
    assert held() == before and t.shape == (2**40,)
    small = torch.empty(MIB, device="tpu")
    assert held() == before
    small.fill_(1)
    assert held() - before == 4 * MIB


def test_peak():
    torch.tpu.reset_peak_memory_stats()
    base = held()
    assert torch.tpu.max_memory_allocated() == base
    t = torch.ones(MIB, device="tpu")
    del t
    assert held() == base and torch.tpu.max_memory_allocated() == base + 4 * MIB
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == base
    assert torch.tpu.max_memory_reserved() >= 0 and torch.tpu.memory_reserved() >= 0


def test_accumulated():
    torch.tpu.reset_accumulated_memory_stats()
    t = torch.ones(10, device="tpu")
    del t
    s = torch.tpu.memory_stats()
    assert s["allocated_bytes.all.allocated"] == s["allocated_bytes.all.freed"] == 40
    assert s["allocation.all.allocated"] == s["allocation.all.freed"] == 1


@pytest.mark.parametrize("device", [None, 0, "tpu", "tpu:0", torch.device("tpu")], ids=str)
def test_torch_tpu_functions_take_every_form_of_device(device):
    m = torch.tpu
    assert m.memory_allocated(device) == m.memory_stats(device)["allocated_bytes.all.current"]
    assert m.max_memory_allocated(device) >= m.memory_allocated(device)
    free, total = m.mem_get_info(device)
    assert 0 < free <= total
    assert "allocated current" in m.memory_summary(device) and "free" in m.memory_summary(device, abbreviated=True)
    m.reset_peak_memory_stats(device)
    m.reset_accumulated_memory_stats(device)
    m.empty_cache()
    with pytest.raises(IndexError):
        m.memory_allocated(7)


@pytest.mark.parametrize("device", [(), (0,), ("tpu",), (torch.device("tpu", 0),)], ids=str)
def test_torch_accelerator_functions(device):
    a = torch.accelerator
    t = torch.ones(100, device="tpu")
    assert a.memory_allocated(*device) == held() >= t.nbytes
    assert a.max_memory_allocated(*device) >= a.memory_allocated(*device)
    assert a.memory_reserved(*device) >= 0 and a.max_memory_reserved(*device) >= 0
    assert a.memory_stats(*device)["allocated_bytes.all.current"] == held()
    free, total = a.get_memory_info(*device)
    assert 0 < free <= total
    a.reset_peak_memory_stats(*device)
    a.reset_accumulated_memory_stats(*device)
    a.empty_cache()
    a.synchronize(*device)


def test_in_place_and_copies_do_not_leak():
    t = torch.ones(MIB, device="tpu")
    before = held()
    for _ in range(10):
        t.add_(1)
        t[:100].mul_(2)
        t.copy_(t * 2)
    assert held() == before
    t.data = torch.ones(10, device="tpu")
    assert held() == before - 4 * MIB + 40


def test_a_training_loop_does_not_grow():
    m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to("tpu")
    opt = torch.optim.Adam(m.parameters())
    x = torch.ones(4, 8, device="tpu")
    seen = []
    for _ in range(30):
        opt.zero_grad()
        m(x).pow(2).mean().backward()
        opt.step()
        seen.append(held())
    assert len(set(seen[2:])) == 1
    gc.collect()
    tensors = torch.tpu.memory_stats()["allocation.all.current"]
    for _ in range(5):
        opt.zero_grad()
        m(x).pow(2).mean().backward()
        opt.step()
    assert torch.tpu.memory_stats()["allocation.all.current"] == tensors


# Symptom: a deleted model's memory is back at once.
def test_a_deleted_models_memory_is_back():
    before = held()
    m = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)).to("tpu")
    m(torch.ones(4, 256, device="tpu")).sum().backward()
    assert held() > before + 2 * 2 * 256 * 256 * 4
    del m
    gc.collect()
    assert held() == before


def test_the_graphs_memory_is_back_after_backward():
    w = torch.ones(256, 256, device="tpu", requires_grad=True)
    loss = (w.exp().sin() @ w).sum()
    saved = held()
    loss.backward()
    del loss
    w.grad = None
    assert held() < saved
