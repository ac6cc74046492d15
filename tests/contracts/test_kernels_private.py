"""What custom kernels rely on in JAX and PyTorch beyond their documented interfaces."""

import logging

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend import core as jax_core
from jax.extend.core import primitives


def _double(x_ref, out_ref) -> None:
    out_ref[...] = x_ref[...] * 2


def _call(x):
    return pl.pallas_call(_double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="mine")(x)


def test_a_kernel_is_an_operation_with_these_parameters() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.cond(x[0, 0] > 0, _call, lambda x: x, x))(jnp.ones((8, 128)))
    (cond,) = [e for e in jaxpr.eqns if e.primitive.name == "cond"]
    (kernel,) = [e for b in cond.params["branches"] for e in b.eqns if e.primitive.name == "pallas_call"]
    assert kernel.params["interpret"] is False and kernel.params["name"] == "mine"
    assert kernel.params["compiler_params"] is None and hasattr(kernel.params["grid_mapping"], "grid")
    line = _double.__code__.co_firstlineno
    assert kernel.params["jaxpr"].debug_info.func_src_info.endswith(f" at {__file__}:{line}")


def test_effects_of_interpreting() -> None:
    from jax._src.pallas.core import get_interpret_effects

    jaxpr = jax.make_jaxpr(_call)(jnp.ones((8, 128)))
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        interpreted = jax.make_jaxpr(lambda x: _call(x))(jnp.ones((8, 128)))
    assert not jaxpr.effects and set(interpreted.effects) == set(get_interpret_effects(pltpu.InterpretParams()))
    assert not get_interpret_effects(True)


def test_a_custom_derivative_is_a_call() -> None:
    @jax.custom_vjp
    def f(x):
        return x * 2

    f.defvjp(lambda x: (f(x), None), lambda _, g: (g,))
    jaxpr = jax.make_jaxpr(f)(1.0)
    (eqn,) = jaxpr.eqns
    assert eqn.primitive.name == "custom_vjp_call" and isinstance(eqn.params["call_jaxpr"], jax_core.ClosedJaxpr)
    called = eqn.replace(primitive=primitives.closed_call_p, params={"call_jaxpr": eqn.params["call_jaxpr"]})
    rewritten = jax_core.ClosedJaxpr(jaxpr.jaxpr.replace(eqns=[called]), jaxpr.consts)
    assert jax.jit(jax_core.jaxpr_as_fun(rewritten))(3.0)[0] == 6


def test_a_failed_callback_is_logged_with_its_exception() -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            records.append(record)
            return False

    keep, logger = Keep(), logging.getLogger("jax._src.callback")
    logger.addFilter(keep)

    def fail(x):
        raise KeyError("why")

    try:
        with pytest.raises(jax.errors.JaxRuntimeError):
            jax.block_until_ready(jax.jit(lambda x: io_callback(fail, x, x))(jnp.ones(2)))
    finally:
        logger.removeFilter(keep)
    assert records[0].exc_info is not None and isinstance(records[0].exc_info[1], KeyError)


def test_the_race_detector_prints() -> None:
    from jax._src.pallas.mosaic.interpret import race_detection_state

    assert "print" in race_detection_state.RaceDetectionState.check_read.__code__.co_names
    assert not hasattr(race_detection_state, "print")


def test_a_chip_is_asked_of_the_mesh_and_of_the_default_device() -> None:
    device = jax.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        assert pltpu.get_tpu_info().chip_version is pltpu.ChipVersion.TPU_V5E
    assert jax.extend.backend.get_default_device().platform == jax.default_backend()


def test_symbolic_dimensions_as_text() -> None:
    a, b = jax.export.symbolic_shape("a, b")
    text = str(jax.core.max_dim(a * a * 2 + b // 3, 4) - a % 5)
    words = {"max": max, "floordiv": np.floor_divide, "mod": np.mod, "a": 3, "b": 7}
    assert eval(text.replace("^", "**"), {"__builtins__": {}}, words) == max(9 * 2 + 7 // 3, 4) - 3 % 5


def test_custom_operators_have_a_library_and_a_gradient() -> None:
    made = torch.library.custom_op(
        "test_kernels_private::f", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    assert isinstance(made, torch._library.custom_ops.CustomOpDef)
    assert made._opoverload is torch.ops.test_kernels_private.f.default
    assert made._name == "f" and made._backward_fn is None and made._setup_context_fn is None
    made._lib.impl("f", lambda x: x + 1, "CPU")
    assert made(torch.zeros(2)).tolist() == [1, 1]
    assert made._vmap_fn is None and made._abstract_fn is None
