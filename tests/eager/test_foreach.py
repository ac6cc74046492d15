"""Chains of foreach operators: same values as CPU, one program a parameter, and nobody can see the delay."""

from __future__ import annotations

import pytest
import torch

from torch_tpu.eager import foreach, spec
from torch_tpu.runtime import programs

SHAPES = [(3, 4), (5,), (), (2, 1, 3)]


def _lists(n: int = 3, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [[torch.rand(s, generator=g).add(0.5).to(dtype) for s in SHAPES] for _ in range(n)]


def _to(lists: list[list[torch.Tensor]], device: str) -> list[list[torch.Tensor]]:
    return [[t.clone().to(device) for t in tensors] for tensors in lists]


def _step(p, m, g):
    """What AdamW does, in its own calls."""
    torch._foreach_mul_(p, 0.99)
    torch._foreach_lerp_(m, g, 0.1)
    root = torch._foreach_sqrt(m)
    torch._foreach_div_(root, [1.5, 2.5, 3.5, 4.5])
    torch._foreach_add_(root, 1e-8)
    torch._foreach_addcdiv_(p, m, root, [-0.1, -0.2, -0.3, -0.4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_step_equals_cpu(dtype):
    cpu, tpu = _lists(dtype=dtype), _to(_lists(dtype=dtype), "tpu")
    for _ in range(3):
        _step(*cpu)
        _step(*tpu)
    tolerance = {torch.bfloat16: 3e-2}.get(dtype, 1e-6)
    for expected, got in zip(cpu, tpu, strict=True):
        for e, g in zip(expected, got, strict=True):
            torch.testing.assert_close(g.cpu(), e, rtol=tolerance, atol=tolerance)


def test_every_operator_that_is_recorded_equals_cpu():
    torch.ones(1, device="tpu")
    checked = 0
    for name in foreach.names():
        op = spec.find(name)
        if foreach.element_of(op) is None:
            continue
        cpu, tpu = _lists(), _to(_lists(), "tpu")
        results = []
        for lists in (cpu, tpu):
            unused = iter(lists)
            args, kwargs = [], {}
            for a in op._schema.arguments:
                text = str(a.type)
                value = (
                    next(unused) if text == "List[Tensor]" else torch.tensor(2.0, device=lists[0][0].device)
                    if text == "Tensor" else [0.5, 1.5, 2.5, 3.5] if text.startswith("List[") else 0.75
                )  # fmt: skip
                if a.kwarg_only:
                    kwargs[a.name] = value
                else:
                    args.append(value)
            results.append(op(*args, **kwargs) or lists[0])
        for e, g in zip(*results, strict=True):
            torch.testing.assert_close(g.cpu(), e, msg=lambda m, name=name: f"{name}: {m}")
        checked += 1
    assert checked > 60


def test_a_step_is_one_program_an_element_and_steps_share_it():
    lists = _to(_lists(), "tpu")
    _step(*lists)
    [t.cpu() for tensors in lists for t in tensors]
    with programs.counting() as made:
        for _ in range(4):
            _step(*lists)
            [t.cpu() for tensors in lists for t in tensors]
    assert made() == 0
    with programs.counting() as made:  # nobody reads: every step still is the same program
        for _ in range(30):
            _step(*lists)
        torch.accelerator.synchronize()
    assert made() <= 2 * len(SHAPES)


def test_operands_are_those_of_the_time_of_the_call():
    p, g = torch.ones(4, device="tpu"), torch.full((4,), 2.0, device="tpu")
    torch._foreach_add_([p], [g])
    g.fill_(100.0)
    view = p[1:]
    torch._foreach_mul_([p], 2.0)
    p[0] = 7.0
    assert view.tolist() == [6.0, 6.0, 6.0]
    assert p.tolist() == [7.0, 6.0, 6.0, 6.0]


def test_aliased_elements():
    p = torch.ones(3, device="tpu")
    torch._foreach_add_([p, p], [torch.ones(3, device="tpu")] * 2)
    torch._foreach_mul_([p], [p])
    assert p.tolist() == [9.0] * 3


def test_memory_is_counted_and_dropped_results_are_never_computed():
    p = [torch.ones(256, 256, device="tpu")]
    before = torch.tpu.memory_allocated()
    dropped = torch._foreach_sqrt(p)
    del dropped
    torch._foreach_add_(p, 1.0)
    torch.accelerator.synchronize()
    assert torch.tpu.memory_allocated() == before


def test_shapes_that_do_not_fit_raise_as_on_cpu():
    with pytest.raises(RuntimeError):
        torch._foreach_add_([torch.ones(3, device="tpu")], [torch.ones(4, device="tpu")])
    with pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_add_([torch.ones(3, device="tpu")], [torch.ones(3, device="tpu")] * 2)


def test_a_buffer_keeps_its_layout_while_it_waits():
    """A kernel reads layout first and value then; the layout of ``x`` is [1, 4], its shape [4]."""
    x = torch.ones(2, 4, device="tpu").sum(0, keepdim=True).view(4)
    torch._foreach_mul_([x], 3.0)
    assert (x + 1).tolist() == [7.0] * 4
    torch._foreach_mul_([x], 3.0)
    x.add_(1)
    assert x.tolist() == [19.0] * 4


def test_resizing_what_waits_keeps_its_values():
    x = torch.ones(3, device="tpu")
    torch._foreach_mul_([x], 5.0)
    x.resize_(6)
    assert x[:3].tolist() == [5.0] * 3


def test_bits_seen_as_floats():
    """The buffer of such a tensor holds integers: its array is not what the tensor's values are."""
    bits = torch.tensor([1.5, -2.0]).view(torch.int32)
    x = bits.to("tpu").view(torch.float32)
    torch._foreach_mul_([x], 2.0)
    assert x.tolist() == [3.0, -4.0]


def test_zeros_of_either_sign_are_different_programs_or_operands():
    x = [torch.ones(2, device="tpu")]
    for zero in (0.0, -0.0, 0):
        assert torch._foreach_mul(x, zero)[0].signbit().tolist() == [str(zero).startswith("-")] * 2


def test_chains_that_meet_keep_their_numbers_apart():
    a, b = torch.full((3,), 2.0), torch.full((3,), 3.0)
    results = []
    for device in ("cpu", "tpu"):
        p, q = a.clone().to(device), b.clone().to(device)
        torch._foreach_mul_([p, q], [5.0, 7.0])
        torch._foreach_add_([p, q], [1, 2.5])
        torch._foreach_add_([p], [q])
        torch._foreach_sub_([p], 0.25)
        torch._foreach_addcmul_([q], [p], [q], 2.0)
        results.append((p.tolist(), q.tolist()))
    assert results[0] == results[1]
