"""What the package relies on in JAX beyond its documented interface."""

import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np


def compiled(donate=()):
    aval = jax.ShapeDtypeStruct((4,), np.float32)
    return jax.jit(lambda x: [x + 1], donate_argnums=donate, keep_unused=True).lower(aval).compile()


def test_enable_x64_is_a_scope():
    assert jnp.arange(2).dtype == np.int32
    with jax.enable_x64(True):
        assert jnp.arange(2).dtype == np.int64
    assert jnp.arange(2).dtype == np.int32


def test_a_compiled_program_is_called_and_serialized():
    from jax.experimental import serialize_executable

    c = compiled()
    parts = pickle.loads(pickle.dumps(serialize_executable.serialize(c)))
    device = jax.local_devices()[0]
    again = serialize_executable.deserialize_and_load(*parts, backend=device.client, execution_devices=[device])
    assert np.asarray(again(jnp.ones(4))[0]).tolist() == [2, 2, 2, 2]


def test_compiler_options_of_a_lowered_program():
    lowered = jax.jit(lambda x: x * 2).lower(jax.ShapeDtypeStruct((4,), np.float32))
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    assert np.asarray(lowered.compile(compiler_options=options)(jnp.ones(4))).tolist() == [2] * 4
    assert lowered.out_info.shape == (4,)


def test_donation_deletes_the_operand():
    x = jnp.ones(4) + 0
    compiled(donate=(0,))(x)
    assert x.is_deleted()


def test_arrays_say_whether_they_are_ready():
    x = jnp.ones(4)
    jax.block_until_ready(x)
    assert x.is_ready() and not x.is_deleted()


def test_reference_counts_of_arrays_are_pythons():
    """Donation rests on it: an array that nobody else holds has the references of its holder alone."""
    x = jnp.ones(4)
    before = sys.getrefcount(x)
    held = [x]
    assert sys.getrefcount(x) == before + 1
    del held
    assert sys.getrefcount(x) == before


def test_platforms_and_device_counts_are_configurable():
    assert hasattr(jax.config, "jax_platforms") and hasattr(jax.config, "jax_num_cpu_devices")
    assert jax.errors.JaxRuntimeError.__mro__[1] is RuntimeError


def test_a_numpy_array_is_put_on_a_device_by_the_function_behind_device_put():
    from jax._src.lib import xla_client
    from jax.core import ShapedArray

    device = jax.local_devices()[0]
    place = jax.sharding.SingleDeviceSharding(device)
    for dtype in (np.float32, np.int64, np.float64, np.bool_, jnp.bfloat16):
        values = np.ones((2, 3), dtype)
        with jax.enable_x64(True):
            made = xla_client.batched_device_put(
                ShapedArray(values.shape, values.dtype), place, [values], [device], True
            )
        assert made.dtype == values.dtype and made.shape == (2, 3) and made.sharding == place
        assert np.asarray(made).tolist() == values.tolist()


def test_many_processes_join_by_a_client_and_gloo_s_collectives():
    """runtime/cluster.py and runtime/coordinator.py"""
    import dataclasses
    import inspect

    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    for name in (
        "get_distributed_runtime_client", "get_distributed_runtime_service", "make_gloo_tcp_collectives",
    ):  # fmt: skip
        assert callable(getattr(_jax, name))
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        assert hasattr(distributed.global_state, name)
    assert {"factory"} <= {f.name for f in dataclasses.fields(xla_bridge._backend_factories["cpu"])}
    assert "collectives" in inspect.signature(xla_bridge.make_cpu_client).parameters
    assert callable(xla_bridge.backends_are_initialized)


def test_a_tracer_knows_the_transpose_that_made_it():
    """So that weights given transposed are multiplied as they lie."""
    from torch_tpu.lowering import provenance

    seen = []

    def program(x):
        seen.extend((x, provenance.before_transposes(jnp.transpose(x, (2, 0, 1)).T)))
        seen.append(provenance.matrices(jnp.swapaxes(x, 1, 2)))
        seen.append(provenance.matrices(jnp.swapaxes(jnp.swapaxes(x, 1, 2), -1, -2)))
        return x

    jax.jit(program)(jnp.ones((2, 3, 4)))
    x, (before, order), turned, twice = seen
    assert before is x and order == (1, 0, 2)
    assert turned[0] is x and turned[1] and twice[0] is x and not twice[1]


def test_a_program_runs_on_arrays_of_this_process_alone():
    """runtime/spanning.py: an executable's own entry, and its results by device."""
    import jax
    import numpy as np

    compiled = jax.jit(lambda x: (x + 1, x.sum())).lower(np.ones(3, np.float32)).compile()
    x = jax.device_put(np.ones(3, np.float32), jax.devices("cpu")[0])
    (first,), (second,) = compiled.runtime_executable().execute_sharded([x]).disassemble_into_single_device_arrays()
    assert np.asarray(first).tolist() == [2, 2, 2] and np.asarray(second).tolist() in (3, [3])
