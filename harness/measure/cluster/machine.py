"""Tells this machine in words that only the hosts of one run can compare, and holds its lock for an agent."""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import psutil

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.discover import machine_lock

BOOT = Path("/proc/sys/kernel/random/boot_id")


def token(secret: bytes) -> str:
    """The same in all processes of a run on this machine since it was started, and nowhere else. Without the run's
    secret it names no machine."""
    boot = BOOT.read_bytes() if BOOT.is_file() else str(psutil.boot_time()).encode()
    return hmac.new(secret, boot, hashlib.sha256).hexdigest()


def hold(stack: ExitStack, token: str) -> None:
    """Takes the machine's lock for as long as the stack lives, unless another agent of the same run has it. Raises
    MixmarkError where another run measures there."""
    run = f"a run of several hosts, {token[:12]}"
    holder = machine_lock.Holder(os.getpid(), run, datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        stack.enter_context(machine_lock.hold(holder))
    except machine_lock.Taken as taken:
        if taken.holder is None or taken.holder.folder != run:
            raise MixmarkError(f"another run measures there: {taken}", "wait until it has ended") from taken
