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
LIMITERS: dict[str, Limiter] = {"rapl": Packages(), "nvml": Gpus()}
"""What reads and sets a limit, by the begin of its id."""


class CapFailed(MixmarkError):
    """A limit was not lowered."""


class LimitLeft(MixmarkError):
    """A limit could not be restored."""


def find(devices: Iterable[str]) -> list[PowerLimit]:
    """The limits of these devices, by their ids. A device without one is left out.

    Raises UsageError if there is none, or one may not be set.
    """
    if sys.platform != "linux":
        raise UsageError("power limits are set on Linux only", "leave --power-cap away")
    ids = list(devices)
    limits = [limit for limiter in LIMITERS.values() for limit in limiter.limits(ids)]
    if not limits:
        raise UsageError(
            "no device here has a limit of power that can be set",
            "processors need Linux's powercap, which virtual machines hide; GPUs NVIDIA's driver and nvidia-ml-py",
        )
    if os.geteuid():
        raise UsageError(f"the limit of {limits[0].id} cannot be lowered", AS_ROOT)
    return limits


@contextmanager
def lowered(limits: Sequence[PowerLimit], fraction: float, state: Path | None = None) -> Iterator[None]:
    """Limits the power to a fraction of each limit within the block. state: by default STATE.

    Raises CapFailed before the block if a limit cannot be lowered, LimitLeft after it if one cannot be restored.
    """
    kept = state or STATE
    before = [limit.model_copy(update={"watts": _read(limit)}) for limit in limits]
    for limit, now in zip(limits, before, strict=True):
        if now.watts < limit.watts * fraction * (1 - SLACK):
            raise CapFailed(f"{now.id} is limited to {now.watts:g} W by now, which is less")
    if kept.exists():
        raise CapFailed(f"{kept} keeps the limits of another run: the next run restores them")
    try:
        _keep(kept, before)
    except OSError as error:
        raise CapFailed(f"{kept} cannot be written, so no limit was lowered: {error.strerror}") from error
    try:
        for limit in limits:
            _lower(limit, limit.watts * fraction)
        yield
    finally:
        try:
            _restore(kept, before)
        except KeyboardInterrupt:  # in the middle of it; the run ignores further signals
            _restore(kept, before)
            raise


@contextmanager
def held(limits: Sequence[PowerLimit], fraction: float) -> Iterator[None]:
    """Reads the lowered limits as often as the machine is watched, until the block ends. Raises CapFailed at the end if
    one was not what it was set to."""
    ended = threading.Event()

    def read() -> None:
        over = False
        while not over:
            over = clock.wait(ended, INTERVAL_S)
            for limit in limits:
                _check(limit, limit.watts * fraction)

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
        before = [PowerLimit(id=id, watts=watts) for id, watts in left.items()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{kept}, which keeps lowered power limits, cannot be read: {error}", HINT) from error
    try:
        _restore(kept, before)
    except LimitLeft as error:
        raise UsageError(f"a killed run left power limits lowered: {error}", HINT) from error
    return [limit.id for limit in before]


AS_ROOT = "only root may set it: run mixmark as root, or leave --power-cap away"
HINT = "run mixmark as root once, or restart the machine"


def _keep(kept: Path, before: Sequence[PowerLimit]) -> None:
    """Writes the limits. Raises OSError."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(".new")
    fresh.write_text(json.dumps({limit.id: limit.watts for limit in before}), "utf-8")
    fresh.replace(kept)


def _limiter(limit: PowerLimit) -> Limiter:
    return LIMITERS[limit.id.partition("/")[0]]


def _read(limit: PowerLimit) -> float:
    try:
        return _limiter(limit).read(limit.id)
    except Exception as error:  # a plugin's errors may be of any kind
        raise CapFailed(f"the limit of {limit.id} cannot be read: {error}") from error


def _lower(limit: PowerLimit, watts: float) -> None:
    try:
        _limiter(limit).write(limit.id, watts)
    except Exception as error:  # a plugin's errors may be of any kind
        raise CapFailed(f"the limit of {limit.id} cannot be lowered: {error}") from error
    _check(limit, watts)


def _check(limit: PowerLimit, watts: float) -> None:
    now = _read(limit)
    if not abs(now - watts) <= SLACK * watts:  # nor if it reads as not a number
        raise CapFailed(f"the limit of {limit.id} was set to {watts:g} W, and reads {now:g} W")


def _restore(kept: Path, before: Sequence[PowerLimit]) -> None:
    """Raises LimitLeft; then the file stays, for the next attempt."""
    left = [f"{limit.id} is not back at {limit.watts:g} W" for limit in before if not _is_back(limit)]
    if left:
        raise LimitLeft("; ".join(left), HINT)
    try:
        kept.unlink(missing_ok=True)
    except OSError as error:
        raise LimitLeft(f"{kept} cannot be removed: {error.strerror}", HINT) from error


def _is_back(limit: PowerLimit) -> bool:
    for _ in range(ATTEMPTS):
        with suppress(Exception):  # of any kind: the other limits are restored too
            limiter = _limiter(limit)
            if limiter.read(limit.id) < limit.watts:  # another program may have raised it
                limiter.write(limit.id, limit.watts)
            if limiter.read(limit.id) >= limit.watts * (1 - SLACK):
                return True
    return False
