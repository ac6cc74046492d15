"""Errors of exporting, and of artifacts."""

from __future__ import annotations

from torch_tpu.compile.errors import GraphError


class ExportError(GraphError):
    """An ExportedProgram that cannot become one program; the message says what to do."""


class ArtifactError(RuntimeError):
    """An artifact that cannot be read or run here: damaged, of another version, or for another platform."""
