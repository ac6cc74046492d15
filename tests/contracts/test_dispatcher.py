"""What ``binding/dispatcher.py`` asks of PyTorch's dispatcher."""

from __future__ import annotations

import torch

from torch_tpu.binding import dispatcher


def test_operators_are_told_apart_by_class():
    import torch._higher_order_ops  # it makes the operators that take graphs

    add, cond = torch.ops.aten.add.Tensor, torch.ops.higher_order.cond
    assert isinstance(add, dispatcher.Operator) and not isinstance(add, dispatcher.HigherOrder)
    assert isinstance(cond, dispatcher.HigherOrder) and not isinstance(cond, dispatcher.Operator)
    assert dispatcher.has_kernel("aten::add.Tensor", "CPU") and not dispatcher.has_kernel("aten::matmul", "CPU")


def test_operators_are_listed_by_name_and_overload():
    names = set(dispatcher.operator_names())
    assert {"aten::add.Tensor", "aten::mm", "aten::_foreach_add_.List"} <= names


def test_composites_are_told_from_kernels():
    assert dispatcher.is_composite_implicit("aten::matmul")
    assert not dispatcher.is_composite_implicit("aten::mm")
    assert dispatcher.composite_kernel("aten::as_strided") is None


def test_a_composite_kernel_runs_on_any_tensors():
    x, y = [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(3)]
    kernel = dispatcher.composite_kernel("aten::_foreach_add_.List")
    assert kernel is not None
    kernel(x, y, alpha=2)
    assert [t.tolist() for t in x] == [[3.0] * 2, [3.0] * 3]


def test_a_cpu_kernel_of_metadata_keeps_the_storage():
    x = torch.arange(6.0)
    v = dispatcher.cpu_kernel("aten::view")(x, [2, 3])
    assert v.shape == (2, 3) and v.data_ptr() == x.data_ptr()


def test_decompositions_are_found_by_operator():
    assert torch.ops.aten.hardsigmoid.default in dispatcher.decompositions()
