"""Between host memory and device buffers. Nothing here lets the two alias.

``jax.device_put`` of a numpy array aliases its memory on XLA:CPU (also with ``may_alias=False``), and on a TPU
reads it later: so what is handed to it is a copy that nobody else holds.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import torch
from jax._src.lib import xla_client  # type: ignore[reportPrivateImportUsage]
from jax.core import ShapedArray

from torch_tpu.runtime import errors, platform

_put = xla_client.batched_device_put


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    return ShapedArray(shape, dtype)


# Types that torch.Tensor.numpy() does not know travel as integers of their width.
_CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY_KNOWS = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
})  # fmt: skip


def numpy_view(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    """A CPU tensor's memory as a numpy array of ``dtype`` (its own type in numpy's terms); no copy."""
    tensor = tensor.detach()
    if tensor.dtype in _NUMPY_KNOWS:
        return tensor.numpy()
    return tensor.view(_CARRIER[tensor.element_size()]).numpy().view(dtype)


def to_device(tensor: torch.Tensor, dtype: np.dtype, device: int) -> jax.Array:
    """A device array with the values of a CPU tensor, in C order; changing the tensor later changes nothing."""
    copy = np.array(numpy_view(tensor.resolve_conj().resolve_neg(), dtype), copy=True, order="C")
    return put(copy, device)


def put(values: np.ndarray, device: int) -> jax.Array:
    """A device array of ``values``, which nobody may change any more."""
    target = platform.device(device)
    try:
        with jax.enable_x64(True):
            # What ``jax.device_put`` comes to, at a tenth of its time: it is for pytrees of anything.
            return _put(_aval(values.shape, values.dtype), platform.sharding(device), [values], [target], True)
    except (jax.errors.JaxRuntimeError, MemoryError) as e:
        what = f"allocating {values.nbytes} bytes for {values.dtype}{list(values.shape)}"
        raise errors.translate(e, what, device) from e


def to_host(array: jax.Array) -> np.ndarray:
    """The values on the host, waiting for them. Read-only where it may alias the device's memory."""
    with errors.translated("reading a result"):
        return np.asarray(array)


def tensor_from(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A writable CPU tensor holding a copy of ``values``, C-contiguous."""
    out = torch.empty(values.shape, dtype=dtype, device="cpu")
    if values.size:
        numpy_view(out, values.dtype)[...] = values
    return out


def move(array: jax.Array, device: int) -> jax.Array:
    """A copy of the array on another device of this process."""
    return jax.device_put(array, platform.device(device))


def duplicate(array: jax.Array, device: int) -> jax.Array:
    """A copy of the array on its own device, made without a program."""
    with errors.translated(f"allocating {array.nbytes} bytes for {array.dtype}{list(array.shape)}", device):
        return jax.device_put(array, platform.device(device), may_alias=False)


def wait(arrays: Any) -> None:
    with errors.translated("a computation"):
        jax.block_until_ready(arrays)
