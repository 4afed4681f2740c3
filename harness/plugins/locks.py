"""Shared and exclusive locks on open files (flock): of a run's journal, and of an entry of the model cache.

The kernel releases a lock when its process ends. The library filelock, which locks the machine, has no shared lock on
a file that already holds data and may be read-only.
"""

from __future__ import annotations

import errno
import sys

UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # of file systems that have no locks


def acquire(file: int, shared: bool = False) -> bool:
    """Locks an open file until it is closed; False if another process holds it. Without support by the system or the
    file system, every file counts as locked."""
    if sys.platform == "win32":  # a system on which results can be read, but no worker can be started
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return True
