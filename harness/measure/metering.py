"""Reads the meters while phases run. It only collects samples; `judge.energy` computes joules from them.

Each meter is read by a thread of its own, so a meter that hangs loses only its own samples. Without a domain, no thread
is started and nothing waits. A meter that is not built in, or has an interpreter of its own in the configuration, is in
a process of its own.

    with Meters(config, devices) as meters:       # header: domains=meters.domains, absent=(…, *meters.absent)
        for phase in phases:
            meters.begin()
            meters.rest(idle_s)                   # the idle power, before the phase's workers are started
            …                                     # the phase
            meters.rest(idle_s)                   # and after they are gone
            if metering := meters.drain(phase.name):
                store.meter(metering)
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import cast

import numpy as np

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.protocols import ABSURD, PATIENCE_S, Meter, Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain, Metering, Samples
from mixmark.harness.contracts.text import plain
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.setup import bystanders
from mixmark.harness.plugins import calls, registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from mixmark.harness.worker.messages import MeterCalls
from mixmark.harness.worker.plugin_process import PluginProxy

INTERVAL_S = 0.1
ASKING_S = 30.0  # for `domains`: a driver may have to wake, a controller to reply
PER_AVERAGE = 4  # reads within the time over which a source averages its power
READING = 0.004  # of one core, for one meter: below judge.rules.quality.METERING. Its counters get what power leaves
LEAST_COUNTING = 0.001  # of one core, for the counters of a meter whose power takes more than that
NAME = "meter"


class Meters:
    """All meters and their domains. Raises UsageError if the configuration has an option that a meter lacks."""

    def __init__(self, config: Config, devices: Sequence[Device], found: Mapping[str, Plugin] | None = None) -> None:
        found = registry.find("meters") if found is None else found
        pythons = config.meter_pythons
        self.absent: tuple[Absent, ...] = tuple(
            Absent(kind="configuration", name=f"[meter.{section}]", reason="configured, but there is no such meter")
            for section in config.meters
            if _meter_of(section) not in found and section not in pythons
        )
        self.devices = tuple(devices)
        self.domains: tuple[Domain, ...] = ()
        self.unconfigured: tuple[str, ...] = ()
        """The meters that need a section of mixmark.toml and have none."""
        self._readers: list[_Reader] = []
        self._processes: list[PluginProxy] = []
        self._ends = ExitStack()
        """Ends the programs that built-in meters started."""
        self._begin_ns = 0
        self._idle_ns: list[tuple[int, int]] = []
        self._ready_ns: tuple[int, int] | None = None
        try:
            for name in dict.fromkeys((*found, *map(_meter_of, pythons))):
                sections = [section for section in config.meters if _meter_of(section) == name]
                for section in sections or [name]:
                    if name in found or section in pythons:
                        options, supply_watts = config.meters.get(section), config.supplies_watts.get(section)
                        self._ask(name, found.get(name), options, pythons.get(section), supply_watts)
        except UsageError:
            self.close()
            raise

    def _ask(
        self,
        name: str,
        plugin: Plugin | None,
        options: Mapping[str, str] | None,
        python: str | None,
        supply_watts: float | None,
    ) -> None:
        """Asks a meter for its domains. plugin: None if only its own interpreter has it."""
        try:
            meter = self._built(name, plugin, options, python)
            if meter is None:
                self.unconfigured += (name,)
                return
            sources = calls.call_within(ASKING_S, lambda: list(meter.domains(self.devices)), "listing its domains")
            valid = (Domain.model_validate(source) for source in sources if not isinstance(source, Absent))
            fresh = [domain.model_copy(update={"supply_watts": supply_watts}) for domain in valid]
        except UsageError:
            raise
        except (Exception, SystemExit) as error:
            self.absent += (Absent(kind="meter", name=name, reason=calls.error_text(error)),)
            return
        known = {domain.id for domain in self.domains}
        twice = [domain.id for domain in fresh if domain.id in known]
        missing = [source for source in sources if isinstance(source, Absent)]
        missing += [Absent(kind="meter", name=id, reason="another meter has a domain of this name") for id in twice]
        for absent in missing:
            words = {"name": _named(name, absent.name), "reason": plain(absent.reason, calls.MAX_REASON)}
            self.absent += (Absent(kind="meter", covers=absent.covers, **words),)
        if taken := [domain for domain in fresh if domain.id not in known]:
            self.domains += tuple(taken)
            self._readers.append(_Reader(meter, taken))
        if close := getattr(meter, "close", None):
            self._ends.callback(close)
        if isinstance(meter, PluginProxy):
            if taken:
                self._processes.append(meter)
            else:
                meter.end()

    def _built(
        self, name: str, plugin: Plugin | None, options: Mapping[str, str] | None, python: str | None
    ) -> Meter | None:
        """The meter. None if it needs a section of mixmark.toml and has none."""
        if python is not None or plugin is None:  # its own interpreter looks it up
            plugin = Plugin("meters", name, "", registry.ELSEWHERE)
        if not plugin.built_in:
            limits_s = {"domains": ASKING_S, "read": PATIENCE_S}
            process = PluginProxy(plugin, MeterCalls, limits_s, options or {}, python or sys.executable)
            if options is None and process.needs_section:
                process.end()
                return None
            return cast(Meter, cast(object, process))
        loaded = plugin.load()
        if options is None and getattr(loaded, "needs_section", False):
            return None
        return cast(Meter, loaded(options or {}))

    def close(self) -> None:
        """Ends the processes and the programs of meters."""
        for process in self._processes:
            process.end()
        self._processes = []
        self._ends.close()

    def __enter__(self) -> Meters:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers:
            reader.end()
        self.close()

    def begin(self, paced: bool = True) -> None:
        """Drops all samples and starts to keep new ones. paced: whether counters are read so seldom that a meter
        takes at most READING. A counter misses nothing between two reads; power does."""
        for process in self._processes:
            with suppress(MixmarkError):  # the first read says so
                process.resume()
        self._begin_ns = clock.now_ns()
        self._idle_ns, self._ready_ns = [], None
        for reader in self._readers:
            reader.begin(paced)

    def rest(self, seconds: float, ready: bool = False) -> None:
        """Waits, so that the idle power is measured. Without a meter it does not wait. ready: all suites are loaded;
        else no worker runs."""
        if self._readers and seconds > 0:
            begin_ns = clock.now_ns()
            clock.sleep(seconds)
            rested_ns = begin_ns, clock.now_ns()
            if ready:
                self._ready_ns = rested_ns
            else:
                self._idle_ns.append(rested_ns)

    def drain(self, phase: str) -> Metering | None:
        """The samples since `begin` and of one last read; then the meters pause. None if there is no domain."""
        if not self._readers:
            return None
        for reader in self._readers:
            reader.finish()
        for reader in self._readers:
            reader.wait()
        return Metering(
            phase=phase,
            begin_ns=self._begin_ns,
            end_ns=clock.now_ns(),
            cpu_ns=sum(reader.cpu_ns - reader.cpu_before_ns for reader in self._readers),
            idle_ns=tuple(self._idle_ns),
            ready_ns=self._ready_ns,
            samples={id: samples for reader in self._readers for id, samples in reader.samples().items()},
            lost={id: why for reader in self._readers for id, why in reader.lost.items()},
            reading_age_ns={
                id: reading_age_ns for reader in self._readers for id, reading_age_ns in reader.reading_age_ns.items()
            },
        )


class _Reader(threading.Thread):
    """The thread that reads one meter. A domain whose read raises is not read again; if a read takes too long, no
    domain of the meter is."""

    def __init__(self, meter: Meter, domains: Iterable[Domain]) -> None:
        super().__init__(name=NAME, daemon=True)  # a read that never returns does not keep the program alive
        self._meter = meter
        self._domains = {domain.id: domain for domain in domains}
        self._counters = sum(domain.quantity == "energy" for domain in self._domains.values())
        self._counter_reads = self._counting_ns = self._began_ns = self._passes = 0
        self._paced = True
        self._due: dict[str, int] = {}
        self.lost: dict[str, str] = {}
        self.reading_age_ns: dict[str, int] = {}
        self.cpu_ns = self.cpu_before_ns = 0
        self._rows: dict[str, list[tuple[int, int, float]]] = {}
        self._state = "resting"
        self._wake, self._rested = threading.Event(), threading.Event()

    def begin(self, paced: bool = True) -> None:
        self._paced, self._due = paced, {}
        self._rows = {id: [] for id in self._domains}
        self.reading_age_ns = {}
        self.cpu_before_ns = self.cpu_ns
        self._rested.clear()
        self._become("reading")

    def finish(self) -> None:
        self._become("finishing")

    def end(self) -> None:
        self._become("ended")

    def _become(self, state: str) -> None:
        self._state = state
        self._wake.set()

    def wait(self) -> None:
        """Waits until the last read is done. A meter whose read takes longer than PATIENCE_S is not read again."""
        if self.lost.keys() < self._domains.keys() and not clock.wait(self._rested, PATIENCE_S):
            for id in self._domains:
                self.lost.setdefault(id, f"a read took longer than {PATIENCE_S:g} s")
            self.end()

    def samples(self) -> dict[str, Samples]:
        found = {}
        for id, rows in self._rows.items():
            rows = rows[:]  # a copy: the thread may still be reading, even if the meter was given up
            before, after, values = zip(*rows, strict=True) if rows else ((), (), ())
            columns = np.array(before, np.int64), np.array(after, np.int64), np.array(values, np.float64)
            found[id] = Samples(*columns)
        return found

    def run(self) -> None:
        passes = 0
        while self._state != "ended":
            self._wake.clear()
            begin_s = clock.now_s()
            if self._state in ("reading", "finishing"):
                finishing = self._state == "finishing"
                for domain in self._domains.values():
                    if domain.id not in self.lost and (finishing or passes >= self._due.get(domain.id, 0)):
                        before_ns = self._cpu_ns()
                        self._read(domain)
                        if domain.quantity == "energy":
                            self._counting_ns += self._cpu_ns() - before_ns
                            self._counter_reads += 1
                        self._due[domain.id] = passes + self._passes_between_reads(domain)
                passes += 1
                self._passes += 1
                self.cpu_ns = time.thread_time_ns()
                if finishing:
                    self._state, passes = "resting", 0
                    self._rested.set()
            clock.wait(self._wake, begin_s + INTERVAL_S - clock.now_s() if self._state == "reading" else None)

    def _passes_between_reads(self, domain: Domain) -> int:
        least_s = (domain.averaging_ns or 0) / 1e9 / PER_AVERAGE
        if self._paced and domain.quantity == "energy":
            if not self._passes:
                self._began_ns = self._cpu_ns() - self._counting_ns  # what it took to start
            others_ns = self._cpu_ns() - self._counting_ns - self._began_ns
            left = max(LEAST_COUNTING, READING - others_ns / 1e9 / INTERVAL_S / max(1, self._passes))
            least_s = max(least_s, self._counting_ns / 1e9 / self._counter_reads * self._counters / left)
        return max(1, round(least_s / INTERVAL_S))

    def _cpu_ns(self) -> int:
        """The CPU time of this thread, and of the meter's process if it has one."""
        return time.thread_time_ns() + (self._meter.cpu_ns if isinstance(self._meter, PluginProxy) else 0)

    def _read(self, domain: Domain) -> None:
        try:
            before_ns, samples, after_ns = self._samples(domain)
            if after_ns - before_ns > PATIENCE_S * 1e9:
                raise TimeoutError(f"a read took {(after_ns - before_ns) / 1e9:.1f} s")
            if domain.id in self.lost:  # the read came too late, and the meter was given up
                return
            rows = self._rows[domain.id]
            for sample in samples:
                rows.append(_row(sample, before_ns, after_ns, rows[-1] if rows else None))
                if sample.at_ns is not None:
                    reading_age_ns = after_ns - rows[-1][0]
                    self.reading_age_ns[domain.id] = min(
                        reading_age_ns, self.reading_age_ns.get(domain.id, reading_age_ns)
                    )
        except (Exception, SystemExit) as error:  # a plugin may raise anything; it loses its own domain
            self.lost[domain.id] = calls.error_text(error)

    def _samples(self, domain: Domain) -> tuple[int, Sequence[Sample], int]:
        """What the meter reads, between two times. A file that another program writes may be empty for a moment, so a
        read that fails is repeated once. Raises what the first one raised if both fail."""
        before_ns = clock.now_ns()
        try:
            return before_ns, self._meter.read(domain), clock.now_ns()
        except Exception as error:  # a plugin may raise anything
            before_ns = clock.now_ns()
            try:
                return before_ns, self._meter.read(domain), clock.now_ns()
            except Exception:
                raise error from None


