"""Ends the processes that a worker leaves behind: they left its process group, or lost their parent.

While workers live, this process is a child subreaper (Linux, prctl(2)): a process whose parent ended becomes a child of
this one and not of init, so all descendants of a worker stay descendants of this process. A process that a service of
the system starts on a worker's request (systemd, cron, a container's daemon) is no descendant and is not found. Other
systems have no subreaper: there only the descendants that a worker has when it is ended are found.

What the process of a plugin that is no adapter left behind is not ended, and `machine.counters` counts its CPU time.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

from mixmark.harness.contracts.text import plain
from mixmark.harness.resources.psutils import UNKNOWN, known

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
GRACE_S = 2.0  # a process that notices its worker's end may end by itself for this long
PATIENCE_S = 10.0  # after which a process that does not die of SIGKILL is given up
POLL_S = 0.02
MAX_NAME = 40  # characters of a process's name

_lock = threading.RLock()
_living: dict[int, psutil.Process] = {}
"""The workers that were not ended yet, by process id."""


def guard() -> None:
    """Makes this process non-dumpable, for good: no process of the same user, except root's, can attach to it or read
    its memory, which holds the seeds of feeds."""
    _prctl(PR_SET_DUMPABLE)


def start(start_worker: Callable[[], int]) -> int:
    """Starts a worker while this process adopts orphans, and returns its process id. Its errors pass through."""
    with _lock:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            pid = start_worker()
            _living[pid] = psutil.Process(pid)  # it exists until it is waited for, also where it ended at once
            return pid
        finally:
            _release()


def end(pid: int, kill: Callable[[], None], spared: Iterable[int] = ()) -> tuple[str, ...]:
    """Ends a worker by `kill`, and then what it left behind; returns the names of the processes that had to be killed.

    spared: processes that are left alone, with their descendants, if they are older than the workers. A younger one
    that the worker left behind is killed and not returned. While several workers live, orphans are attributed to the
    one that ends last.
    """
    with _lock:
        if pid not in _living:
            kill()
            return ()
        begun = min(map(_created, _living.values()))
        family = [each for each in _descendants(_living[pid]) if _group(each) != pid]
        kill()
        del _living[pid]
        last = not _living
        try:
            helpers = [process for pid in spared for process in _process(pid)]
            older = [helper for helper in helpers if not _created(helper) >= begun]
            kept = {each.pid for helper in older for each in (helper, *_descendants(helper))}
            younger = {helper.pid for helper in helpers} - kept

            def left() -> list[psutil.Process]:
                """The processes that still live, each before its descendants."""
                tops = [*family, *(_orphans(begun) if last else ())]
                found = {each.pid: each for top in tops for each in (top, *_descendants(top))}
                return [each for each in found.values() if each.pid not in kept and _lives(each)]

            _until(lambda: not left(), GRACE_S)
            killed: dict[int, str] = {}

            def ended() -> bool:
                for each in (remaining := left()):
                    killed.setdefault(each.pid, _name(each))
                    with suppress(*UNKNOWN):
                        each.kill()
                return not remaining

            _until(ended, PATIENCE_S)
            return tuple(name for pid, name in killed.items() if pid not in younger)
        finally:
            _release()


def _release() -> None:
    """Adopts no orphans any more once no worker lives."""
    if not _living:
        _prctl(PR_SET_CHILD_SUBREAPER)


def _orphans(begun: float) -> list[psutil.Process]:
    """The children that this process adopted: they were created after the first worker, and are in another session
    (each worker begins one, and no process can enter a session that exists)."""
    found: list[psutil.Process] = []
    if sys.platform != "win32":
        for child in known(lambda: psutil.Process().children(), ()):
            with suppress(OSError):
                if child.pid not in _living and os.getsid(child.pid) != os.getsid(0) and _created(child) >= begun:
                    found.append(child)
    return found


def _lives(process: psutil.Process) -> bool:
    """Whether the process runs. An orphan that has ended is reaped."""
    with suppress(*UNKNOWN):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.is_running()
        if sys.platform != "win32":
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    return False


def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _process(pid: int) -> list[psutil.Process]:
    return known(lambda: [psutil.Process(pid)], [])


def _created(process: psutil.Process) -> float:
    """When a process was created, in seconds since 1970. NaN if unknown, which is neither before nor after anything."""
    return known(process.create_time, math.nan)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    """The descendants of a process; none if it is gone, also if its id belongs to another process by now."""
    return known(lambda: [*process.children(recursive=True)], [])


def _group(process: psutil.Process) -> int | None:
    if sys.platform != "win32":
        with suppress(OSError):
            return os.getpgid(process.pid)
    return None


def _name(process: psutil.Process) -> str:
    return known(lambda: plain(process.name(), MAX_NAME), "?")


def _prctl(option: int, value: int = 0) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
