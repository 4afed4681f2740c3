"""Before a command measures: no other run uses the machine, and if other programs use it, the user is told."""

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
DISTURBED = "its result will be called disturbed"


@contextmanager
def alone(folder: Path, tier: Tier, wait_idle_s: float | None) -> Iterator[None]:
    """Holds the machine's lock within the block, and says if other programs use the machine. folder: of the run.

    wait_idle_s: how long to wait for the lock and for an idle machine; None: not at all. Without it nobody looks at the
    machine before a run at the smoke tier, which is never ranked and takes seconds. Raises UsageError where another run
    keeps the lock.
    """
    patience_s = wait_idle_s or 0.0
    begin_s = time.monotonic()
    with ExitStack() as stack:
        with Waiting(patience_s) as waiting:
            _hold(stack, folder, waiting, begin_s + patience_s)
            if tier != "smoke" or wait_idle_s is not None:
                _look(waiting, begin_s + patience_s - time.monotonic())
        yield


def _hold(stack: ExitStack, folder: Path, waiting: Waiting, deadline_s: float) -> None:
    """Takes the machine's lock for as long as the stack lives."""
    from mixmark.harness.plugins import locks

    while True:
        holder = locks.Holder(os.getpid(), str(folder.absolute()), datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            problem = stack.enter_context(locks.machine(holder))
        except locks.Taken as taken:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                hint = "wait until it has ended; --wait-idle 600 waits for that, at most 600 s"
                raise UsageError(f"another run measures on this machine: {taken}", hint) from taken
            waiting(f"another run measures on this machine: {taken}")
            time.sleep(min(POLL_S, left_s))
        else:
            if problem:
                click.echo(f"mixmark: {problem}, so another run at the same time would not be noticed", err=True)
            return


def _look(waiting: Waiting, patience_s: float) -> None:
    """Says who else uses the machine, after it was waited for."""
    from mixmark.harness.discover.machine import other_load

    others = other_load.wait(patience_s, lambda busy: waiting(f"other programs use {busy}"))
    waiting.stop()
    if others is None:
        if patience_s > 0:
            click.echo("mixmark: this machine does not say how busy it is, so nothing is waited for", err=True)
    elif others.busy and patience_s > 0:
        click.echo(f"mixmark: after {waiting.seconds:g} s of waiting, other programs still use {others}", err=True)
        click.echo(f"         The run begins all the same; {DISTURBED}.", err=True)
    elif others.busy:
        click.echo(f"mixmark: other programs use {others}", err=True)
        click.echo(f"         The run begins all the same; {DISTURBED}. --wait-idle 60 waits up to 60 s.", err=True)


class Waiting:
    """Shows what is waited for: on a terminal in a line that changes, elsewhere once for each reason."""

    def __init__(self, seconds: float) -> None:
        from rich.console import Console

        self.seconds = seconds
        self._status = Console(stderr=True).status("")
        self._told = ""

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._status.stop()

    def __call__(self, reason: str) -> None:
        from rich.text import Text

        said = f"waiting up to {self.seconds:g} s: {reason}"
        if self._status.console.is_interactive:
            self._status.update(Text(said))
            self._status.start()
        elif (kind := reason.partition(":")[0].partition(" use ")[0]) != self._told:
            self._told = kind
            click.echo(f"mixmark: {said}", err=True)
