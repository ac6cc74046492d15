"""Pickle, deepcopy, ``torch.save`` and ``torch.load`` between tpu and cpu."""

import copy
import io
import pickle

import pytest
import torch

from device.support import run


def saved(obj, **kw):
    f = io.BytesIO()
    torch.save(obj, f, **kw)
    f.seek(0)
    return f


FORMATS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(form, dtype):
    if form == "legacy" and dtype in (torch.float8_e4m3fn, torch.uint16):
        with pytest.raises(AttributeError):  # PyTorch's legacy reader knows no such types, on any device
            torch.load(saved(torch.ones(1, dtype=dtype), **FORMATS[form]), weights_only=True)
        return
    t = torch.tensor([[0.0, 1], [2, 3], [1, 1]]).to(dtype).to("tpu")
    back = torch.load(saved(t, **FORMATS[form]), weights_only=True)
    assert back.device == t.device and back.dtype == dtype
    assert back.cpu().view(torch.uint8).tolist() == t.cpu().view(torch.uint8).tolist()
    assert back.data_ptr() != t.data_ptr()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("location", [
    "cpu", "tpu", "tpu:0", torch.device("cpu"), torch.device("tpu"), {"tpu:0": "cpu"}, {"cpu": "tpu:0"}, None,
    lambda storage, where: storage,
], ids=lambda location: "function" if callable(location) else str(location))  # fmt: skip
@pytest.mark.parametrize("start", ["cpu", "tpu"])
def test_map_location(form, weights_only, location, start):
    t = torch.arange(6.0, device=start)[2:].view(2, 2)
    back = torch.load(saved(t, **FORMATS[form]), map_location=location, weights_only=weights_only)
    expected = torch.load(saved(t.cpu(), **FORMATS[form]), weights_only=weights_only)
    if callable(location):
        target = "cpu"
    elif isinstance(location, dict):
        target = torch.device(location.get("tpu:0" if start == "tpu" else "cpu", start)).type
    else:
        target = start if location is None else torch.device(location).type
    assert back.device.type == target and torch.equal(back.cpu(), expected) and back.storage_offset() == 2


@pytest.mark.parametrize("copy_of", [
    copy.deepcopy, lambda x: torch.load(saved(x)), lambda x: torch.load(saved(x, _use_new_zipfile_serialization=False)),
    lambda x: torch.load(saved(x), map_location="cpu"), lambda x: torch.load(saved(x), mmap=False),
], ids=["deepcopy", "zip", "legacy", "to cpu", "no mmap"])  # fmt: skip
def test_views_stay_views_of_one_storage(copy_of):
    base = torch.arange(12.0, device="tpu").view(3, 4)
    parts = copy_of([base, base[1], base.t(), base[:, 1:3]])
    assert parts[1].tolist() == [4, 5, 6, 7] and parts[2].stride() == (1, 4)
    parts[0][1, 2] = 99
    assert parts[1][2] == 99 and parts[2][2, 1] == 99 and parts[3][1, 1] == 99
    assert base[1, 2] == 6
    assert len({p.untyped_storage().data_ptr() for p in parts}) == 1


def test_pickle():
    t = torch.arange(4.0, device="tpu").requires_grad_()
    back = pickle.loads(pickle.dumps(t))
    assert back.requires_grad and back.device == t.device and back.tolist() == [0, 1, 2, 3] and back.is_leaf
    p = pickle.loads(pickle.dumps(torch.nn.Parameter(torch.ones(2, device="tpu"))))
    assert isinstance(p, torch.nn.Parameter) and p.device.type == "tpu" and p.tolist() == [1, 1]
    assert pickle.loads(pickle.dumps(torch.device("tpu", 0))) == torch.device("tpu:0")


def test_deepcopy():
    t = torch.arange(4.0, device="tpu")
    other = copy.deepcopy(t)
    other.add_(1)
    assert t.tolist() == [0, 1, 2, 3] and other.tolist() == [1, 2, 3, 4]
    shallow = copy.copy(t)
    shallow.add_(1)
    assert t.tolist() == [1, 2, 3, 4]
    leaf = torch.ones(2, device="tpu", requires_grad=True)
    (leaf * 2).sum().backward()
    again = copy.deepcopy(leaf)
    assert again.requires_grad and again.grad.tolist() == [2, 2] and again.grad.data_ptr() != leaf.grad.data_ptr()
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(leaf * 2)


