"""Locks on open files (flock).

The kernel ends a lock with the process that holds it, however that process ends, so the file that a killed run leaves
behind locks nothing.

One file is locked for the whole machine, by the run that measures on it. It lies in /tmp, because all users of a
machine share that folder, and its text says who holds it. A container has a /tmp of its own: the environment variable
MIXMARK_LOCK names a file that several containers share. Where no file can be locked, a run goes on without a lock, and
says so.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

from mixmark.harness.contracts.text import plain

fcntl: ModuleType | None
try:
    fcntl = importlib.import_module("fcntl")
except ImportError:  # a system on which results can be read, but no worker can be started
    fcntl = None

MACHINE = Path("/tmp/mixmark.lock")
VARIABLE = "MIXMARK_LOCK"
MAX_BYTES = 1 << 16
MAX_TEXT = 500  # characters of what the file says, which any user may write
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # of file systems that have no locks


@dataclass(frozen=True)
class Holder:
    """The run that holds the machine's lock, as it says itself."""

    pid: int
    folder: str
    since_utc: str

    def __str__(self) -> str:
        return f"process {self.pid}, since {self.since_utc}, which writes to {self.folder}"


class Taken(Exception):
    """Another process holds the machine's lock. `holder` is None where it has not said who it is."""

    def __init__(self, holder: Holder | None) -> None:
        super().__init__(str(holder) if holder else "a process that does not say which")
        self.holder = holder


@contextmanager
def machine(holder: Holder) -> Iterator[str]:
    """Holds the machine's lock within the block. Gives an empty text, or the reason why there is no lock.

    Raises Taken where another process holds it.
    """
    path = Path(os.environ.get(VARIABLE) or MACHINE)
    try:
        file = _locked(path, holder)
    except OSError as error:
        yield f"{path} cannot be locked: {error.strerror or error}"
        return
    try:
        yield ""
    finally:
        with suppress(OSError):
            os.ftruncate(file, 0)
        os.close(file)


def acquire(file: int, shared: bool = False) -> bool:
    """Locks an open file until it is closed; False where another process holds it. A file system without locks has
    every file locked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return True


def _locked(path: Path, holder: Holder) -> int:
    """The file, open, locked, and with its holder's words in it."""
    while True:
        file = _open(path)
        try:
            if not acquire(file):
                raise Taken(_read(file))
            if _is_at(file, path):
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(asdict(holder)).encode()[:MAX_BYTES], 0)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was removed while it was opened, and others lock the new one


def _open(path: Path) -> int:
    """Opens the file, or makes it so that every user can lock it. It may be any user's, so nothing is followed, nothing
    blocks, and an existing file is not opened by O_CREAT, which Linux refuses in /tmp (fs.protected_regular)."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.open(path, flags)
    except FileNotFoundError:
        try:
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL)
            with suppress(OSError):
                os.chmod(path, 0o666)  # the mode above is what the umask leaves
        except FileExistsError:  # another process was quicker
            file = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def _is_at(file: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(file), os.stat(path))
    return False


def _read(file: int) -> Holder | None:
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        told = json.loads(os.pread(file, MAX_BYTES, 0))
        return Holder(int(told["pid"]), plain(str(told["folder"]), MAX_TEXT), plain(str(told["since_utc"]), MAX_TEXT))
    return None
