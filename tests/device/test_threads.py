"""Threads: many that make tensors, compile and run programs, and differentiate, at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch


def in_threads(n, f):
    barrier = threading.Barrier(n)

    def body(i):
        barrier.wait()
        return f(i)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(body, range(n)))


def test_making_and_computing():
    def f(i):
        t = torch.full((16,), float(i), device="tpu")
        for _ in range(50):
            t = t + 1
            t.mul_(1)
            s = t[i % 8 :].sum()
        return t.tolist() == [i + 50.0] * 16 and s.item() == (16 - i % 8) * (i + 50.0)

    assert all(in_threads(8, f))


def test_the_same_shapes_made_at_once_have_their_own_data():
    def f(i):
        kept = [torch.full((5,), float(i * 1000 + k)).to("tpu") for k in range(200)]
        addresses = [t.data_ptr() for t in kept]
        return all(t.tolist() == [i * 1000.0 + k] * 5 for k, t in enumerate(kept)), addresses

    results = in_threads(8, f)
    assert all(ok for ok, _ in results)
    assert len({a for _, addresses in results for a in addresses}) == 1600


def test_compiling_the_same_program_at_once():
    x = torch.ones(3, 7, device="tpu")
    made = torch.tpu.compiler.stats()["programs"]
    results = in_threads(8, lambda i: (x.sinh() + 1.2345).sum(1).tolist())
    assert all(r == results[0] for r in results)
    assert torch.tpu.compiler.stats()["programs"] - made <= 3


def test_autograd_in_threads():
    def f(i):
        w = torch.full((4, 4), float(i + 1), device="tpu", requires_grad=True)
        for _ in range(5):
            w.grad = None
            (w * w).sum().backward()
        return w.grad.tolist() == [[2.0 * (i + 1)] * 4] * 4

    assert all(in_threads(6, f))


def test_autograd_over_one_graph_from_two_threads():
    w = torch.ones(4, device="tpu", requires_grad=True)
    in_threads(4, lambda i: (w * (i + 1)).sum().backward())
    assert w.grad.tolist() == [10.0] * 4


def test_grad_mode_and_autocast_are_the_threads_own():
    x = torch.ones(2, 2, device="tpu", requires_grad=True)

    def f(i):
        if i % 2:
            with torch.no_grad(), torch.autocast("tpu"):
                return [((x @ x).requires_grad, (x @ x).dtype) for _ in range(20)]
        return [((x @ x).requires_grad, (x @ x).dtype) for _ in range(20)]

    for i, r in enumerate(in_threads(4, f)):
        assert set(r) == {(not i % 2, torch.bfloat16 if i % 2 else torch.float32)}


def test_loading_weights_from_four_threads():
    host = [torch.randn(64, 64) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        there = list(pool.map(lambda t: t.to("tpu", torch.bfloat16), host))
    assert all(torch.equal(a.bfloat16(), b.cpu()) for a, b in zip(host, there))


def test_tensors_dropped_in_other_threads():
    before = torch.tpu.memory_allocated()

    def f(i):
        for k in range(100):
            t = torch.ones(100 + k, device="tpu")
            v = t[1:]
            del t, v
        return True

    assert all(in_threads(6, f)) and torch.tpu.memory_allocated() == before


def test_reading_while_another_thread_writes_gives_whole_values():
    t = torch.zeros(1000, device="tpu")
    stop = threading.Event()
    seen = []

    def reader():
        while not stop.is_set():
            v = t.cpu()
            seen.append(bool((v == v[0]).all()))

    thread = threading.Thread(target=reader)
    thread.start()
    for _ in range(200):
        t.add_(1)
    stop.set()
    thread.join()
    assert seen and all(seen) and t[0].item() == 200
