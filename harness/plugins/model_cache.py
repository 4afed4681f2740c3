"""The cache of converted models: folders that are made once and used again until room is needed.

    $MIXMARK_CACHE, or `mixmark` in the user's cache folder
    ├── llm-1-edge-int4-llamacpp-0.3.36-5f0c…   an entry: its name says all that its content depends on
    └── llm-1-edge-int8-llamacpp-0.3.36-….part  one that is being made, or whose maker was killed

An entry is made under the other name and renamed when it is whole and on the disk. Each folder holds a file `lock`. The
maker of an entry holds its lock alone, and everyone who uses it shares the lock, so two workers do not make the same
entry twice, and what is in use is not removed. The kernel ends a lock with its process: what a killed one left behind
is removed by whoever comes next. The time of an entry's last use is that of its lock file.

This module needs nothing but the standard library, since adapters also run in interpreters of their own.
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from mixmark.harness.contracts.errors import Unsupported, UsageError
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.plugins.locks import acquire

FOLDER = "MIXMARK_CACHE"
LIMIT = "MIXMARK_CACHE_GB"
DEFAULT_LIMIT_GB = 20.0
MARGIN_BYTES = 1 << 30
"""What stays free on the disk beside an entry: a full disk would end other programs."""
LOCK = "lock"
PART = ".part"
POLL_S = 0.1


@dataclass(frozen=True)
class Entry:
    """What the cache holds under a name. `whole` is False for what a killed process left behind."""

    path: Path
    size_bytes: int
    used_s: float
    """When it was last used, in seconds since 1970."""
    whole: bool


@contextmanager
def converted(
    suite: Suite, precision: str, engine: str, size_bytes: int, write: Callable[[Path], None]
) -> Iterator[Path]:
    """The folder of a suite's model, converted for an engine by `write` where the cache does not hold it yet.

    engine: the engine, its version, and whatever else the converted model depends on. size_bytes: how large the files
    will be. The name also depends on the sources of the suite, of its weights and of `write`, with all modules of their
    packages, and on the state of a checkpoint's files, so a model that was converted by other code or from other
    weights is not taken.
    """
    depends = hashlib.sha256(_sources(type(suite)) + _sources(type(suite.weights())) + _sources(write))
    for name, value in sorted(suite.options.items()):
        depends.update(f"{name}={value}\n".encode())
    if checkpoint := suite.options.get("weights"):
        depends.update("\n".join(_stamps(Path(checkpoint))).encode())
    name = f"{suite.name}-{suite.version}-{suite.tier}-{precision}-{engine}-{depends.hexdigest()[:16]}"
    with folder(name, size_bytes, write) as path:
        yield path


@contextmanager
def folder(name: str, size_bytes: int, write: Callable[[Path], None]) -> Iterator[Path]:
    """The folder `name` of the cache, which is not removed before the block ends. Where it does not exist, `write`
    fills it, and may use other entries meanwhile; while another process does so, this one waits.

    Raises Unsupported where there is no room or the cache cannot be written, and what `write` raises.
    """
    place = root() / re.sub(r"[^A-Za-z0-9._-]+", "_", name)
    held = None
    while held is None:
        held = _existing(place)
        if held is None:
            _make(place, size_bytes, write)
    try:
        yield place
    finally:
        os.close(held)


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
    """The size that the cache may grow to. Raises UsageError where the environment variable is not a size."""
    given = os.environ.get(LIMIT) or str(DEFAULT_LIMIT_GB)
    if not re.fullmatch(r"\d+(\.\d+)?", given):
        raise UsageError(f"{LIMIT} is {given!r}", "give a number of gigabytes, such as 20")
    return int(float(given) * 1e9)


def entries() -> list[Entry]:
    """What the cache holds, the most recently used first."""
    found = []
    for path in root().glob("*"):
        with suppress(OSError):  # another process removed it just now
            used_s = (path / LOCK).stat().st_mtime
            found.append(Entry(path, _size(path), used_s, not path.name.endswith(PART)))
    return sorted(found, key=lambda entry: -entry.used_s)


def remove(entry: Entry) -> bool:
    """Removes an entry; False where a process uses it or is making it, or where it cannot be removed, as where it
    belongs to another user."""
    try:
        return _removed(entry)
    except OSError:
        return False


def _removed(entry: Entry) -> bool:
    held = _lock(entry.path, shared=False)
    if held is None:
        return not entry.path.exists()
    try:
        part = entry.path.with_name(f"{entry.path.name.removesuffix(PART)}.{os.getpid()}{PART}")
        entry.path.rename(part)  # so that a killed process leaves no half of an entry under its name
        _delete(part)
    finally:
        os.close(held)
    return True


def _existing(place: Path) -> int | None:
    """The open, shared lock of an entry; None where there is none."""
    while place.exists():
        held = _lock(place, shared=True)
        if held is not None:
            with suppress(OSError):  # a cache on a disk that can only be read
                os.utime(place / LOCK)
            return held
        time.sleep(POLL_S)  # another process is removing it
    return None


def _make(place: Path, size_bytes: int, write: Callable[[Path], None]) -> None:
    """Makes an entry, or waits for another process that does."""
    part = place.with_name(place.name + PART)
    try:
        part.mkdir(parents=True, exist_ok=True)
        held = _lock(part, shared=False, create=True)
    except OSError as error:
        raise Unsupported(
            f"{part} cannot be written: {error.strerror or error}", f"set {FOLDER} to a folder that can be written"
        ) from error
    if held is None:
        time.sleep(POLL_S)
        return
    try:
        if place.exists():  # another process has made it since we looked
            _delete(part)
            return
        _delete_content(part)  # that of a killed process
        _make_room(size_bytes)
        write(part)
        for file in (*part.rglob("*"), part):
            _sync(file)
        part.rename(place)
    except BaseException as error:
        _delete(part)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _too_little(size_bytes) from error
        raise
    finally:
        os.close(held)


def _make_room(size_bytes: int) -> None:
    """Removes the least recently used entries until `size_bytes` more fit below the limit and on the disk."""
    limit = limit_bytes()
    if size_bytes > limit:
        raise Unsupported(
            f"the converted model takes {_gb(size_bytes)}, and the cache is limited to {_gb(limit)}",
            f"export {LIMIT}={math.ceil(size_bytes / 1e9)}",
        )
    held = entries()
    total = sum(entry.size_bytes for entry in held)
    for entry in reversed(held):
        if total + size_bytes <= limit and _free() >= size_bytes + MARGIN_BYTES:
            break
        if remove(entry):
            total -= entry.size_bytes
    if total + size_bytes > limit:
        raise Unsupported(
            f"the converted model takes {_gb(size_bytes)}, and what is in use takes {_gb(total)} of the cache's limit"
            f" of {_gb(limit)}",
            f"export {LIMIT}={math.ceil((total + size_bytes) / 1e9)}",
        )
    if _free() < size_bytes + MARGIN_BYTES:
        raise _too_little(size_bytes)


def _too_little(size_bytes: int) -> Unsupported:
    return Unsupported(
        f"the disk of {root()} has {_gb(_free())} free, and the converted model takes {_gb(size_bytes)} beside"
        f" {_gb(MARGIN_BYTES)} that stay free",
        f"mixmark cache --clear, or set {FOLDER} to a folder on a larger disk",
    )


def _free() -> int:
    return shutil.disk_usage(root()).free


def _lock(path: Path, *, shared: bool, create: bool = False) -> int | None:
    """The open and locked lock file of a folder; None where it is held by another process or the folder is gone."""
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
    """Removes a folder whose lock is held, the lock last: without it nobody would find what a killed process left."""
    _delete_content(part)
    with suppress(OSError):  # another process has claimed the name anew
        (part / LOCK).unlink()
        part.rmdir()


def _delete_content(part: Path) -> None:
    for left in part.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        elif left.name != LOCK:
            left.unlink()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _stamps(path: Path) -> Iterator[str]:
    """The name, size and time of the files of a checkpoint."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        state = file.stat()
        yield f"{file.absolute()} {state.st_size} {state.st_mtime_ns}"


def _sources(what: Callable[..., object]) -> bytes:
    """The file of a class or a function, also of one with some arguments given; and the other modules of its package
    and of the packages around that, but for the outermost: an adapter's package imports what other adapters share."""
    try:
        file = Path(inspect.getfile(what.func if isinstance(what, partial) else what))
    except (OSError, TypeError):
        return b""  # what was typed into an interpreter
    packages = [*takewhile(lambda folder: (folder / "__init__.py").exists(), file.parents)]
    folders = [*packages[:1], *packages[1:-1]]
    return (
        b"".join(each.read_bytes() for folder in folders for each in sorted(folder.glob("*.py"))) or file.read_bytes()
    )


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
