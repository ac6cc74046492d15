"""What binding/process_groups.py and binding/ddp.py rely on in torch.distributed, a test a promise."""

import inspect

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


def _parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_what_is_changed_of_groups_has_the_shape_that_is_relied_on():
    assert _parameters(c10d._new_process_group_helper)[:5] == [
        "group_size", "group_rank", "global_ranks_in_group", "backend", "store",
    ]  # fmt: skip
    assert _parameters(c10d._hash_ranks_to_str) == ["ranks"]
    assert _parameters(dist.monitored_barrier) == ["group", "timeout", "wait_all_ranks"]
    assert callable(torch.ops.c10d.monitored_barrier_)


def test_what_is_changed_of_ddp_fsdp_and_dtensor_has_the_shape_that_is_relied_on():
    from torch.distributed.fsdp import _init_utils
    from torch.distributed.tensor import _random
    from torch.nn.parallel import DistributedDataParallel

    assert _parameters(DistributedDataParallel._check_comm_hook) == ["self", "hook"]
    assert _parameters(DistributedDataParallel._register_builtin_comm_hook) == ["self", "comm_hook_type"]
    assert {"FP16_COMPRESS", "ALLREDUCE"} <= set(dist.BuiltinCommHookType.__members__)
    assert _parameters(_init_utils._init_param_handle_from_params)[0] == "state"
    assert callable(_init_utils._get_device_from_device_id)
    assert _parameters(_random.OffsetBasedRNGTracker._distribute_region)[:3] == ["self", "spec", "generator"]
    assert _parameters(_random._calc_shard_linear_idx) and _parameters(_random._calc_shard_info)


def test_a_storage_counts_its_users():
    t = torch.empty(3)
    alone = torch._C._storage_Use_Count(t.untyped_storage()._cdata)
    view = t[1:]
    assert torch._C._storage_Use_Count(view.untyped_storage()._cdata) == alone + 1
