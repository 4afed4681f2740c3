"""The lock of the machine: a run that measures holds it, so that two runs do not disturb each other.

The lock file lies in /tmp, which all users of a machine share, and its text names the holder. The kernel releases the
lock when its process ends, so the file that a killed run leaves behind locks nothing. A container has a /tmp of its
own: the environment variable MIXMARK_LOCK names a file that several containers share. If the file cannot be locked, a
run goes on without a lock and says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.resources.files import regular

MACHINE = Path("/tmp/mixmark.lock")
VARIABLE = "MIXMARK_LOCK"
MAX_BYTES = 1 << 16
MAX_TEXT = 500  # characters of each text in the file, which any user may write
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # any user may own the file


@dataclass(frozen=True)
class Holder:
    """The run that holds the lock, as it describes itself."""

    pid: int
    folder: str
    """The folder of its result."""
    since_utc: str

    def __str__(self) -> str:
        return f"process {self.pid}, since {self.since_utc}, which writes to {self.folder}"


class Taken(Exception):
    """Another process holds the lock. `holder` is None if the file does not name it."""

    def __init__(self, holder: Holder | None) -> None:
        super().__init__(str(holder) if holder else "a process that the lock does not name")
        self.holder = holder


@contextmanager
def hold(holder: Holder) -> Iterator[Reason | None]:
    """Holds the lock within the block. Yields None, or the reason why there is no lock. Raises Taken."""
    path = Path(os.environ.get(VARIABLE) or MACHINE)
    lock = FileLock(path, mode=0o666)  # every user may lock it
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Taken(_read(path)) from None
    except (OSError, NotImplementedError) as error:  # the second: filelock's word for a file system without locks
        yield f"{path} cannot be locked: {getattr(error, 'strerror', None) or error}"
        return
    try:
        _write(path, json.dumps(asdict(holder)))
        yield None
    finally:
        _write(path, "")
        lock.release()


def _write(path: Path, text: str) -> None:
    """Replaces the text of the locked file. The lock holds without it."""
    with suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_TRUNC | NO_LINK)
        try:
            os.write(file, text.encode()[:MAX_BYTES])
        finally:
            os.close(file)


def _read(path: Path) -> Holder | None:
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        text = json.loads(regular(path, MAX_BYTES))
        return Holder(int(text["pid"]), plain(str(text["folder"]), MAX_TEXT), plain(str(text["since_utc"]), MAX_TEXT))
    return None
