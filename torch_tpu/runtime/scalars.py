"""Python numbers and small vectors as device arrays, kept: the same few come again and again."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from torch_tpu.runtime import transfer

_LIMIT = 1024
_scalars: dict[Any, jax.Array] = {}


def scalar(value: Any, dtype: np.dtype, device: int) -> jax.Array:
    """A 0-d array of the number on the device."""
    key = (value, dtype, device)
    found = _scalars.get(key) if value else None  # 0.0 and -0.0 are equal as keys
    if found is None:
        if not value and isinstance(value, float):
            key = ("-0.0" if math.copysign(1.0, value) < 0 else "0.0", dtype, device)
            found = _scalars.get(key)
        found = found if found is not None else _keep(key, np.asarray(value, dtype), device)
    return found


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
