"""Calls the vendors' watchers, which are plugins, so that none of them can disturb a run.

A watcher that raises, breaks its contract or takes too long is not called again, and `absent` gives the reason. Each
call runs in a thread of its own, because a driver that hangs cannot be interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from mixmark.harness.contracts.protocols import AcceleratorState, Check, Watcher
from mixmark.harness.contracts.schema import Absent, AcceleratorConditions
from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins import calls, registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources.files import MAX_TEXT
from mixmark.harness.worker.plugin_process import PluginProxy, watcher_of

OPEN_S = 30.0  # to load a library and to read constant facts: a driver may have to wake its devices
READ_S = 5.0  # to read the states of all devices once
Item = TypeVar("Item")
T = TypeVar("T")


class Accelerators:
    """The watchers of this host's accelerators, opened. Use it as a context manager, from one thread.

    found: by default the plugins of kind `watchers`. read_s: how long a read may take, by default READ_S.
    """

    def __init__(self, found: Mapping[str, Plugin] | None = None, read_s: float | None = None) -> None:
        self.absent: tuple[Absent, ...] = ()
        """The watchers that failed, each once."""
        self.cpu_ns = 0
        """The CPU time of all calls."""
        self._found = registry.find("watchers") if found is None else found
        self._read_s = READ_S if read_s is None else read_s
        self._watchers: dict[str, Watcher] = {}

    def __enter__(self) -> Accelerators:
        for name, plugin in self._found.items():
            if watcher := self._call(name, OPEN_S, partial(watcher_of, plugin)):
                self._watchers[name] = watcher
        return self

    def __exit__(self, *_: object) -> None:
        for name, watcher in tuple(self._watchers.items()):
            self._call(name, self._read_s, partial(_close, watcher))
        self._watchers = {}

    def disclose(self) -> tuple[dict[str, str], ...]:
        """The facts of each accelerator, `id` among them."""

        def facts(watcher: Watcher) -> list[dict[str, str]]:
            return [
                {plain(str(name), MAX_TEXT): plain(str(value), MAX_TEXT) for name, value in each.items()}
                for each in watcher.disclose()
            ]

        return tuple(self._call_each(OPEN_S, facts))

    def read(self, ours: set[int], proc: Path) -> tuple[AcceleratorConditions, ...]:
        """The state of each accelerator now. ours: the processes of this run. proc: the host's /proc."""

        def states(watcher: Watcher) -> list[AcceleratorConditions]:
            return [_conditions(each, ours, proc) for each in watcher.read()]

        return tuple(self._call_each(self._read_s, states))

    def checks(self) -> tuple[Check, ...]:
        """The vendors' checks of their accelerators' settings."""

        def checks(watcher: Watcher) -> list[Check]:
            return [
                Check(plain(each.name, MAX_TEXT), each.state, plain(each.message, MAX_TEXT), plain(each.fix, MAX_TEXT))
                for each in watcher.checks()
            ]

        return tuple(self._call_each(OPEN_S, checks))

    def _call_each(self, seconds: float, question: Callable[[Watcher], list[Item]]) -> list[Item]:
        items: list[Item] = []
        for name, watcher in tuple(self._watchers.items()):
            items += self._call(name, seconds, partial(question, watcher)) or ()
        return items

    def _call(self, name: str, seconds: float, call: Callable[[], T]) -> T | None:
        """What the call returns. None if it fails, and the watcher is not called again."""
        watcher = self._watchers.get(name)
        process = watcher if isinstance(watcher, PluginProxy) else None

        def counted() -> T:
            begin_ns, process_ns = time.thread_time_ns(), process.cpu_ns if process else 0
            try:
                return call()
            finally:
                self.cpu_ns += time.thread_time_ns() - begin_ns
                self.cpu_ns += process.cpu_ns - process_ns if process else 0

        try:
            return calls.call_within(seconds, counted, "the watcher")
        except (Exception, SystemExit) as error:  # whatever a plugin raises, it costs its own accelerators
            self._watchers.pop(name, None)
            if process:
                process.end()
            self.absent += (Absent(kind="watcher", name=plain(name, MAX_TEXT), reason=calls.error_text(error)),)
            return None


def _close(watcher: Watcher) -> None:
    try:
        watcher.close()
    finally:
        if isinstance(watcher, PluginProxy):
            watcher.end()


def _conditions(state: AcceleratorState, ours: set[int], proc: Path) -> AcceleratorConditions:
    pids = state.pids
    if pids is not None and not all((proc / str(pid)).exists() for pid in pids):
        pids = None  # the driver counts in another process namespace, so ours cannot be told from others'
    return AcceleratorConditions(
        id=plain(state.id, MAX_TEXT),
        reasons=None if state.reasons is None else tuple(state.reasons),
        clock_mhz=state.clock_mhz,
        temperature_c=state.temperature_c,
        power_cap_mw=state.power_cap_mw,
        foreign_pids=None if pids is None else tuple(sorted(set(pids) - ours)),
        own_processes_listed=not ours.isdisjoint(pids)
        if pids
        else None,  # in a container, drivers may list none at all
        utilization_pct=state.utilization_pct,
    )
