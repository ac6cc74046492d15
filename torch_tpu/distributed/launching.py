"""Starting processes without torchrun: its variables, and libtpu's, from what other launchers say."""

from __future__ import annotations

import os

from torch_tpu.runtime import launch, platform

# What launchers call the four numbers; the first that is set counts.
_NAMES = {
    "RANK": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
}


def set_tpu_launch_env(nnodes: int | None = None, nproc_per_node: int | None = None) -> None:
    """Set the variables that torchrun would, where another launcher started this process; and libtpu's on a TPU VM.

    Call it before the device is used. What is set already stays.

    Args:
      nnodes: hosts. Default: the world's size divided by ``nproc_per_node``.
      nproc_per_node: processes on a host, one a chip. Default: what the launcher says, else all of the world.

    Raises:
      RuntimeError: no launcher says which of the processes this is, or the device is in use already.
      ValueError: the numbers do not fit each other.
    """
    if platform.started():
        raise RuntimeError("set_tpu_launch_env: device tpu is in use already; call it first")
    found: dict[str, int] = {}
    for name, others in _NAMES.items():
        text = next((os.environ[o] for o in others if os.environ.get(o)), None)
        if text is not None:
            found[name] = int(text)
    if "RANK" not in found:
        raise RuntimeError(
            "set_tpu_launch_env: nothing says which process this is: use torchrun, mpirun or srun, or set RANK"
        )
    local_size = nproc_per_node or int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
    world = found.get("WORLD_SIZE") or (nnodes or 1) * (local_size or 1)
    local_size = local_size or world // (nnodes or 1)
    if local_size * (nnodes or world // local_size) != world:
        raise ValueError(f"set_tpu_launch_env: {nnodes} hosts of {local_size} processes are not {world} processes")
    rank = found["RANK"]
    numbers = {
        "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": found.get("LOCAL_RANK", rank % local_size),
        "LOCAL_WORLD_SIZE": local_size,
    }  # fmt: skip
    for name, number in numbers.items():
        os.environ.setdefault(name, str(number))
    if world == local_size:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    launch.forget()
    if platform.wanted() == "tpu":
        launch.set_tpu_variables()
