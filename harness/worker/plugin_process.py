"""Plugins that are not built in, each in a process of its own, so that none of their code runs where Mixmark measures,
draws and judges.

`PluginProcess` is the mechanism; `services` is its other side. `PluginProxy` and the classes below have the methods of
a plugin's protocol, so that their callers do not know where the plugin runs. A crash, a hang or garbage becomes a
MixmarkError.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate, Protocol, cast

import psutil

from mixmark.harness.contracts.errors import MixmarkError, PluginError, Unsupported, UsageError
from mixmark.harness.contracts.protocols import Watcher
from mixmark.harness.contracts.schema import Cost, Gate, LatencyLimits, Precision
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources.psutils import UNKNOWN
from mixmark.harness.worker.calls import P, T
from mixmark.harness.worker.failures import Misused, WorkerFailed
from mixmark.harness.worker.handle import Worker, why
from mixmark.harness.worker.messages import PluginCalls, SuiteCalls, SuiteChoice, SuiteDescription, WatcherCalls
from mixmark.harness.worker.services import described

LOADING_S = 120.0  # a cold import of a vendor's framework from a slow disk
CHECKPOINT_S = 3600.0  # to read one from a folder on a network
WATCHING_S = 60.0  # a watcher's caller gives up before
LONGEST_BYTES = 1 << 20  # of a line from a plugin: to parse a longer one would stop this process for long
CPU_TIME = 2  # the clock of a process, of all of its threads, as clock_getcpuclockid(3) numbers it


OPENING = ("load", "describe", "domains")
"""The calls that a process which is started anew gets again."""
_processes: weakref.WeakSet[PluginProcess] = weakref.WeakSet()


def end_all() -> None:
    """Ends the processes of all plugins, so that none of them runs while outputs are drawn. The next call of a plugin
    starts its process anew."""
    for process in list(_processes):
        process.pause()


class PluginProcess:
    """A process that holds one plugin. It ends with `end`, or with the last reference to this object.

    Several threads may call. Raises MixmarkError if the process cannot be started.
    """

    def __init__(
        self, plugin: Plugin, options: Mapping[str, str] = MappingProxyType({}), python: str = sys.executable
    ) -> None:
        self.gone = False
        """Whether the process died, hung or sent garbage, so that no further call can succeed."""
        self._plugin, self._options, self._python = plugin, options, python
        self._cpu_ns = 0
        self._calling = threading.Lock()
        self._opening: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
        self._paused = False
        self._start()
        _processes.add(self)

    def _start(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="mixmark-")
        scratch = Path(folder.name)
        log = scratch / f"{registry.singular(self._plugin.kind)}.{self._plugin.name}.log"
        words = self._plugin, self._options, scratch, log, self._python
        try:
            self._worker = _starter().submit(Worker, *words, longest_bytes=LONGEST_BYTES).result()
        except WorkerFailed as failed:
            folder.cleanup()
            raise MixmarkError(failed.failure.message, failed.failure.hint) from failed
        self.end = weakref.finalize(self, _end, self._worker, folder)
        """Ends the process."""

    def pause(self) -> None:
        """Ends the process until the next call, if it works."""
        with self._calling:
            if self.end.alive and not self.gone:
                self._paused = True
                self.end()

    def resume(self) -> None:
        """Starts the process anew after `pause`. Raises MixmarkError."""
        with self._calling:
            self._resume()

    def _resume(self) -> None:
        if self._paused:
            self._start()
            self._paused = False
            for method, arguments in self._opening.values():
                self._answer(method, LOADING_S, **arguments)

    @property
    def pid(self) -> int:
        return self._worker.pid

    @property
    def cpu_ns(self) -> int:
        """The CPU time of the process so far, by which its calls are paced; of one that has ended, as it was last read.
        What a run shows is counted in `machine.counters`."""
        with suppress(*UNKNOWN):
            if sys.platform == "linux":
                self._cpu_ns = time.clock_gettime_ns(~self.pid << 3 | CPU_TIME)
            else:
                self._cpu_ns = round(sum(psutil.Process(self.pid).cpu_times()[:2]) * 1e9)
        return self._cpu_ns

    def call(self, method: Callable[Concatenate[Any, P], T], timeout_s: float, *_: P.args, **arguments: P.kwargs) -> T:
        """Calls a method of the plugin's kind. Raises UsageError and Unsupported if the plugin does, and MixmarkError
        for all else."""
        with self._calling:
            self._resume()
            if method.__name__ in OPENING:
                self._opening[method.__name__] = method, arguments
            return self._answer(method, timeout_s, *_, **arguments)

    def _answer(
        self, method: Callable[Concatenate[Any, P], T], timeout_s: float, *_: P.args, **arguments: P.kwargs
    ) -> T:
        try:
            return self._worker.call(method, timeout_s)(*_, **arguments)
        except Misused as misused:
            raise UsageError(misused.failure.message, misused.failure.hint) from misused
        except WorkerFailed as failed:
            self.gone = failed.failure.kind in ("crashed", "hung", "out of memory")
            if failed.failure.kind == "unsupported":
                raise Unsupported(failed.failure.message, failed.failure.hint) from failed
            raise MixmarkError(why(failed.failure, self._worker.log)) from failed

    def load(self, method: Callable[Concatenate[Any, P], T], *_: P.args, **arguments: P.kwargs) -> T:
        """The first call of a process, which loads the plugin. Raises PluginError, and ends the process, if it does not
        load."""
        try:
            return self.call(method, LOADING_S, *_, **arguments)
        except MixmarkError as error:
            self.end()
            raise PluginError(str(error), error.hint) from error


def _end(worker: Worker, folder: tempfile.TemporaryDirectory[str]) -> None:
    worker.__exit__()
    folder.cleanup()


@cache
def _starter() -> ThreadPoolExecutor:
    """The thread that starts all processes. A process ends with the thread that started it, and this one lives as long
    as the program."""
    return ThreadPoolExecutor(1, "plugin processes")


class PluginProxy(PluginProcess):
    """A meter, a watcher or another simple plugin: it has the methods of the plugin's protocol.

    calls: the calls of the plugin's kind. limits_s: the longest time of each method, after which its process is ended.
    Raises PluginError.
    """

    def __init__(
        self,
        plugin: Plugin,
        calls: type,
        limits_s: Mapping[str, float],
        options: Mapping[str, str] = MappingProxyType({}),
        python: str = sys.executable,
    ) -> None:
        super().__init__(plugin, options, python)
        self.name = plugin.name
        self._calls, self._limits_s = calls, limits_s
        self.needs_section = self.load(PluginCalls.load)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._limits_s:
            raise AttributeError(name)
        method = getattr(self._calls, name)
        parameters = list(inspect.signature(method).parameters)[1:]
        return lambda *values: self.call(method, self._limits_s[name], **dict(zip(parameters, values, strict=True)))


class SuiteModel(Protocol):
    """What the process that measures needs of a suite at one tier: a `Suite` without feeds, networks and weights."""

    @property
    def version(self) -> str: ...

    @property
    def unit(self) -> str: ...

    @property
    def latency(self) -> LatencyLimits | None: ...

    def units(self, batch: int) -> int: ...

    def costs(self, precision: Precision, batch: int) -> Sequence[Cost]: ...

    def gate(self, precision: Precision) -> Gate | None: ...


@dataclass(frozen=True)
class BuiltInSuite:
    """A suite of Mixmark. Both methods raise MixmarkError; `build` raises Unsupported if the suite lacks the tier."""

    plugin: Plugin

    def describe(self) -> SuiteDescription:
        return described(self.plugin.load())

    def build(self, choice: SuiteChoice) -> SuiteModel:
        built: SuiteModel = registry.build_suite(**dict(choice))
        return built


class SuiteProcess(PluginProcess):
    """A suite of another package, with the methods of `BuiltInSuite`. Raises PluginError."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin)
        self._description = self.load(SuiteCalls.describe)

    def describe(self) -> SuiteDescription:
        return self._description

    def build(self, choice: SuiteChoice) -> SuiteModel:
        latency = self.call(SuiteCalls.build, LOADING_S, suite=choice)
        return _RemoteSuite(self, choice, self._description.version, self._description.unit, latency)

    def check_weights(self, choice: SuiteChoice) -> tuple[str, tuple[str, ...]]:
        """See `SuiteCalls.check_weights`."""
        return self.call(SuiteCalls.check_weights, CHECKPOINT_S, suite=choice)


