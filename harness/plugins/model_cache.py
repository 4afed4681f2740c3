"""The cache of converted models: folders that are written once and reused until their room is needed.

    $MIXMARK_CACHE, or `mixmark` in the user's cache folder
    ├── llm-1-edge-int4-llamacpp-0.3.36-5f0c…   an entry; its name holds everything that its content depends on
    └── llm-1-edge-int8-llamacpp-0.3.36-….part  an entry that is being written, or whose writer was killed

An entry is written under its `.part` name and renamed when it is whole and on the disk. Each folder holds a file
`lock`. The writer of an entry locks it exclusively and its users share the lock, so two workers do not write the same
entry twice, and no entry is removed while it is in use. The kernel ends a lock with its process, so the next process
that needs the name removes the folder of a killed writer. The time of an entry's last use is its lock file's.

This module uses the standard library only, because an adapter's own interpreter need not have other packages.
"""

from __future__ import annotations

import errno
import hashlib
import inspect
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from mixmark.harness.contracts.errors import Unsupported, UsageError, explained
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.plugins.locks import acquire
from mixmark.harness.resources.files import sync

FOLDER = "MIXMARK_CACHE"
LIMIT = "MIXMARK_CACHE_GB"
DEFAULT_LIMIT_GB = 20.0
MARGIN_BYTES = 1 << 30
"""What stays free on the disk beside an entry, because a full disk ends other programs."""
LOCK = "lock"
IN_USE = "in use"
PART = ".part"
POLL_S = 0.1


@dataclass(frozen=True)
class CachedModel:
    """A folder of the cache, whole or with the suffix PART."""

    path: Path
    size_bytes: int
    used_s: float
    """The time of its last use, in seconds since 1970."""


@contextmanager
def converted(
    suite: Suite, precision: str, engine: str, size_bytes: int, write: Callable[[Path], None]
) -> Iterator[Path]:
    """The folder of a suite's model, converted for an engine by `write` unless the cache holds it already.

    engine: the engine, its version, and all else that the converted model depends on. size_bytes: the size of the files
    to be written. The name also depends on the sources of the suite, of its weights and of `write`, with all modules of
    their packages, and on the state of a checkpoint's files, so a model that other code converted, or that came from
    other weights, is not reused.
    """
    depends = hashlib.sha256(_sources(type(suite)) + _sources(type(suite.weights())) + _sources(write))
    depends.update(f"weight class {suite.weight_class}\n".encode())
    for name, value in sorted(suite.options.items()):
        depends.update(f"{name}={value}\n".encode())
    if checkpoint := suite.options.get("weights"):
        depends.update("\n".join(_file_states(Path(checkpoint))).encode())
    name = f"{suite.name}-{suite.version}-{suite.tier}-{precision}-{engine}-{depends.hexdigest()[:16]}"
    with folder(name, size_bytes, write) as path:
        yield path


@contextmanager
def engines(suite: Suite, precision: str, engine: str, size_bytes: int) -> Iterator[Path | None]:
    """A folder where an engine keeps what it compiles from a suite's graphs, in folders of its own.

    None if the cache has no room, cannot be written, or another process has the folder now. Its name depends on the
    weights, since an engine may tell two models apart by their structure alone. What a killed process left may be half
    of an engine: it is removed. engine: names the device as well.
    """
    with ExitStack() as stack:
        path = None
        with suppress(Unsupported, OSError):
            found = stack.enter_context(converted(suite, precision, f"{engine}-engines", size_bytes, _nothing))
            file = stack.enter_context(open(found / IN_USE, "ab", buffering=0))
            if acquire(file.fileno(), shared=False):
                if file.tell():
                    for folder in filter(Path.is_dir, found.iterdir()):
                        shutil.rmtree(folder)
                file.write(b"1")
                path = found
        yield path
        if path is not None:
            file.truncate(0)


def _nothing(folder: Path) -> None:
    """Writes nothing: the engine will."""


@contextmanager
def folder(name: str, size_bytes: int, write: Callable[[Path], None]) -> Iterator[Path]:
    """The folder `name` of the cache, which is not removed before the block ends.

    If it does not exist, `write` fills it, and may use other entries meanwhile. If another process is writing it, this
    one waits. Raises Unsupported if there is no room or the cache cannot be written, and the errors of `write`.
    """
    path = root() / re.sub(r"[^A-Za-z0-9._-]+", "_", name)
    lock = None
    while lock is None:
        lock = _share(path)
        if lock is None:
            _make(path, size_bytes, write)
    try:
        yield path
    finally:
        os.close(lock)


def root() -> Path:
    """The folder of the cache; it need not exist."""
    if given := os.environ.get(FOLDER):
        return Path(given).absolute()
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given).absolute() / "mixmark"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise UsageError("this user has no home folder for the cache of converted models", f"set {FOLDER}") from error
    return home.joinpath(*("Library", "Caches") if sys.platform == "darwin" else (".cache",), "mixmark")


def limit_bytes() -> int:
    """The size that the cache may grow to. Raises UsageError if the environment variable is not a size."""
    given = os.environ.get(LIMIT) or str(DEFAULT_LIMIT_GB)
    if not re.fullmatch(r"\d+(\.\d+)?", given):
        raise UsageError(f"{LIMIT} is {given!r}", "give a number of gigabytes, such as 20")
    return int(float(given) * 1e9)


