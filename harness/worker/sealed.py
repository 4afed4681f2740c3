"""Mixmark's own code as this process read it before the first plugin ran: what is hashed is what runs.

A plugin's process may write to the folder that Mixmark is installed in, as its user may. So the files are read once,
before the first worker starts. Workers of this interpreter get what was read in a file without a name that nobody can
write to any more (memfd_create(2) with seals), and import Mixmark from it. This process imports from it what it has not
imported by then.

The files of other packages and native libraries are not covered.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mixmark.harness.worker import importer

ROOT = Path(__file__).absolute().parents[3]
OWN = ("mixmark/harness", "mixmark/suites", "mixmark/__init__.py", "mixmark/api.py")
"""The code of Mixmark that measures, below ROOT."""
IMPORTER = inspect.getsource(importer)  # now: later the file may be another
SHIPPED = (".py", ".json", ".npz", ".toml", ".xz")
"""The code, and the files that it reads beside it."""


@dataclass(frozen=True)
class SealedCode:
    sha256: str
    """Over the files' contents and their paths below their root: the same for each installation of one version."""
    descriptor: int
    """The file descriptor from which `importer` imports. It stays open."""


@cache
def own() -> SealedCode:
    """Mixmark's own code."""
    files = (file for name in OWN for file in files_of(ROOT / name) if file.suffix in SHIPPED)
    sealed = seal(ROOT, {file: file.read_bytes() for file in files})
    importer.install(sealed.descriptor)
    return sealed


def files_of(path: Path) -> Iterator[Path]:
    """A file, or the files below a folder without caches of compiled code."""
    inside = path.rglob("*") if path.is_dir() else (path,)
    yield from (file for file in inside if file.is_file() and "__pycache__" not in file.parts)


def seal(root: Path, files: Mapping[Path, bytes]) -> SealedCode:
    """Seals files and their contents. root: the folder of the top-level packages."""
    modules, others = {}, {}
    for file, content in files.items():
        others[str(file)] = content
        with suppress(SyntaxError, ValueError):  # another package may hold templates
            if file.suffix == ".py":
                parts = file.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                code = marshal.dumps(compile(content, str(file), "exec", dont_inherit=True))
                modules[name] = (str(file), file.name == "__init__.py", code)
    return SealedCode(digest(root, files), _unwritable(marshal.dumps((modules, others))))


def digest(root: Path, files: Mapping[Path, bytes]) -> str:
    """One SHA-256 over the contents of files and their paths below a folder, in the order of the paths."""
    lines = sorted(
        f"{file.relative_to(root).as_posix()} {hashlib.sha256(content).hexdigest()}\n"
        for file, content in files.items()
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def prelude(*codes: SealedCode) -> str:
    """The text that a worker runs first, to import from what was sealed. It inherits the descriptors."""
    return IMPORTER + "".join(f"install({code.descriptor})\n" for code in codes)


def _unwritable(content: bytes) -> int:
    """The descriptor of a file without a name, which on Linux nobody can write to."""
    if sys.platform == "linux":
        import fcntl  # here: Windows lacks it

        descriptor = os.memfd_create("mixmark", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor
    with tempfile.TemporaryFile() as unnamed:
        unnamed.write(content)
        unnamed.flush()
        return os.dup(unnamed.fileno())
