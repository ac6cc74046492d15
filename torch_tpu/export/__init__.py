"""``torch.tpu.export``: models as StableHLO, and as artifacts that run without their code.

::

    program = torch.export.export(model.eval(), (x,))
    print(torch.tpu.export.exported_to_mlir(program))        # StableHLO
    torch.tpu.export.save(program, "model.tpu")              # for tpu and cpu
    run = torch.tpu.export.load("model.tpu")                 # in any process, without the model's code
    y = run(x.to("tpu"))

The file and why it is what it is: ``archive``; its calling convention: ``signature``. docs/export.md shows how JAX
alone runs it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.export import ExportedProgram

from torch_tpu.export import archive as _archive
from torch_tpu.export import artifact as _artifact
from torch_tpu.export.artifact import PLATFORMS, Artifact
from torch_tpu.export.errors import ArtifactError, ExportError
from torch_tpu.export.structure import Record

__all__ = [
    "Artifact", "ArtifactError", "ExportError", "Record", "export", "exported_to_bytecode", "exported_to_mlir", "load",
    "save",
]  # fmt: skip


def export(
    program: ExportedProgram,
    *,
    platforms: Iterable[str] = PLATFORMS,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
) -> Artifact:
    """An exported program, on tensors of any device, as an artifact.

    Args:
      platforms: what to lower for: "tpu", "cpu", "cuda". None of them has to be attached.
      sizes: for a program with dynamic shapes: sizes of its dimensions by the names of their ``torch.export.Dim``, or a
        list of these, each of which becomes a program. None: one program for all sizes.

    Raises:
      ExportError: an operator does not take sizes that are not known; the message says what to do.
      GraphError: an operator has no lowering; the message has the model's line.
      ValueError: an unknown platform, or sizes that are not those of the program's dimensions.
    """
    return _artifact.make(program, platforms=platforms, sizes=sizes)


def exported_to_mlir(program: ExportedProgram, *, platform: str = "tpu", sizes: Mapping[str, int] | None = None) -> str:
    """An exported program's StableHLO, as text. Weights are arguments of it, before the user's."""
    return export(program, platforms=(platform,), sizes=sizes).mlir()


def exported_to_bytecode(
    program: ExportedProgram, *, platform: str = "tpu", sizes: Mapping[str, int] | None = None
) -> bytes:
    """An exported program's StableHLO, as portable bytecode."""
    return export(program, platforms=(platform,), sizes=sizes).bytecode()


def save(
    program: ExportedProgram | Artifact,
    path: str | os.PathLike[str],
    *,
    platforms: Iterable[str] = PLATFORMS,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
) -> None:
    """Write an exported program, or an artifact, to a file that ``load`` reads; see ``export`` for the arguments.

    The file is replaced if it is there, when the new one is complete.

    Raises:
      ValueError: platforms or sizes for an artifact, which has its own; a path with the ending of another format.
      OSError: the path cannot be written: a folder, one that is not there, a device.
    """
    _archive.file_to_write(path)
    if isinstance(program, Artifact) and (platforms is not PLATFORMS or sizes is not None):
        raise ValueError(
            f"save: an artifact has its platforms ({', '.join(program.platforms)}) and sizes; export the program again "
            "for others"
        )
    found = program if isinstance(program, Artifact) else export(program, platforms=platforms, sizes=sizes)
    found.save(path)


def load(path: str | os.PathLike[str], device: str | torch.device | int | None = None) -> Artifact:
    """Read an artifact, with its weights on a device (default: the current one of type tpu).

    Raises:
      FileNotFoundError: there is no such file.
      ArtifactError: it is damaged, of another version, or not an artifact.
    """
    return _artifact.read(path, device)
