"""Device objects and the current device: forms, indices, contexts, defaults, and more than one device."""

import pytest
import torch

from device.support import run

FORMS = ["tpu", "tpu:0", torch.device("tpu"), torch.device("tpu", 0), torch.device(type="tpu", index=0), 0]


# Symptom: `t.to(1)` / `.to("tpu:0")` / `.to(torch.device("tpu", 0))` mean what they mean for CUDA.
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_names_the_device(form):
    for t in (torch.ones(2).to(form), torch.ones(2, device=form), torch.tensor([1.0, 1.0], device=form)):
        assert t.device == torch.device("tpu:0") and t.is_tpu and t.get_device() == 0
        assert t.tolist() == [1, 1]


@pytest.mark.parametrize("move", [
    lambda t: t.tpu(), lambda t: t.tpu(0), lambda t: t.to(device="tpu"), lambda t: t.to("tpu", torch.float32),
    lambda t: t.to(torch.ones(1, device="tpu")), lambda t: t.to("tpu", non_blocking=True),
    lambda t: t.to("tpu", copy=True), lambda t: t.type_as(torch.ones(1, device="tpu")),
    lambda t: torch.empty_like(t, device="tpu").copy_(t), lambda t: torch.asarray(t, device="tpu"),
])  # fmt: skip
def test_moves(move):
    t = torch.arange(6.0).view(2, 3)
    moved = move(t)
    assert moved.device == torch.device("tpu:0") and moved.tolist() == t.tolist() and moved.is_contiguous()


def test_to_the_same_device_is_the_tensor_itself():
    t = torch.ones(2, device="tpu")
    assert t.to("tpu") is t and t.to("tpu:0") is t and t.to(0) is t and t.tpu() is t
    assert t.to("tpu", copy=True) is not t
    assert t.cpu().cpu().device.type == "cpu" and not t.cpu().is_tpu


@pytest.mark.parametrize("bad", [1, "tpu:1", torch.device("tpu", 1), 99])
def test_an_index_that_is_not_there(bad):
    for call in (lambda: torch.ones(2).to(bad), lambda: torch.empty(2, device=bad)):
        with pytest.raises(IndexError, match=r"this process has 1 device\(s\), tpu:0 to tpu:0"):
            call()
    with pytest.raises(IndexError):
        torch.tpu.set_device(bad)
    assert torch.tpu.current_device() == 0


@pytest.mark.parametrize("bad, error", [("tpux", RuntimeError), ("tpu:-1", RuntimeError), ("tpu:x", RuntimeError)])
def test_strings_that_name_no_device(bad, error):
    with pytest.raises(error):
        torch.ones(2).to(bad)


def test_context_and_current_device():
    with torch.device("tpu"):
        assert torch.ones(2).device.type == "tpu"
        assert torch.nn.Linear(2, 2).weight.device.type == "tpu"
        assert torch.tensor([1]).device.type == "tpu"
        assert torch.ones(2, device="cpu").device.type == "cpu"
    assert torch.ones(2).device.type == "cpu"
    with torch.tpu.device(0), torch.tpu.device("tpu:0"), torch.tpu.device(None), torch.tpu.device(-1):
        assert torch.tpu.current_device() == 0
    with torch.tpu.device_of(torch.ones(1, device="tpu")), torch.tpu.device_of(torch.ones(1)):
        assert torch.tpu.current_device() == 0
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        torch.tpu.set_device("cpu")


def test_set_default_device():
    torch.set_default_device("tpu")
    try:
        assert torch.get_default_device().type == "tpu"
        assert torch.zeros(3).device.type == "tpu"
        assert torch.arange(3).device.type == "tpu"
        assert torch.nn.Linear(2, 3)(torch.ones(1, 2)).device.type == "tpu"
    finally:
        torch.set_default_device(None)
    assert torch.zeros(3).device.type == "cpu"


def test_properties():
    assert torch.tpu.is_available() and torch.tpu.device_count() == 1
    p = torch.tpu.get_device_properties(0)
    assert p.total_memory > 2**20 and p.multi_processor_count >= 1 and p.platform in ("cpu", "tpu", "cuda")
    assert p.name == torch.tpu.get_device_name() == torch.tpu.get_device_name("tpu:0")
    assert torch.bfloat16 in torch.tpu.get_device_capability()["supported_dtypes"]
    assert torch.tpu.is_bf16_supported() and torch.bfloat16 in torch.tpu.get_amp_supported_dtype()
    assert torch.get_device_module("tpu") is torch.tpu
    assert torch.utils.backend_registration._get_custom_mod_func("is_available")()


