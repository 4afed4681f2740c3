"""Reserves the machine for a command that measures: waits for other runs, and reports other programs' load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixmark.harness.contracts.errors import UsageError

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Tier

POLL_S = 1.0


@contextmanager
def reserve(folder: Path, tier: Tier, wait_idle_s: float | None) -> Iterator[None]:
    """Holds the machine's lock within the block, and reports other programs' load before it.

    folder: of the run. wait_idle_s: how long to wait for the lock and for an idle machine. If it is None, the run does
    not wait and, at the smoke tier, which is never ranked and takes seconds, does not read the load either. Raises
    UsageError if another run keeps the lock.
    """
    from mixmark.harness.measure import experiments

    patience_s = wait_idle_s or 0.0
    deadline_s = time.monotonic() + patience_s
    with ExitStack() as stack:
        _lock(stack, folder, patience_s)
        for undone in (each for experiment in experiments.installed().values() for each in experiment.recover()):
            click.echo(f"mixmark: {undone}", err=True)
        if tier != "smoke" or wait_idle_s is not None:
            _report_load(patience_s, deadline_s - time.monotonic())
        yield


def _lock(stack: ExitStack, folder: Path, patience_s: float) -> None:
    """Holds the machine's lock until the stack is closed."""
    from mixmark.harness.machine import machine_lock

    now = datetime.now(UTC).isoformat(timespec="seconds")
    holder = machine_lock.Holder(os.getpid(), str(folder.absolute()), now)
    deadline_s = time.monotonic() + patience_s
    waits = False
    while True:
        try:
            problem = stack.enter_context(machine_lock.hold(holder))
        except machine_lock.Taken as taken:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                hint = "wait until it has ended; --wait-idle 600 waits for that, at most 600 s"
                raise UsageError(f"another run measures on this machine: {taken}", hint) from taken
            if not waits:
                _say_waiting(patience_s, f"another run measures on this machine: {taken}")
            waits = True
            time.sleep(min(POLL_S, left_s))
        else:
            if problem:
                click.echo(f"mixmark: {problem}, so another run at the same time would not be noticed", err=True)
            return


def _say_waiting(patience_s: float, reason: str) -> None:
    click.echo(f"mixmark: waiting up to {patience_s:g} s: {reason}", err=True)


def _report_load(patience_s: float, left_s: float) -> None:
    """Waits for an idle machine, and reports the programs that still use it. left_s: of the patience."""
    from mixmark.harness.machine import other_load

    load = other_load.wait(left_s, lambda busy: _say_waiting(patience_s, f"other programs use {busy}"))
    if load is None:
        if patience_s > 0:
            click.echo("mixmark: this machine does not say how busy it is, so nothing is waited for", err=True)
    elif load.busy:
        waited = patience_s > 0
        still = f"after {patience_s:g} s of waiting, other programs still use" if waited else "other programs use"
        told = "be called disturbed" if load.disturbs else "have a warning"
        remedy = "" if waited else " --wait-idle 60 waits up to 60 s."
        click.echo(f"mixmark: {still} {load}", err=True)
        click.echo(f"         The run begins all the same; its result will {told}.{remedy}", err=True)
