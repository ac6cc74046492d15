"""What binding/dynamo.py and binding/higher_order.py rely on in PyTorch's private API, a test a promise."""

import inspect

import pytest
import torch
from torch._higher_order_ops import auto_functionalize


def test_the_default_backend_is_an_object_that_is_called_with_module_and_inputs():
    wrapper = torch._TorchCompileInductorWrapper
    assert list(inspect.signature(wrapper._tpu_original).parameters)[:3] == ["self", "model_", "inputs_"]
    assert isinstance(torch._TorchCompileInductorWrapper("default", None, None), wrapper)


def test_the_default_backend_of_cpu_tensors_is_pytorch_s_own():
    from torch_tpu.compile import backend

    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    assert not backend.uses_tpu(graph, [torch.ones(3)])


def test_the_backend_is_known_by_name():
    assert "tpu" in torch._dynamo.list_backends(())
    assert torch._dynamo.lookup_backend("tpu").__module__.startswith("torch_tpu")


@pytest.mark.parametrize("name", ["flex_attention", "flex_attention_backward"])
def test_dense_kernels(name):
    op = getattr(torch.ops.higher_order, name)
    assert callable(op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd])


def test_names_of_higher_order_operators():
    from torch._higher_order_ops import associative_scan, map, scan, while_loop  # noqa: F401

    from torch_tpu.compile import control

    # Those of other releases may be missing; the ones that PyTorch documents must be there.
    for name in ("cond", "while_loop", "scan", "associative_scan", "map_impl", "invoke_subgraph", "with_effects"):
        assert getattr(torch.ops.higher_order, name).name() == name and name in control._HANDLERS


def test_random_states_that_the_partitioner_saves():
    save, use = torch._prims.rng_prims.run_and_save_rng_state, torch._prims.rng_prims.run_with_rng_state
    assert list(inspect.signature(type(save).__call__).parameters) == ["self", "op", "args", "kwargs"]
    assert list(inspect.signature(type(use).__call__).parameters) == ["self", "rng_state", "op", "args", "kwargs"]


def test_copies_of_what_a_custom_operator_mutates():
    names, _ = auto_functionalize.get_mutable_args_from_schema(torch.ops.aten.add_.Tensor._schema)
    assert names == ["self"]
    parameters = inspect.signature(auto_functionalize._generate_new_op_kwargs_from_bases).parameters
    assert list(parameters) == ["schema", "kwargs", "all_bases", "_only_clone_these_bases", "_is_out"]


def test_fake_tensors_are_off_inside_a_block():
    off = torch._subclasses.fake_tensor.unset_fake_temporarily
    with torch._subclasses.FakeTensorMode():
        assert type(torch.ones(1)) is not torch.Tensor
        with off():
            assert type(torch.ones(1)) is torch.Tensor


def test_plain_tensors_have_the_dispatch_of_tensor():
    assert torch.nn.Parameter(torch.ones(1)).__torch_dispatch__ == torch.Tensor.__torch_dispatch__
    assert torch._subclasses.FakeTensor.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def test_kernels_by_key():
    kernel = torch.library.get_kernel("aten::linalg_pinv.atol_rtol_tensor", "IPU")
    assert callable(kernel.call_boxed)


def test_a_function_can_be_kept_from_dynamo_with_all_that_it_calls():
    from torch_tpu.binding import registration

    seen = []

    def inner(x):
        seen.append(torch.compiler.is_compiling())
        return x + 1

    def outer(x):
        return inner(x)

    def count(graph, inputs):
        seen.append("compiled")
        return graph.forward

    registration.leave_alone(outer)
    assert torch.compile(outer, backend=count)(torch.ones(2)).tolist() == [2, 2]
    assert seen == [False]


def test_flex_attention_asks_one_function_for_the_device():
    from torch.nn.attention import flex_attention

    assert flex_attention._validate_device._allows_tpu
    cpu = torch.ones(1, requires_grad=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention._validate_device(cpu, cpu, cpu)
    assert "_validate_device(query, key, value)" in inspect.getsource(flex_attention.flex_attention)
