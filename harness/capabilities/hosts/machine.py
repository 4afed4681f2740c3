"""The machine that an agent runs on: its identity, and its lock, which the agents of a run share."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import psutil

from mixmark.harness.contracts.errors import MixmarkError, explained
from mixmark.harness.machine.machine_lock import Holder, Taken, hold
from mixmark.harness.record.files import sha256_of
from mixmark.harness.resources.psutils import known

COPY = "copy it to the same path on every host"
BOOT = Path("/proc/sys/kernel/random/boot_id")


def identity() -> str:
    """Identifies this machine until it is restarted: equal in all its processes, and different on every other machine.
    It names no machine, and appears in no result."""
    boot = BOOT.read_bytes() if BOOT.is_file() else str(known(psutil.boot_time, 0)).encode()
    return hashlib.sha256(boot).hexdigest()


def check_file(path: Path, sha256: str) -> None:
    """Raises MixmarkError unless the file here has this content."""
    with explained(f"cannot read {path} there", COPY):
        same = sha256_of(path.resolve()) == sha256
    if not same:
        raise MixmarkError(f"{path} has another content there than on the leading host", COPY)


def hold_for_hosts(stack: ExitStack, run: str) -> None:
    """Takes the machine's lock until the stack is closed, unless another agent of the same run has it. Raises
    MixmarkError if another run measures there.

    run: identifies the run."""
    text = f"a run of several hosts, {run}"
    holder = Holder(os.getpid(), text, datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        stack.enter_context(hold(holder))
    except Taken as taken:
        if taken.holder is None or taken.holder.folder != text:
            raise MixmarkError(f"another run measures there: {taken}", "wait until it has ended") from taken
