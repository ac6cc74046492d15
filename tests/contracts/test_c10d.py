"""What binding/process_groups.py and binding/ddp.py rely on in torch.distributed, a test a promise."""

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def test_a_group_made_without_a_name_takes_cpu_tensors_through_gloo():
    config = c10d.BackendConfig(c10d.Backend("tpu_dist"))
    assert config.device_backend_map == {"tpu": "tpu_dist", "cpu": "gloo"}


def test_work_of_a_future_is_done_with_it():
    future = torch.futures.Future()
    future.set_result([torch.ones(1)])
    work = torch._C._distributed_c10d._create_work_from_future(future)
    assert work.wait() and work.is_completed()
    assert work.boxed() is not None


def test_reductions_have_the_numbers_that_kernels_are_given():
    numbers = [int(getattr(dist.ReduceOp, n)) for n in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")]
    assert len(set(numbers)) == len(numbers)


def test_gloo_is_made_from_options_and_a_device():
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)
    assert group.options._timeout.total_seconds() > 0
    assert callable(dist.ProcessGroup.unbox) and callable(c10d._get_default_store)


def test_ddp_keeps_streams_by_index():
    from torch.nn.parallel import _functions

    assert _functions._streams is None or isinstance(_functions._streams, list)


def test_groups_and_meshes_in_graphs_are_names_or_opaque_objects():
    from torch._library.fake_class_registry import FakeScriptObject

    assert callable(c10d._resolve_process_group) and callable(FakeScriptObject)
    op = torch.ops._c10d_functional.all_reduce.default
    assert [a.name for a in op._schema.arguments] == ["input", "reduce_op", "group_name"]
    assert callable(c10d.split_group) and dist.split_group is c10d.split_group


def test_dtensor_takes_strategies_and_context_parallel_handlers():
    """binding/dtensor.py"""
    from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy, register_op_strategy
    from torch.distributed.tensor.experimental._context_parallel import _attention

    assert all(map(callable, (OpStrategy, RuntimeSchemaInfo, expand_to_full_mesh_op_strategy, register_op_strategy)))
    assert isinstance(_attention.custom_ops, dict)
    assert callable(_attention._templated_ring_attention) and callable(_attention._templated_ring_attention_backward)
