"""Layers that ``kernelize`` puts in place of a model's own: they have a ``forward`` and no state."""

import torch

from . import rms_norm


class RMSNorm(torch.nn.Module):
    """For modules with ``weight`` and ``variance_epsilon``, as Transformers' are."""

    can_torch_compile = True
    has_backward = False  # register_autograd, then True

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)