def test_accelerator():
    a = torch.accelerator
    assert a.is_available() and a.current_accelerator() == torch.device("tpu") and a.device_count() == 1
    assert a.current_device_index() == 0
    a.set_device_index(0)
    a.set_device_index(torch.device("tpu", 0))
    with a.device_index(0):
        assert a.current_device_index() == 0
    with pytest.raises(IndexError):
        a.set_device_index(1)
    a.synchronize()
    a.synchronize("tpu")
    assert torch.float32 in a.get_device_capability()["supported_dtypes"]


def test_like_functions_and_new_stay_on_the_device():
    t = torch.ones(2, 3, device="tpu")
    for made in (torch.zeros_like(t), torch.empty_like(t), t.new_zeros(2), t.new_tensor([1.0]), t.new_full((2,), 3.0),
                 t.new_empty(3), torch.full_like(t, 2)):  # fmt: skip
        assert made.device == t.device
    assert torch.zeros_like(t, device="cpu").device.type == "cpu"


def test_two_devices():
    run(
        """
        import threading, torch
        assert torch.tpu.device_count() == torch.accelerator.device_count() == 2
        a = torch.arange(4.0, device="tpu:1", requires_grad=True)
        b = torch.arange(4.0, device="tpu:0")
        assert a.device.index == 1 and (a * 2).device == torch.device("tpu:1")
        (a * a).sum().backward()
        assert a.grad.device == a.device and a.grad.tolist() == [0, 2, 4, 6]
        try:
            a + b
        except RuntimeError as e:
            assert "tpu:0" in str(e) and "tpu:1" in str(e), e
        else:
            raise SystemExit("no error")
        assert b.to(1).device.index == 1 and b.to(1).tolist() == [0, 1, 2, 3]
        assert b.to("tpu:1").add(a.detach()).tolist() == [0, 2, 4, 6]
        c = torch.zeros(4, device="tpu:1")
        c.copy_(b)
        assert c.tolist() == [0, 1, 2, 3] and c.device.index == 1
        # A graph over both devices.
        w0 = torch.ones(4, device="tpu:0", requires_grad=True)
        w1 = torch.ones(4, device="tpu:1", requires_grad=True)
        ((w0 * 3).to("tpu:1") * w1).sum().backward()
        assert w0.grad.device.index == 0 and w0.grad.tolist() == [3] * 4
        assert w1.grad.device.index == 1 and w1.grad.tolist() == [3] * 4
        # The current device, for each thread.
        with torch.tpu.device(1):
            assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 1
            assert torch.empty(1, device="tpu").device.index == 1
            assert torch.ones(1).tpu().device.index == 1
            host = torch.ones(1)
            for made in (host.to("tpu"), host.to(device="tpu"), host.to(torch.device("tpu")),
            torch.tensor(1, device="tpu"),
                         torch.as_tensor([1], device="tpu"), torch.asarray([1], device="tpu"), b.to("tpu"),
                         host.new_tensor([1], device="tpu"), torch.zeros_like(host, device="tpu"),
                         torch.nn.Linear(2, 2).to("tpu").weight, torch.nn.Linear(2, 2, device="tpu").weight):
                assert made.device.index == 1
            seen = []
            t = threading.Thread(target=lambda: seen.append(torch.ones(1, device="tpu").device.index))
            t.start(); t.join()
            assert seen == [0]
        assert torch.empty(1, device="tpu").device.index == 0
        with torch.accelerator.device_index(1):
            assert torch.zeros(2, device="tpu").device.index == 1
        with torch.tpu.device_of(a):
            assert torch.tpu.current_device() == 1
        m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).to("tpu:1")
        o = torch.optim.AdamW(m.parameters(), lr=0.001)
        first = None
        for _ in range(5):
            o.zero_grad()
            loss = m(torch.ones(2, 4, device="tpu:1")).pow(2).mean()
            loss.backward(); o.step()
            first = first or loss.item()
        assert loss.item() < first and loss.device.index == 1
        assert torch.tpu.memory_allocated(1) > 0
        s = torch.tpu.Stream(1)
        with torch.tpu.stream(s):
            assert torch.tpu.current_device() == 1
        assert torch.tpu.current_device() == 0
        g = torch.Generator(device="tpu:1")
        assert g.device == torch.device("tpu:1") and len(torch.tpu.default_generators) == 2
        torch.tpu.synchronize(1); torch.tpu.synchronize("tpu:0")
        import io
        f = io.BytesIO(); torch.save(a.detach(), f)
        f.seek(0); assert torch.load(f).device.index == 1
        f.seek(0); assert torch.load(f, map_location="tpu:0").device.index == 0
        f.seek(0); assert torch.load(f, map_location={"tpu:1": "tpu:0"}).device.index == 0
        """,
        TORCH_TPU_NUM_CPU_DEVICES="2",
    )
