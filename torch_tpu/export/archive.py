"""The file of an artifact: a zip archive that needs nothing of this package to be read.

======================  ===========================================================================================
``manifest.json``       format, versions, signature (``signature.Signature``), and for each program its platform, sizes,
                        SHA-256 and index checks
``programs/<n>.jax``    ``jax.export``'s serialization: StableHLO as portable bytecode, with its calling convention
``weights.safetensors`` every weight once, uncompressed, in the safetensors format
======================  ===========================================================================================

Why ``jax.export``'s form and not bare StableHLO bytecode: JAX alone runs it (``deserialize(...).call``), it keeps
the platform and the symbolic sizes, and it refuses what it cannot run; the bytecode is inside (``mlir_module()``).
Why weights are beside the program: several programs share them, they can be replaced or mapped into memory, and a
program stays as small as its operators. Nothing in the file is pickled: reading it runs no code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import jax
import numpy as np
import torch
from jax import export as jax_export

from torch_tpu.export.errors import ArtifactError
from torch_tpu.export.signature import Signature
from torch_tpu.lowering import dtypes

FORMAT = "torch_tpu.export"
VERSION = 1
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
_ALIGNMENT = 8  # of the header, as the safetensors format asks
_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_OPAQUE = "U8"  # a type that the format has no code for, as bytes


@dataclasses.dataclass
class Program:
    """One program of an artifact.

    Attributes:
      platform: what it was lowered for, in JAX's words: tpu, cpu, cuda.
      sizes: what the named dimensions are in it; None where they are symbolic, or there are none.
      blob: ``jax.export``'s serialization.
      checks: (message, error type) of its index checks.
    """

    platform: str
    sizes: dict[str, int] | None
    blob: bytes
    checks: list[tuple[str, str]]
    _exported: jax_export.Exported | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.blob).hexdigest()

    @property
    def exported(self) -> jax_export.Exported:
        if self._exported is None:
            try:
                self._exported = jax_export.deserialize(bytearray(self.blob))
            except Exception as e:
                raise ArtifactError(f"this JAX ({jax.__version__}) cannot read the program: {e}") from e
        return self._exported


@dataclasses.dataclass(frozen=True)
class Weight:
    """A tensor in the archive, as the manifest describes it."""

    name: str
    dtype: str  # PyTorch's name
    shape: tuple[int, ...]
    start: int
    end: int


_OTHERS = {
    ".pt2": "torch.export.save writes",
    ".pt": "torch.save writes",
    ".pth": "torch.save writes",
    ".bin": "torch.save writes",
    ".safetensors": "safetensors.torch.save_file writes",
    ".mlir": "torch.tpu.export.exported_to_mlir gives the text of",
    ".onnx": "torch.onnx.export writes",
}


def file_to_write(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of an artifact, looked at before the work begins.

    Raises:
      TypeError: no path.
      ValueError: an empty one, or one with the ending of another format.
      FileNotFoundError, NotADirectoryError, IsADirectoryError: there is no such folder, or the path is one.
      OSError: there is something that is no file, such as a device.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"expected the path of a file to write, got {type(path).__name__}")
    name = os.fsdecode(path)
    if not name or "\0" in name:
        raise ValueError(f"{name!r} is no name for an artifact; use a path such as 'model.tpu'")
    found = pathlib.Path(name)
    if found.is_dir():
        raise IsADirectoryError(f"{name} is a folder; name a file in it, such as {found / 'model.tpu'}")
    if found.suffix in _OTHERS:
        raise ValueError(
            f"{name}: {_OTHERS[found.suffix]} files of that ending, and an artifact is none; call it "
            f"{found.with_suffix('.tpu').name}"
        )
    folder = found.parent
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {folder} to write {found.name} to; make it first")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, not a folder to write {found.name} to")
    if found.exists() and not found.is_file():
        raise OSError(f"{name} is no regular file; an artifact replaces what is there")
    return found


def write(
    path: str | os.PathLike[str],
    signature: Signature,
    programs: list[Program],
    weights: Mapping[str, torch.Tensor],
    to_numpy: Callable[[torch.Tensor], np.ndarray],
) -> None:
    """Write an artifact; the file appears when it is complete."""
    path = file_to_write(path)
    described = _describe(weights)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".artifact-")
    try:
        with os.fdopen(fd, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(MANIFEST, json.dumps(_manifest(signature, programs, described), indent=1))
            for i, program in enumerate(programs):
                archive.writestr(f"programs/{i}.jax", program.blob)
            with archive.open(WEIGHTS, "w", force_zip64=True) as out:
                _write_weights(out, described, weights, to_numpy)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _manifest(signature: Signature, programs: list[Program], weights: list[Weight]) -> dict[str, Any]:
    from torch_tpu import __version__

    return {
        "format": FORMAT,
        "version": VERSION,
        "made_with": {"torch": torch.__version__, "jax": jax.__version__, "torch_tpu": __version__},
        "signature": signature.to_json(),
        "programs": [
            {
                "file": f"programs/{i}.jax", "platform": p.platform, "sizes": p.sizes, "sha256": p.digest,
                "calling_convention": p.exported.calling_convention_version, "checks": p.checks,
            }
            for i, p in enumerate(programs)
        ],
        "weights": [dataclasses.asdict(w) for w in weights],
    }  # fmt: skip


def _describe(weights: Mapping[str, torch.Tensor]) -> list[Weight]:
    found, at = [], 0
    for name, t in weights.items():
        found.append(Weight(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), at, at + t.nbytes))
        at += t.nbytes
    return found


def _write_weights(
    out: IO[bytes], described: list[Weight], weights: Mapping[str, torch.Tensor],
    to_numpy: Callable[[torch.Tensor], np.ndarray],
) -> None:  # fmt: skip
    header = {
        w.name: {
            "dtype": _CODES.get(w.dtype, _OPAQUE),
            "shape": list(w.shape) if w.dtype in _CODES else [w.end - w.start],
            "data_offsets": [w.start, w.end],
        }
        for w in described
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    out.write(len(text).to_bytes(8, "little") + text)
    for w in described:
        values = to_numpy(weights[w.name])
        if values.nbytes != w.end - w.start:
            raise ArtifactError(f"weight {w.name} has {values.nbytes} bytes, expected {w.end - w.start}")
        out.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


class Reader:
    """An artifact's file. Each method raises ``ArtifactError`` where the file is damaged."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)
        try:
            self._zip = zipfile.ZipFile(self.path)
            self.manifest: dict[str, Any] = json.loads(self._zip.read(MANIFEST))
        except FileNotFoundError:
            raise
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as e:
            hint = _OTHERS.get(self.path.suffix, "")
            hint = f" ({hint} files of that ending)" if hint else ""
            raise ArtifactError(
                f"{self.path} is not an artifact of torch.tpu.export, or it is damaged{hint}: {e}"
            ) from e
        self._check_version()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *args: object) -> None:
        self._zip.close()

    def _check_version(self) -> None:
        if self.manifest.get("format") != FORMAT:
            raise ArtifactError(f"{self.path} is not an artifact of torch.tpu.export (no format {FORMAT!r})")
        version, by = self.manifest.get("version"), self.manifest.get("made_with", {})
        if version != VERSION:
            raise ArtifactError(
                f"{self.path} has version {version} of the format, and this torch_tpu reads version {VERSION}; use "
                f"torch_tpu {by.get('torch_tpu')}, which wrote it, or export the model again"
            )
        low, high = (
            jax_export.minimum_supported_calling_convention_version,
            jax_export.maximum_supported_calling_convention_version,
        )
        for p in self.manifest["programs"]:
            if not low <= p["calling_convention"] <= high:
                raise ArtifactError(
                    f"{self.path} was made with jax {by.get('jax')} (calling convention {p['calling_convention']}); "
                    f"this jax {jax.__version__} reads {low} to {high}. Install jax {by.get('jax')}, or export it again"
                )

    def signature(self) -> Signature:
        try:
            return Signature.from_json(self.manifest["signature"])
        except (KeyError, TypeError, ValueError) as e:
            raise ArtifactError(f"{self.path} is damaged: its signature cannot be read ({e})") from e

    def programs(self) -> list[Program]:
        found = []
        for p in self.manifest["programs"]:
            program = Program(p["platform"], p["sizes"], self._read(p["file"]), [(m, e) for m, e in p["checks"]])
            if program.digest != p["sha256"]:
                raise ArtifactError(f"{self.path} is damaged: {p['file']} is not what was written")
            found.append(program)
        return found

    def _read(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except (zipfile.BadZipFile, KeyError, OSError) as e:
            raise ArtifactError(f"{self.path} is damaged: {e}") from e

    def weights(self) -> Iterator[tuple[str, np.ndarray, torch.dtype]]:
        """(name, values, dtype) of each weight, one after the other: no more than one is held here."""
        try:
            with self._zip.open(WEIGHTS) as file:
                file.read(int.from_bytes(file.read(8), "little"))
                for w in self.manifest["weights"]:
                    dtype: torch.dtype = getattr(torch, w["dtype"])
                    raw = file.read(w["end"] - w["start"])
                    values = np.frombuffer(raw, dtypes.to_jax(dtype)).reshape(w["shape"])
                    yield w["name"], values, dtype
                file.read()  # the checksum is looked at when the end is reached
        except (zipfile.BadZipFile, KeyError, ValueError, AttributeError, OSError) as e:
            raise ArtifactError(f"{self.path} is damaged: its weights cannot be read ({e})") from e
