"""Grouped products whose experts lie on several devices equal those of one device, forward and gradients."""

import subprocess
import sys
import textwrap

_BODY = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from torch_tpu.lowering import experts
from torch_tpu.lowering.grouped_matmul import grouped_rows, grouped_sum

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tensor",))
r = np.random.default_rng(0)
rows, groups, k, n = 24, 8, 16, 6
x = jnp.asarray(r.standard_normal((rows, k)), jnp.float32)
b = jnp.asarray(r.standard_normal((rows, n)), jnp.float32)
w = jnp.asarray(r.standard_normal((groups, k, n)), jnp.float32)
split = NamedSharding(mesh, P("tensor"))
for ends in ([3, 3, 7, 12, 12, 20, 24, 24], [0] * 8, [0, 0, 0, 0, 0, 0, 0, 24], [5, 6, 7, 8, 9, 10, 11, 12], [40] * 8):
    ends = jnp.asarray(ends, jnp.int32)
    wanted, total = grouped_rows(x, w, ends), grouped_sum(x, b, ends)
    with experts.over(experts.Experts({"tensor": 4}, "tensor")), jax.set_mesh(mesh):
        f, g = jax.jit(functools.partial(grouped_rows)), jax.jit(functools.partial(grouped_sum))
        compiled = f.lower(x, jax.device_put(w, split), ends).compile()
        got, sums = compiled(x, jax.device_put(w, split), ends), g(x, b, ends)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, total, rtol=1e-5, atol=1e-5)
    assert sums.sharding.spec == P("tensor"), sums.sharding
    text = compiled.as_text()
    assert text.count(" all-reduce(") == 1 and "all-gather" not in text, text
print("same")
"""


def test_experts_on_four_devices():
    code = 'import os\nos.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"\n' + textwrap.dedent(_BODY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "same" in done.stdout, done.stdout + done.stderr[-3000:]
