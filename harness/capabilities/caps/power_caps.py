"""Lowers limits of power for a while, and restores them in every end.

The limits are in a file before the first is lowered. They are restored when the block ends, also by an error or a
signal that becomes an exception; after `kill -9` the next command that measures restores them, and a restart of the
machine does so by itself. Every write is read back. No limit ever exceeds what it was.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.capabilities.caps.facts import SLACK, PowerLimit
from mixmark.harness.capabilities.caps.limiters import Gpus, Limiter, Packages
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.machine.sampling import INTERVAL_S
from mixmark.harness.resources import clock

STATE = Path("/run/mixmark/power-limits.json")
"""One file for all users: whoever measures next must learn that a limit was left lowered. It ends with a restart of the
machine, as a lowered limit does."""
ATTEMPTS = 3


@dataclass(frozen=True)
class Control:
    """A limit of power, and what sets it."""

    limit: PowerLimit
    limiter: Limiter

    def at(self, watts: float) -> Control:
        """The same with another limit."""
        return Control(self.limit.model_copy(update={"watts": watts}), self.limiter)

    def read(self) -> float:
        """In watts. Raises OSError."""
        return self.limiter.read(self.limit.id)

    def write(self, watts: float) -> None:
        """Raises OSError."""
        self.limiter.write(self.limit.id, watts)


class CapFailed(MixmarkError):
    """A limit was not lowered."""


class LimitLeft(MixmarkError):
    """A limit could not be restored."""


def controls_of(limits: Iterable[PowerLimit]) -> list[Control]:
    """What sets these limits. Raises KeyError for a limit of no known limiter."""
    known: dict[str, Limiter] = {each.name: each for each in (Packages(), Gpus())}
    return [Control(limit, known[limit.id.partition("/")[0]]) for limit in limits]


def find(devices: Iterable[str]) -> list[Control]:
    """The limits of these devices, by their ids. A device without one is left out.

    Raises UsageError if there is none, or one may not be set.
    """
    if sys.platform != "linux":
        raise UsageError("power limits are set on Linux only", "leave --power-cap away")
    ids = list(devices)
    controls = controls_of([*Packages().limits(ids), *Gpus().limits(ids)])
    if not controls:
        raise UsageError(
            "no device here has a limit of power that can be set",
            "processors need Linux's powercap, which virtual machines hide; GPUs NVIDIA's driver and nvidia-ml-py",
        )
    if os.geteuid():
        raise UsageError(f"the limit of {controls[0].limit.id} cannot be lowered", AS_ROOT)
    return controls


@contextmanager
def lowered(controls: Sequence[Control], fraction: float, state: Path | None = None) -> Iterator[None]:
    """Limits the power to a fraction of each control's `limit` within the block. state: by default STATE.

    Raises CapFailed before the block if a limit cannot be lowered, LimitLeft after it if one cannot be restored.
    """
    kept = state or STATE
    before = [control.at(_read(control)) for control in controls]
    for control, now in zip(controls, before, strict=True):
        if now.limit.watts < control.limit.watts * fraction * (1 - SLACK):
            raise CapFailed(f"{now.limit.id} is limited to {now.limit.watts:g} W by now, which is less")
    if kept.exists():
        raise CapFailed(f"{kept} keeps the limits of another run: the next run restores them")
    try:
        _keep(kept, before)
    except OSError as error:
        raise CapFailed(f"{kept} cannot be written, so no limit was lowered: {error.strerror}") from error
    try:
        for control in controls:
            _lower(control, control.limit.watts * fraction)
        yield
    finally:
        try:
            _restore(kept, before)
        except KeyboardInterrupt:  # in the middle of it; the run ignores further signals
            _restore(kept, before)
            raise


@contextmanager
def held(controls: Sequence[Control], fraction: float) -> Iterator[None]:
    """Reads the lowered limits as often as the machine is watched, until the block ends. Raises CapFailed at the end if
    one was not what it was set to."""
    ended = threading.Event()

    def read() -> None:
        over = False
        while not over:
            over = clock.wait(ended, INTERVAL_S)
            for control in controls:
                _check(control, control.limit.watts * fraction)

    with ThreadPoolExecutor(1, "limits") as thread:
        reading = thread.submit(read)
        try:
            yield
        finally:
            ended.set()
    reading.result()


def recover(state: Path | None = None) -> list[str]:
    """Restores the limits that a killed run left lowered; returns their ids. Raises UsageError if it cannot."""
    kept = state or STATE
    try:
        left = json.loads(kept.read_text("utf-8"))
        before = controls_of(PowerLimit(id=id, watts=watts) for id, watts in left.items())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError, KeyError) as error:
        raise UsageError(f"{kept}, which keeps lowered power limits, cannot be read: {error}", HINT) from error
    try:
        _restore(kept, before)
    except LimitLeft as error:
        raise UsageError(f"a killed run left power limits lowered: {error}", HINT) from error
    return [control.limit.id for control in before]


AS_ROOT = "only root may set it: run mixmark as root, or leave --power-cap away"
HINT = "run mixmark as root once, or restart the machine"


def _keep(kept: Path, before: Sequence[Control]) -> None:
    """Writes the limits. Raises OSError."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(".new")
    fresh.write_text(json.dumps({control.limit.id: control.limit.watts for control in before}), "utf-8")
    fresh.replace(kept)


def _read(control: Control) -> float:
    try:
        return control.read()
    except Exception as error:  # a plugin's errors may be of any kind
        raise CapFailed(f"the limit of {control.limit.id} cannot be read: {error}") from error


def _lower(control: Control, watts: float) -> None:
    try:
        control.write(watts)
    except Exception as error:  # a plugin's errors may be of any kind
        raise CapFailed(f"the limit of {control.limit.id} cannot be lowered: {error}") from error
    _check(control, watts)


def _check(control: Control, watts: float) -> None:
    now = _read(control)
    if not abs(now - watts) <= SLACK * watts:  # nor if it reads as not a number
        raise CapFailed(f"the limit of {control.limit.id} was set to {watts:g} W, and reads {now:g} W")


def _restore(kept: Path, before: Sequence[Control]) -> None:
    """Raises LimitLeft; then the file stays, for the next attempt."""
    left = [f"{each.limit.id} is not back at {each.limit.watts:g} W" for each in before if not _is_back(each)]
    if left:
        raise LimitLeft("; ".join(left), HINT)
    try:
        kept.unlink(missing_ok=True)
    except OSError as error:
        raise LimitLeft(f"{kept} cannot be removed: {error.strerror}", HINT) from error


def _is_back(control: Control) -> bool:
    watts = control.limit.watts
    for _ in range(ATTEMPTS):
        with suppress(Exception):  # of any kind: the other limits are restored too
            if control.read() < watts:  # another program may have raised it
                control.write(watts)
            if control.read() >= watts * (1 - SLACK):
                return True
    return False