def entries() -> list[CachedModel]:
    """The folders of the cache, the most recently used first."""
    found = []
    for path in root().glob("*"):
        with suppress(OSError):  # another process has just removed it
            used_s = (path / LOCK).stat().st_mtime
            found.append(CachedModel(path, _size(path), used_s))
    return sorted(found, key=lambda entry: -entry.used_s)


def remove(entry: CachedModel) -> bool:
    """Removes an entry. False if a process uses or writes it, or if it may not be removed, such as another user's."""
    try:
        lock = _lock(entry.path, shared=False)
        if lock is None:
            return not entry.path.exists()
        try:
            part = entry.path.with_name(f"{entry.path.name.removesuffix(PART)}.{os.getpid()}{PART}")
            entry.path.rename(part)  # first, so that a killed process leaves no half of an entry under its name
            _delete(part)
        finally:
            os.close(lock)
    except OSError:
        return False
    return True


def _share(path: Path) -> int | None:
    """The open, shared lock of an entry; None if there is no entry."""
    while path.exists():
        lock = _lock(path, shared=True)
        if lock is not None:
            with suppress(OSError):  # the cache may lie on a read-only disk
                os.utime(path / LOCK)
            return lock
        time.sleep(POLL_S)  # another process is removing it
    return None


def _make(path: Path, size_bytes: int, write: Callable[[Path], None]) -> None:
    """Writes an entry, or waits a moment if another process is writing it."""
    part = path.with_name(path.name + PART)
    with explained(f"cannot write {part}", f"set {FOLDER} to a folder that can be written", Unsupported):
        part.mkdir(parents=True, exist_ok=True)
        lock = _lock(part, shared=False, create=True)
    if lock is None:
        time.sleep(POLL_S)
        return
    try:
        if path.exists():  # another process has written it meanwhile
            _delete(part)
            return
        _delete_content(part)  # left by a killed process
        _make_room(size_bytes)
        write(part)
        for file in (*part.rglob("*"), part):
            sync(file)
        part.rename(path)
    except BaseException as error:
        _delete(part)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(size_bytes) from error
        raise
    finally:
        os.close(lock)


def _make_room(size_bytes: int) -> None:
    """Removes the least recently used entries until `size_bytes` more fit below the limit and on the disk."""
    limit = limit_bytes()
    if size_bytes > limit:
        raise Unsupported(
            f"the converted model takes {filesize(size_bytes)}, and the cache is limited to {filesize(limit)}",
            f"export {LIMIT}={math.ceil(size_bytes / 1e9)}",
        )
    present = entries()
    total = sum(entry.size_bytes for entry in present)
    for entry in reversed(present):
        if total + size_bytes <= limit and _free() >= size_bytes + MARGIN_BYTES:
            break
        if remove(entry):
            total -= entry.size_bytes
    if total + size_bytes > limit:
        raise Unsupported(
            f"the converted model takes {filesize(size_bytes)}, and entries in use take {filesize(total)} of the "
            f"cache's limit of {filesize(limit)}",
            f"export {LIMIT}={math.ceil((total + size_bytes) / 1e9)}",
        )
    if _free() < size_bytes + MARGIN_BYTES:
        raise _disk_full(size_bytes)


def _disk_full(size_bytes: int) -> Unsupported:
    return Unsupported(
        f"the disk of {root()} has {filesize(_free())} free, and the converted model takes {filesize(size_bytes)} "
        f"beside {filesize(MARGIN_BYTES)} that stay free",
        f"free some space, or set {FOLDER} to a folder on a larger disk",
    )


def _free() -> int:
    return shutil.disk_usage(root()).free


def _lock(path: Path, *, shared: bool, create: bool = False) -> int | None:
    """The open and locked lock file of a folder; None if another process holds the lock or the folder is gone."""
    try:
        file = os.open(path / LOCK, (os.O_RDONLY if shared else os.O_RDWR) | (os.O_CREAT if create else 0), 0o644)
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):
        if acquire(file, shared) and os.path.samestat(os.fstat(file), os.stat(path / LOCK)):
            return file
    os.close(file)
    return None


def _delete(part: Path) -> None:
    """Removes a folder whose lock is held. Its lock file goes last, because `entries` finds a folder by that file."""
    _delete_content(part)
    with suppress(OSError):  # another process may be using the name again
        (part / LOCK).unlink()
        part.rmdir()


def _delete_content(part: Path) -> None:
    for path in part.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _file_states(path: Path) -> Iterator[str]:
    """The path, size and time of each file of a checkpoint."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        state = file.stat()
        yield f"{file.absolute()} {state.st_size} {state.st_mtime_ns}"


def _sources(code: Callable[..., object]) -> bytes:
    """The source files that a class, a function or a partial function depends on.

    These are its module's file, the other modules of its package, and the modules of the packages around that, except
    the outermost: modules of an adapter's package may import the modules that several adapters share.
    """
    try:
        file = Path(inspect.getfile(code.func if isinstance(code, partial) else code))
    except (OSError, TypeError):
        return b""  # defined in an interactive session
    packages = [*takewhile(lambda folder: (folder / "__init__.py").exists(), file.parents)]
    folders = [*packages[:1], *packages[1:-1]]
    modules = [module for folder in folders for module in sorted(folder.glob("*.py"))]
    return b"".join(module.read_bytes() for module in modules or [file])
