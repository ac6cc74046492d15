"""``flex_attention`` on device tpu: PyTorch's module has a fixed list of devices.

Contract test: tests/contracts/test_dynamo.py.
"""

from __future__ import annotations

from typing import Any

from torch_tpu.binding.importing import when_imported

NAME = "torch.nn.attention.flex_attention"


def install() -> None:
    """Let ``flex_attention`` take tpu tensors, now or when its module is imported."""
    when_imported(NAME, _allow_tpu)


def _allow_tpu(module: Any) -> None:
    original = module._validate_device

    def validate(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "tpu":
            original(query, key, value)

    validate._allows_tpu = True  # type: ignore[attr-defined]
    module._validate_device = validate