@dataclass(frozen=True)
class _RemoteSuite:
    process: SuiteProcess
    choice: SuiteChoice
    version: str
    unit: str
    latency: LatencyLimits | None

    def units(self, batch: int) -> int:
        return self.process.call(SuiteCalls.units, LOADING_S, suite=self.choice, batch=batch)

    def costs(self, precision: Precision, batch: int) -> Sequence[Cost]:
        return self.process.call(SuiteCalls.costs, LOADING_S, suite=self.choice, precision=precision, batch=batch)

    def gate(self, precision: Precision) -> Gate | None:
        return self.process.call(SuiteCalls.gate, LOADING_S, suite=self.choice, precision=precision)


SuiteSource = BuiltInSuite | SuiteProcess
"""A suite's class, wherever it is loaded."""


def watcher_of(plugin: Plugin) -> Watcher:
    """Raises PluginError, and what the constructor of a built-in watcher raises."""
    limits_s = dict.fromkeys(("disclose", "read", "checks", "close"), WATCHING_S)
    made: Any = plugin.load()() if plugin.built_in else PluginProxy(plugin, WatcherCalls, limits_s)
    return cast(Watcher, made)


def suite_of(plugin: Plugin) -> SuiteSource:
    """The suite. It is loaded once, as an import is. Raises PluginError."""
    return BuiltInSuite(plugin) if plugin.built_in else suite_process(plugin)


@lru_cache(maxsize=8)
def suite_process(plugin: Plugin) -> SuiteProcess:
    """The only process of a suite."""
    return SuiteProcess(plugin)
