"""Pinned host memory and ``DataLoader``, with and without workers."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return {"x": torch.full((3,), float(i)), "y": i * i}


def test_pinned_tensors():
    t = torch.arange(6.0).view(2, 3).t()
    p = t.pin_memory()
    assert not t.is_pinned() and p.is_pinned() and torch.equal(p, t) and p.stride() == t.stride()
    assert p.to("tpu", non_blocking=True).tolist() == t.tolist()
    assert p.pin_memory().is_pinned() and not p.clone().is_pinned()
    p[0, 0] = 9
    assert t[0, 0] == 0
    assert p.view(-1)[1:].is_pinned() if p.is_contiguous() else p[1:].is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(1, device="tpu").pin_memory()
    assert not torch.ones(1, device="tpu").is_pinned()
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="tpu", pin_memory=True)


def test_pinned_storage_and_containers():
    s = torch.arange(4.0).untyped_storage().pin_memory()
    assert s.is_pinned() and s.nbytes() == 16
    from torch.utils.data._utils.pin_memory import pin_memory

    got = pin_memory({"a": [torch.ones(1)], "b": (torch.zeros(1), "text")})
    assert got["a"][0].is_pinned() and got["b"][0].is_pinned() and got["b"][1] == "text"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_loader(workers, pin):
    torch.ones(1, device="tpu").add_(1)  # the device is in use before workers are forked
    kw = {"persistent_workers": True} if workers else {}
    loader = DataLoader(Squares(), batch_size=4, num_workers=workers, pin_memory=pin, **kw)
    for _ in range(2):
        seen = []
        for batch in loader:
            assert batch["x"].is_pinned() == pin
            x, y = batch["x"].to("tpu", non_blocking=True), batch["y"].to("tpu", non_blocking=True)
            assert torch.equal((x[:, 0] ** 2).cpu(), y.cpu().float())
            seen += y.tolist()
        assert seen == [i * i for i in range(10)]


def test_spawned_workers():
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    assert [b[0].to("tpu").sum().item() for b in loader] == [6, 22]


def test_a_dataset_on_the_device():
    data = TensorDataset(torch.arange(8.0, device="tpu"), torch.arange(8, device="tpu"))
    out = [(x.tolist(), y.device.type) for x, y in DataLoader(data, batch_size=4)]
    assert out == [([0, 1, 2, 3], "tpu"), ([4, 5, 6, 7], "tpu")]


def test_shuffling_with_a_generator():
    order = [
        b.tolist() for b in DataLoader(torch.arange(8), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    ]
    again = [
        b.tolist() for b in DataLoader(torch.arange(8), 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    ]
    assert order == again


def test_the_device_used_in_a_forked_worker_says_so():
    class Uses(Squares):
        def __getitem__(self, i):
            return torch.ones(1, device="tpu") + i

    torch.ones(1, device="tpu").add_(1)
    with pytest.raises(RuntimeError, match=r"(?s)fork"):
        next(iter(DataLoader(Uses(), num_workers=1, timeout=60)))
