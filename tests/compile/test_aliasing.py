"""What a compiled graph overwrites, hands through, and returns views of; and what it may donate."""

import pytest
import torch

from compile.support import check, compiled
from torch_tpu.runtime import programs


def ones(*shape):
    return torch.ones(*shape, device="tpu")


def shares(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_inputs_are_overwritten():
    def fn(x, y):
        x.add_(1)
        y[1:].mul_(x[0])
        return x.sum() + y

    check(fn, torch.randn(4), torch.randn(4))


def test_a_view_is_overwritten():
    base = torch.arange(12.0, device="tpu").reshape(3, 4)
    compiled(lambda row, column: [row.mul_(10), column.add_(1)])(base[1], base[:, 0])
    expected = torch.arange(12.0).reshape(3, 4)
    expected[1] *= 10
    expected[:, 0] += 1
    assert base.cpu().tolist() == expected.tolist()


def test_views_of_inputs_are_views():
    run = compiled(lambda x: (x[1:], x.t(), x.view(-1), x))
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    row, turned, flat, same = run(x)
    assert all(shares(v, x) for v in (row, turned, flat, same))
    row.fill_(7)
    turned[0, 0] = -1
    assert x.tolist() == [[-1, 1, 2], [7, 7, 7]] and flat.tolist() == [-1, 1, 2, 7, 7, 7]


def test_a_view_of_an_overwritten_input():
    run = compiled(lambda x: x.mul_(2)[1:])
    x = ones(3)
    y = run(x)
    assert shares(x, y) and y.tolist() == [2, 2] and x.tolist() == [2] * 3
    y.zero_()
    assert x.tolist() == [2, 0, 0]


def test_outputs_that_share_memory():
    def fn(x):
        y = x * 2
        return y, y[0], y.t()

    y, first, turned = compiled(fn)(ones(2, 3))
    first.fill_(5)
    assert y.tolist() == [[5] * 3, [2] * 3] and turned[0].tolist() == [5, 2]


def test_an_input_given_twice():
    run = compiled(lambda a, b: a.add_(1) + b)
    x = ones(3)
    assert run(x, x).tolist() == [4] * 3 and x.tolist() == [2] * 3
    y = ones(3)
    assert run(y, ones(3)).tolist() == [3] * 3


def test_overlapping_inputs():
    run = compiled(lambda a, b: a.add_(1) + b)
    base = torch.arange(4.0, device="tpu")
    assert run(base[:3], base[1:]).tolist() == [0 + 1 + 2, 2 + 3, 3 + 3]
    assert base.tolist() == [1, 2, 3, 3]


@pytest.mark.parametrize("keep", ["clone", "detach", "view", "data", "none"])
def test_what_is_kept_survives_donation(keep):
    run = compiled(lambda cache, x: cache.index_copy_(0, torch.tensor([1], device=x.device), x[None]).sum())
    cache = torch.zeros(4, 3, device="tpu")
    kept = {"clone": cache.clone, "detach": cache.detach, "view": lambda: cache[:2], "data": lambda: cache.data,
            "none": lambda: None}[keep]()  # fmt: skip
    for step in range(1, 4):
        assert run(cache, ones(3) * step).item() == 3 * step
    assert cache[1].tolist() == [3] * 3
    if keep == "clone":
        assert not kept.any()
    elif kept is not None:
        assert shares(kept, cache) and kept[1].tolist() == [3] * 3


def test_state_that_somebody_else_holds_at_first_makes_no_second_program():
    run = compiled(lambda state, x: state.add_(x).sum())
    state = torch.zeros(3, device="tpu")
    kept = state.clone()  # shares the array until one of the two is written
    assert run(state, ones(3)).item() == 3
    with programs.counting() as made:
        assert run(state, ones(3)).item() == 6
    assert made() == 0 and kept.tolist() == [0] * 3


def test_a_result_of_the_old_value():
    run = compiled(lambda x: (x.clone(), x.add_(1), x * 2))
    x = ones(3)
    old, same, twice = run(x)
    assert old.tolist() == [1] * 3 and x.tolist() == [2] * 3 and twice.tolist() == [4] * 3 and shares(same, x)
    assert not shares(old, x)


def test_a_saved_input_that_is_overwritten_is_an_error():
    w = torch.ones(3, device="tpu", requires_grad=True)
    x = ones(3) * 2
    y = compiled(lambda x, w: x * w)(x, w)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_detached_outputs():
    x = torch.ones(3, device="tpu", requires_grad=True)
    a, b = compiled(lambda x: (x * 2, (x * 3).detach()))(x)
    assert a.requires_grad and not b.requires_grad
    a.sum().backward()
    assert x.grad.tolist() == [2] * 3


def test_strides_of_outputs():
    def fn(x):
        return x.permute(2, 0, 1) + 1, x.to(memory_format=torch.contiguous_format).transpose(0, 1).clone()

    x = torch.randn(2, 3, 4)
    for got, expected in zip(compiled(fn)(x.to("tpu")), fn(x)):
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got.cpu(), expected)


def test_offsets_compile_nothing():
    run = compiled(lambda x: x * 2)
    base = torch.arange(32.0, device="tpu")
    run(base[0:4])
    run(base[4:8])
    before = torch.tpu.compiler.stats()["compiled"]
    assert run(base[8:12]).tolist() == [16, 18, 20, 22]
    assert torch.tpu.compiler.stats()["compiled"] == before


def test_a_graph_that_only_writes():
    def fn(x):
        x.zero_()

    x = ones(3)
    assert compiled(fn)(x) is None and x.tolist() == [0] * 3


def test_results_of_overlapping_and_gapped_strides():
    for size, stride in (((2, 3), (1, 1)), ((3, 2, 2), (1, 2, 3)), ((2, 3), (10, 2)), ((5,), (4,)), ((2, 2), (0, 1))):
        got = compiled(lambda x, a=size, b=stride: x.new_empty_strided(a, b))(ones(3))
        assert got.shape == size and got.stride() == stride and not got.any()


def test_a_mask_takes_several_values():
    def fn(x, mask, values):
        x = x.clone()
        x[mask] = values
        return x

    x, mask, values = torch.zeros(2, 3), torch.tensor([[True, False, True], [False, True, False]]), torch.arange(1.0, 4)
    assert torch.equal(compiled(fn)(*(t.to("tpu") for t in (x, mask, values))).cpu(), fn(x, mask, values))
    with pytest.raises(RuntimeError, match="2 elements cannot be broadcast to an indexing result of 3"):
        compiled(fn)(*(t.to("tpu") for t in (x, mask, values[:2]))).cpu()
