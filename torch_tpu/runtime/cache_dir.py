"""The folder of compiled programs: private, bounded in size, safe with many processes.

A program is loaded from here as code, so the folder must belong to this user and nobody else may write it; one
that is not is refused. Files are written under another name and renamed, and carry a checksum: a damaged one is
a miss, never a wrong program.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import stat
import tempfile
import threading
import time
import warnings

DIRECTORY_VARIABLE = "TORCH_TPU_CACHE_DIR"
LIMIT_VARIABLE = "TORCH_TPU_CACHE_LIMIT_MB"
_DEFAULT_LIMIT_MB = 4096
_MAGIC = b"torch-tpu program 1\n"
_SWEEP_EVERY = 256  # writes between checks of the size


def default_path() -> pathlib.Path:
    asked = os.environ.get(DIRECTORY_VARIABLE)
    if asked:
        return pathlib.Path(asked).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(base) / "torch_tpu" / "programs"


class CacheDirectory:
    """Named blobs on disk. Every failure is a miss; the first one of a kind is said once, as a warning."""

    def __init__(self, path: pathlib.Path | None = None):
        self.path = path or default_path()
        self.usable: bool | None = None
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._writes = 0

    def size_of(self, name: str) -> int:
        """Bytes of a stored blob; 0 if there is none."""
        try:
            return (self.path / name).stat().st_size
        except OSError:
            return 0

    def read(self, name: str) -> bytes | None:
        if not self._ready():
            return None
        file = self.path / name
        try:
            blob = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            self._say(f"cannot read compiled programs from {self.path} ({e.strerror}); compiling instead")
            return None
        digest, body = blob[len(_MAGIC) : len(_MAGIC) + 32], blob[len(_MAGIC) + 32 :]
        if not blob.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
            self.discard(name, "is damaged")
            return None
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > 3600:
                os.utime(file)  # keep what is used: the oldest files go first
        return body

    def discard(self, name: str, why: str) -> None:
        """Remove an entry that cannot be used; it is compiled anew."""
        self._say(f"a compiled program in {self.path} {why}; it was removed and is compiled again")
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def write(self, name: str, body: bytes) -> None:
        if not self._ready():
            return
        try:
            fd, temporary = tempfile.mkstemp(dir=self.path, prefix=".new-")
            try:
                with os.fdopen(fd, "wb") as f:
                    f.write(_MAGIC + hashlib.sha256(body).digest() + body)
                os.replace(temporary, self.path / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as e:
            self._say(f"cannot write compiled programs to {self.path} ({e.strerror}); keeping them in memory only")
            self.usable = False
            return
        with self._lock:
            self._writes += 1
            due = self._writes % _SWEEP_EVERY == 1
        if due:
            self.sweep()

    def size(self) -> tuple[int, int]:
        """(number of programs, bytes)."""
        sizes = [s.st_size for _, s in self._files()]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        for file, _ in self._files():
            with contextlib.suppress(OSError):
                file.unlink()

    def sweep(self) -> None:
        """Remove the least recently used programs until the folder is within its limit."""
        limit = int(os.environ.get(LIMIT_VARIABLE, _DEFAULT_LIMIT_MB)) * 2**20
        files = sorted(self._files(), key=lambda f: f[1].st_mtime)
        total = sum(s.st_size for _, s in files)
        for file, s in files:
            if total <= limit:
                return
            with contextlib.suppress(OSError):
                file.unlink()
                total -= s.st_size

    def _files(self) -> list[tuple[pathlib.Path, os.stat_result]]:
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.path):
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        found.append((pathlib.Path(entry.path), entry.stat(follow_symlinks=False)))
        return found

    def _ready(self) -> bool:
        if self.usable is None:
            with self._lock:
                if self.usable is None:
                    self.usable = self._prepare()
        return self.usable

    def _prepare(self) -> bool:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            s = os.stat(self.path)
        except OSError as e:
            self._say(f"cannot use {self.path} for compiled programs ({e.strerror}); keeping them in memory only")
            return False
        if hasattr(os, "getuid") and s.st_uid != os.getuid():
            self._say(
                f"{self.path} belongs to another user, so no programs are loaded from it; set {DIRECTORY_VARIABLE}"
            )
            return False
        if stat.S_IMODE(s.st_mode) & 0o022:
            self._say(f"{self.path} can be written by other users, so no programs are loaded from it; chmod 700 it")
            return False
        if not os.access(self.path, os.W_OK):
            self._say(f"{self.path} cannot be written; new programs are kept in memory only")
        return True

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warnings.warn(f"torch_tpu: {message}", RuntimeWarning, stacklevel=2)
