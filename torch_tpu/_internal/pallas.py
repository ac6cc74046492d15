"""``torch.tpu.pallas`` under the name that published kernels import."""

from torch_tpu.pallas import JaxOp, custom_jax_kernel, get_pallas_mesh, interpret, jax_op

__all__ = ["JaxOp", "custom_jax_kernel", "get_pallas_mesh", "interpret", "jax_op"]
