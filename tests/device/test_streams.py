"""Streams: one queue a device, with the whole of the interface."""

import pytest
import torch


def test_streams():
    s, default = torch.tpu.Stream(), torch.tpu.default_stream()
    assert torch.tpu.current_stream() == default and s.device == torch.device("tpu:0")
    with torch.tpu.stream(s):
        assert torch.tpu.current_stream() is s
        x = torch.ones(4, device="tpu") * 2
        with torch.tpu.stream(None):
            assert torch.tpu.current_stream() is s
    assert torch.tpu.current_stream() == default
    default.wait_stream(s)
    event = s.record_event()
    default.wait_event(event)
    x.record_stream(s)
    s.synchronize()
    assert s.query() and event.query() and x.tolist() == [2] * 4
    with s:
        assert torch.tpu.current_stream() is s
    torch.tpu.set_stream(s)
    assert torch.tpu.current_stream() is s
    torch.tpu.set_stream(default)
    assert "tpu:0" in repr(s) and isinstance(hash(s), int)
    assert isinstance(s.stream_id, int) and s.device_index == 0


def test_accelerator_streams():
    s = torch.tpu.Stream()
    before = torch.accelerator.current_stream()
    torch.accelerator.set_stream(s)
    assert torch.accelerator.current_stream() is s
    torch.accelerator.set_stream(before)
    torch.accelerator.synchronize()


def test_generic_stream_and_event():
    s = torch.Stream(device="tpu")
    assert s.device.type == "tpu"
    with s:
        x = torch.ones(2, device="tpu") + 1
    e = torch.Event(device="tpu", enable_timing=True)
    e.record(s)
    e.synchronize()
    s.wait_event(e)
    s.synchronize()
    assert e.query() and s.query() and x.tolist() == [2, 2]


def test_errors():
    with pytest.raises(IndexError):
        torch.tpu.Stream(3)
    with pytest.raises(ValueError, match="expected a tpu device"):
        torch.tpu.Stream("cpu")
