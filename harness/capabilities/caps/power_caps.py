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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mixmark.harness.capabilities.caps.facts import KIND, Limiter, PowerLimit
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import BUILT_IN
from mixmark.harness.machine.sampling import INTERVAL_S
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from mixmark.harness.worker.plugin_process import PluginProxy

STATE = Path("/run/mixmark/power-limits.json")
"""One file for all users: whoever measures next must learn that a limit was left lowered. It ends with a restart of the
machine, as a lowered limit does."""
SLACK = 0.01  # of a limit: drivers round to steps of an eighth of a watt and more
ATTEMPTS = 3
LIMIT_S = 10.0  # a driver may have to wake its device


@dataclass(frozen=True)
class Control:
    """A limit of power, and the plugin that sets it."""

    limit: PowerLimit
    limiter: Limiter

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


def limiter_of(plugin: Plugin) -> Limiter:
    """Raises PluginError."""
    limits_s = dict.fromkeys(KIND.members[1:], LIMIT_S)
    made: Any = plugin.load()() if plugin.built_in else PluginProxy(plugin, KIND.calls, limits_s)
    return cast(Limiter, made)


def controls_of(limits: Sequence[PowerLimit]) -> list[Control]:
    """What sets these limits. Raises CapFailed if a plugin is gone."""
    plugins = registry.find("limiters")
    names = dict.fromkeys(limit.id.partition("/")[0] for limit in limits)
    if gone := names.keys() - plugins.keys():
        raise CapFailed(f"nothing sets the limits of {', '.join(sorted(gone))} any more")
    limiters = {name: limiter_of(plugins[name]) for name in names}
    return [Control(limit, limiters[limit.id.partition("/")[0]]) for limit in limits]


def find(devices: Iterable[str]) -> list[Control]:
    """The limits of these devices, by their ids. A device without one is left out.

    Raises UsageError if there is none, or one may not be set.
    """
    if sys.platform != "linux":
        raise UsageError("power limits are set on Linux only", "leave --power-cap away")
    ids = list(devices)
    limiters = [limiter_of(plugin) for plugin in registry.find("limiters").values()]
    controls = [Control(limit, limiter) for limiter in limiters for limit in limiter.limits(ids)]
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
    before = {control.limit.id: _read(control) for control in controls}
    for control in controls:
        if before[control.limit.id] < control.limit.watts * fraction * (1 - SLACK):
            raise CapFailed(f"{control.limit.id} is limited to {before[control.limit.id]:g} W by now, which is less")
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
        limiters = {control.limit.id: control.limiter for control in controls}
        try:
            _restore(kept, before, limiters)
        except KeyboardInterrupt:  # in the middle of it; the run ignores further signals
            _restore(kept, before, limiters)
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


def witnesses(limits: Iterable[PowerLimit], elsewhere: Iterable[str]) -> tuple[str, ...]:
    """The meters that are of no limiter's package. elsewhere: the sections of meters with an interpreter of their own,
    whose packages are not known."""
    limiters, apart = registry.find("limiters"), {section.partition(".")[0] for section in elsewhere}
    packages = {limiters[limit.id.partition("/")[0]].origin for limit in limits} - {BUILT_IN}
    meters = registry.find("meters").items()
    return tuple(name for name, meter in meters if meter.origin not in packages and name not in apart)


def recover(state: Path | None = None) -> list[str]:
    """Restores the limits that a killed run left lowered; returns their ids. Raises UsageError if it cannot."""
    kept = state or STATE
    try:
        before = {str(id): float(watts) for id, watts in json.loads(kept.read_text("utf-8")).items()}
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{kept}, which keeps lowered power limits, cannot be read: {error}", HINT) from error
    try:
        plugins = registry.find("limiters")
        named = {id.partition("/")[0] for id in before}
        limiters = {name: limiter_of(plugins[name]) for name in named & plugins.keys()}
        _restore(kept, before, {id: limiters.get(id.partition("/")[0]) for id in before})
    except MixmarkError as error:
        raise UsageError(f"a killed run left power limits lowered: {error}", HINT) from error
    return list(before)


AS_ROOT = "only root may set it: run mixmark as root, or leave --power-cap away"
HINT = "run mixmark as root once, or restart the machine"


def _keep(kept: Path, before: Mapping[str, float]) -> None:
    """Writes the limits. Raises OSError."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(".new")
    fresh.write_text(json.dumps(before), "utf-8")
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


def _restore(kept: Path, before: Mapping[str, float], limiters: Mapping[str, Limiter | None]) -> None:
    """Raises LimitLeft; then the file stays, for the next attempt."""
    left = [f"{id} is not back at {watts:g} W" for id, watts in before.items() if not _is_back(limiters[id], id, watts)]
    if left:
        raise LimitLeft("; ".join(left), HINT)
    try:
        kept.unlink(missing_ok=True)
    except OSError as error:
        raise LimitLeft(f"{kept} cannot be removed: {error.strerror}", HINT) from error


def _is_back(limiter: Limiter | None, id: str, watts: float) -> bool:
    for _ in range(ATTEMPTS if limiter else 0):
        with suppress(Exception):  # of any kind: the other limits are restored too
            assert limiter is not None  # there is no attempt without it
            if limiter.read(id) < watts:  # another program may have raised it
                limiter.write(id, watts)
            if limiter.read(id) >= watts * (1 - SLACK):
                return True
    return False
