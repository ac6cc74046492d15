"""Several processes with one device each: the backend ``tpu_dist`` of ``torch.distributed``, and launching.

Under ``torchrun`` nothing of this is called by hand: ``init_process_group()`` finds the backend.
"""

from __future__ import annotations

from torch_tpu.distributed.launching import set_tpu_launch_env

__all__ = ["set_tpu_launch_env"]
