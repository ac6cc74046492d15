"""Events: they really wait, and time what is between them."""

import time

import pytest
import torch


def work(n=400):
    x = torch.ones(n, n, device="tpu") / n
    for _ in range(20):
        x = x @ x
    return x


def test_timing():
    work()  # compiled before it is timed
    torch.tpu.synchronize()
    start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    began = time.perf_counter()
    start.record()
    kept = work()
    end.record()
    end.synchronize()
    wall = (time.perf_counter() - began) * 1000
    assert 0 < start.elapsed_time(end) <= wall * 1.05
    assert kept.shape == (400, 400)


def test_synchronize_waits_for_the_work():
    x = work()
    e = torch.tpu.Event()
    e.record()
    e.synchronize()
    assert e.query()
    assert torch.tpu.current_stream().query()
    e.wait()
    e.wait(torch.tpu.current_stream())
    del x


def test_an_event_that_was_never_recorded():
    e = torch.tpu.Event(enable_timing=True)
    assert e.query()
    e.synchronize()
    with pytest.raises(ValueError, match="must be recorded"):
        e.elapsed_time(torch.tpu.Event(enable_timing=True))


def test_timing_has_to_be_asked_for():
    e = torch.tpu.Event()
    e.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        e.elapsed_time(e)


def test_recorded_again():
    a, b = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    a.record()
    b.record()
    b.synchronize()
    first = a.elapsed_time(b)
    time.sleep(0.05)
    b.record()
    b.synchronize()
    assert a.elapsed_time(b) >= first + 50
    assert "recorded=True" in repr(b)
