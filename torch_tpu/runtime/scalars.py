"""Python numbers and small vectors as device arrays, kept: the same few come again and again."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from torch_tpu.runtime import transfer

_LIMIT = 1024
_scalars: dict[Any, jax.Array] = {}


def scalar(value: Any, dtype: np.dtype, device: int) -> jax.Array:
    """A 0-d array of the number on the device."""
    kind = type(value)
    # 0.0 and -0.0 are equal as keys, as are complex numbers that differ in the sign of a zero.
    key = (value if kind is int or (value and kind is float) else repr(value), dtype, device)
    found = _scalars.get(key)
    return found if found is not None else _keep(key, np.asarray(value, dtype), device)


def vector(values: np.ndarray, device: int) -> jax.Array:
    """A small vector of integers (starts of views) on the device."""
    key = (values.tobytes(), values.dtype, device)
    found = _scalars.get(key)
    return found if found is not None else _keep(key, values, device)


def _keep(key: Any, values: np.ndarray, device: int) -> jax.Array:
    if len(_scalars) > _LIMIT:
        _scalars.clear()
    array = transfer.put(values, device)
    if key[0] == key[0]:  # NaN never finds itself again
        _scalars[key] = array
    return array
