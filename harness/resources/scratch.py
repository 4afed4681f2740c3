"""The temporary files of this process: one folder, which also goes if the process is killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX, LOCK = "mixmark-", "lock"


@contextmanager
def own_folder() -> Iterator[None]:
    """Keeps all temporary files of this process below a folder of its own within the block, and removes the folders of
    processes that are gone. A process locks its folder, and the kernel releases the lock however the process ends."""
    before, folder = tempfile.tempdir, Path(tempfile.mkdtemp(prefix=PREFIX))
    for lock in folder.parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(Timeout, OSError):
            if lock.parent.lstat().st_uid == folder.stat().st_uid:  # another user's may be a trap
                with FileLock(lock, timeout=0):
                    shutil.rmtree(lock.parent, ignore_errors=True)
    own = FileLock(folder / LOCK)
    with suppress(OSError, NotImplementedError):  # a file system without locks
        own.acquire()
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        own.release()
        remove()
        tempfile.tempdir = before


def remove() -> None:
    """Removes the folder of this process within `own_folder`, for a process that ends at once."""
    if tempfile.tempdir and Path(tempfile.tempdir, LOCK).exists():
        shutil.rmtree(tempfile.tempdir, ignore_errors=True)
