"""What torch_tpu.binding.exported reads of torch.export."""

from __future__ import annotations

import json

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from torch_tpu.binding import exported


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, x)


def program() -> torch.export.ExportedProgram:
    return torch.export.export(Model(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: Dim("batch")}})


def test_names_of_dimensions() -> None:
    names = exported.dimension_names(program())
    assert list(names.values()) == ["batch"]
    assert names.keys() == program().range_constraints.keys()
    assert exported.dimension_names(program().run_decompositions()).keys() == names.keys()


def test_composite_operators() -> None:
    found = exported.composite_decompositions()
    assert torch.ops.aten.linear.default in found and torch.ops.aten.mm.default not in found
    assert torch.ops.aten.scaled_dot_product_attention.default in found


def test_run_decompositions_keeps_composites_that_its_table_has_not() -> None:
    def operators(table: dict) -> set:
        return {n.target for n in program().run_decompositions(table).graph.nodes if n.op == "call_function"}

    assert torch.ops.aten.linear.default in operators({})
    assert torch.ops.aten.linear.default not in operators(exported.composite_decompositions())


def test_json_of_a_pytree() -> None:
    text = pytree.treespec_dumps(pytree.tree_structure({"a": [1, (2,)]}))
    leaf = {"type": None, "context": None, "children_spec": []}
    inner = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]}
    outer = {"type": "builtins.list", "context": "null", "children_spec": [leaf, inner]}
    assert json.loads(text) == [1, {"type": "builtins.dict", "context": '["a"]', "children_spec": [outer]}]
    assert pytree.treespec_loads(text) == pytree.tree_structure({"a": [1, (2,)]})