def model():
    m = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4, bias=False))
    m.append(torch.nn.Linear(4, 4, bias=False))
    m[3].weight = m[2].weight
    return m


def test_state_dict():
    m = model().to("tpu")
    back = torch.load(saved(m.state_dict()), weights_only=True)
    assert all(v.device.type == "tpu" for v in back.values())
    assert back["2.weight"].data_ptr() == back["3.weight"].data_ptr()
    other = model()
    other.load_state_dict(back)  # into a module on cpu
    assert torch.equal(other[0].weight, m[0].weight.cpu())
    m.load_state_dict(other.state_dict())
    third = model()
    third.load_state_dict(back, assign=True)
    assert third[0].weight.device.type == "tpu"
    whole = torch.load(saved(m), weights_only=False)
    assert whole[2].weight is whole[3].weight and whole[2].weight.device.type == "tpu"
    deep = copy.deepcopy(m)
    assert deep[2].weight is deep[3].weight and deep[2].weight.data_ptr() != m[2].weight.data_ptr()
    x = torch.ones(2, 3, device="tpu")
    assert torch.equal(deep.eval()(x).cpu(), m.eval()(x).cpu())


def test_optimizer_state():
    m = model().to("tpu")
    opt = torch.optim.AdamW(m.parameters(), lr=0.1)
    m(torch.ones(2, 3, device="tpu")).sum().backward()
    opt.step()
    state = torch.load(saved(opt.state_dict()), map_location="cpu")
    assert state["state"][0]["exp_avg"].device.type == "cpu"
    other = torch.optim.AdamW(m.parameters(), lr=0.1)
    other.load_state_dict(state)
    assert other.state[m[0].weight]["exp_avg"].device.type == "tpu"
    other.step()


def test_files_and_mmap(tmp_path):
    t = torch.arange(1000.0)
    torch.save({"a": t.to("tpu"), "b": t}, tmp_path / "x.pt")
    back = torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu")
    assert torch.equal(back["a"], t) and torch.equal(back["b"], t)
    back = torch.load(tmp_path / "x.pt", mmap=True, map_location="tpu")
    assert back["b"].device.type == "tpu" and torch.equal(back["b"].cpu(), t)


def test_safetensors(tmp_path):
    from safetensors.torch import load_file, save_file

    t = {"a": torch.arange(6.0, device="tpu").view(2, 3), "b": torch.ones(3, dtype=torch.bfloat16, device="tpu")}
    save_file(t, tmp_path / "x.safetensors")
    back = {k: v.to("tpu") for k, v in load_file(tmp_path / "x.safetensors").items()}
    assert back["a"].tolist() == t["a"].tolist() and back["b"].dtype == torch.bfloat16 and back["b"].tolist() == [1] * 3


def test_numpy_through_pickle_and_meta():
    t = torch.load(saved(torch.arange(3, device="tpu")), map_location="meta")
    assert t.device.type == "meta" and t.shape == (3,)


def test_a_file_saved_on_tpu_is_read_by_a_process_without_the_backend(tmp_path):
    torch.save(torch.arange(3.0, device="tpu"), tmp_path / "x.pt")
    run(
        f"import torch; assert torch.load({str(tmp_path / 'x.pt')!r}, map_location='cpu').tolist() == [0, 1, 2]",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_sent_to_another_process():
    """What torch.multiprocessing cannot share is refused with a way out, and .cpu() works."""
    run("""
        import torch, torch.multiprocessing as mp
        def child(q): q.put(q.get() + 1)
        if __name__ == "__main__":
            t = torch.ones(2, device="tpu")
            from multiprocessing.reduction import ForkingPickler
            try:
                ForkingPickler.dumps(t)
            except (RuntimeError, NotImplementedError) as e:
                assert "cpu" in str(e).lower(), e
            else:
                raise SystemExit("no error")
            assert len(ForkingPickler.dumps(t.cpu()))
    """)
