"""Every module of PyTorch's module database, in training and evaluation; ``module_checks.py`` runs all its inputs.

A module that does the same in both is trained in float32, and evaluated in its other type.
"""

from __future__ import annotations

import pytest
import torch
from module_checks import MODULES, check, check_errors, dtypes_of

_INPUTS = 3


def _title(name: str, dtype: torch.dtype, training: bool) -> str:
    return f"{name}-{str(dtype).removeprefix('torch.')}-{'train' if training else 'eval'}"


_CASES = [
    pytest.param(name, dtype, training, id=_title(name, dtype, training))
    for name, info in MODULES.items()
    for dtype in dtypes_of(info)
    for training in (True, False)
    if info.train_and_eval_differ or training == (dtype == torch.float32)
]


@pytest.mark.parametrize(("name", "dtype", "training"), _CASES)
def test_module(name: str, dtype: torch.dtype, training: bool) -> None:
    torch.tpu.compiler.clear_cache()
    assert check(MODULES[name], dtype, training=training, limit=_INPUTS), "CPU takes none of the inputs"


@pytest.mark.parametrize("name", [n for n, info in MODULES.items() if info.module_error_inputs_func])
def test_wrong_arguments(name: str) -> None:
    assert check_errors(MODULES[name])