def _row(sample: Sample, before_ns: int, after_ns: int, last: tuple[int, int, float] | None) -> tuple[int, int, float]:
    value = float(sample.value)
    if not abs(value) < ABSURD:
        raise ValueError(f"it read {value}")
    if sample.at_ns is not None:
        before_ns = after_ns = int(sample.at_ns)
    if last is not None and before_ns < last[0]:
        raise ValueError("its timestamps run backwards")
    return before_ns, after_ns, value


def _meter_of(section: str) -> str:
    """The meter of a section such as `acme.right`."""
    return section.partition(".")[0]


def _named(meter: str, source: str) -> str:
    """The name of a source for a reader: with the name of its meter, once."""
    source = plain(source, calls.MAX_REASON)
    return source if source.startswith(meter) else f"{meter}: {source}"


def metered(devices: Sequence[Device], adapters: Sequence[str], config: Config) -> Meters:
    """The meters of these devices. If a meter reads each device by itself, they also cover the devices of adapters that
    the command line leaves out, which draw power too."""
    meters = Meters(config, devices)
    by_device = any(domain.boundary == "devices" for domain in meters.domains)
    others = bystanders(adapters, config, devices) if by_device else ()
    if not others:
        return meters
    meters.close()
    return Meters(config, (*devices, *others))
