"""``torch.tpu.pallas``: JAX functions and Pallas kernels as PyTorch operators. docs/kernels.md shows how.

====================  =================================================================================
``signature``         annotations -> schema
``function``          a JAX function as a lowering: traced once for each combination of shapes
``operator``          ``jax_op``: the operator, its fake kernel, its vmap rule
``derived``           operators that JAX derives: gradients, batched forms
``interpreting``      ``interpret``: options of kernels where there is no TPU
``mesh``              ``get_pallas_mesh``
``libraries``         kernel libraries: what they need, their errors
====================  =================================================================================
"""

from torch_tpu.pallas import libraries as _libraries
from torch_tpu.pallas.interpreting import interpret
from torch_tpu.pallas.mesh import get_pallas_mesh
from torch_tpu.pallas.operator import JaxOp, custom_jax_kernel, jax_op
from torch_tpu.runtime.interpretation import KernelError, KernelIndexError, KernelRaceError

_libraries.install()

__all__ = [
    "JaxOp", "KernelError", "KernelIndexError", "KernelRaceError", "custom_jax_kernel", "get_pallas_mesh", "interpret",
    "jax_op",
]  # fmt: skip
