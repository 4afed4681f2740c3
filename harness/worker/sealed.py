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

from mixmark.harness.contracts.errors import explained
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.worker import importer

ROOT = Path(__file__).absolute().parents[3]
OWN = ("mixmark/harness", "mixmark/suites", "mixmark/__init__.py", "mixmark/api.py")
"""The code of Mixmark that measures, below ROOT."""
IMPORTER = inspect.getsource(importer)  # now: later the file may be another
SHIPPED = (".py", ".json", ".npz", ".toml", ".xz")
"""The code, and the files that it reads beside it."""
NO_ROOM = "raise `ulimit -f`, or give the container more shared memory"


@dataclass(frozen=True)
class SealedCode:
    files: Mapping[str, str]
    """The SHA-256 of each file, by its path below the root: `mixmark/harness/__init__.py`. Equal for each installation
    of one version."""
    descriptor: int
    """The file descriptor from which `importer` imports. It stays open."""


@cache
def own() -> SealedCode:
    """Mixmark's own code."""
    sealed = seal(ROOT, read(ROOT))
    importer.install(sealed.descriptor)
    return sealed


def read(root: Path) -> dict[Path, bytes]:
    """The files of Mixmark that measure. root: the folder of the package `mixmark`."""
    files = (file for name in OWN for file in files_of(root / name) if file.suffix in SHIPPED)
    return {file: file.read_bytes() for file in files}


def files_of(path: Path) -> Iterator[Path]:
    """A file, or the files below a folder without caches of compiled code."""
    inside = path.rglob("*") if path.is_dir() else (path,)
    yield from (file for file in inside if file.is_file() and "__pycache__" not in file.parts)


def seal(root: Path, files: Mapping[Path, bytes]) -> SealedCode:
    """Seals files and their contents. root: the folder of the top-level packages. Raises UsageError if the system has
    no room for them."""
    modules, others = {}, {}
    for file, content in files.items():
        others[str(file)] = content
        with suppress(SyntaxError, ValueError):  # another package may hold templates
            if file.suffix == ".py":
                parts = file.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                code = marshal.dumps(compile(content, str(file), "exec", dont_inherit=True))
                modules[name] = (str(file), file.name == "__init__.py", code)
    content = marshal.dumps((modules, others))
    with explained(f"cannot hold Mixmark's code in memory ({filesize(len(content))})", NO_ROOM):
        return SealedCode(hashes(root, files), _unwritable(content))


def hashes(root: Path, files: Mapping[Path, bytes]) -> dict[str, str]:
    """The SHA-256 of each file by its path below a folder, in the order of the paths."""
    found = {file.relative_to(root).as_posix(): content for file, content in files.items()}
    return {path: hashlib.sha256(found[path]).hexdigest() for path in sorted(found)}


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
