"""The trials of an adapter. Each is made when a check first needs it, and kept.

Every trial runs in real workers. Measurements are phases of a run (`phase.attend`), with the audits of a run; the smoke
tier makes them quick.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import mkdtemp
from typing import get_args

import psutil

from mixmark.harness.capabilities.kit.report import NotChecked, trial
from mixmark.harness.contracts import schema
from mixmark.harness.judge.evidence import Evidence, gather
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.statistics.timestamps import window_ns
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.devices import Found, environment
from mixmark.harness.machine.setup import Equipment, Suites, Workbench
from mixmark.harness.measure import solo
from mixmark.harness.measure.audit import auditor
from mixmark.harness.measure.phase import Driver, Part, attend
from mixmark.harness.plan import phases, presets
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from mixmark.harness.resources.psutils import UNKNOWN
from mixmark.harness.worker import child
from mixmark.harness.worker.failures import WorkerFailed, failure_of
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls, Prepared

SECOND = 1_000_000_000
PRECISIONS: tuple[schema.Precision, ...] = get_args(schema.Precision)
BATCH = 17  # samples in a feed, where a suite takes batches: no power of two, so that padding must be cut off again
WINDOW_NS = 10 * SECOND  # the longest window
SESSIONS = 4  # in a row, in one worker
SETTLE_S = 0.5  # threads that wait for work may still spin for this long
IDLE_S = 1.0  # then they must not spin for this long
KILLED_AFTER_S = 0.5  # from the begin of a window until its worker is killed
CONCURRENT_FEEDS = 4  # audited feeds for each feed that the runner takes at once
UNKNOWN_OPTION = "mixmark-conformance"


@dataclass(frozen=True)
class Discovery:
    """The devices that a fresh worker found."""

    devices: tuple[schema.Device, ...]
    environment: schema.Environment
    took_s: float


@dataclass(frozen=True)
class Sessions:
    """Several sessions in one worker, one after the other."""

    share: schema.Share
    weights_bytes: int
    memory_bytes: tuple[int, ...]
    """The memory of the worker after each session."""
    closing_ns: int
    """The time to close a feed's iterator after its first yield."""
    idle_cores: float
    """The CPU cores that it kept busy while it had a suite open and no feed."""


class AdapterTrials:
    """The trials of one adapter, with one device of each kind: of eight equal accelerators, one is tried. only: the id
    of the one device to try; empty: all.

    folder: an empty folder for records and logs. timeout_s: how long a worker may be silent.
    """

    def __init__(
        self, adapter: Plugin, config: Config, suites: Suites, folder: Path, timeout_s: float, only: str = ""
    ) -> None:
        self.adapter, self.timeout_s, self._only = adapter, timeout_s, only
        self._chosen = config.adapter(adapter.name)
        self._config, self._suites, self._folder = config, suites, folder
        self._phases: list[schema.Phase] = []
        (folder / "raw").mkdir(parents=True)
        (folder / "logs").mkdir()

    # Discovery

    @trial
    def discoveries(self) -> tuple[Discovery, ...]:
        """Two discoveries, each in a fresh worker. Raises WorkerFailed."""
        return self._discovery(), self._discovery()

    @property
    def devices(self) -> tuple[schema.Device, ...]:
        """The devices of the first discovery that are to be tried. Raises NotChecked if there is none."""
        found = tuple(device for device in self.discoveries[0].devices if self._only in ("", device.id))
        if not found:
            raise NotChecked("the adapter reaches no device of this machine")
        return found

    @property
    def kinds(self) -> tuple[schema.Device, ...]:
        """The first device of each kind."""
        return tuple({_kind(device): device for device in reversed(self.devices)}.values())

    @trial
    def unknown_option(self) -> WorkerFailed | None:
        """The adapter's error for an unknown option. None if it took the option."""
        with self._worker({UNKNOWN_OPTION: "1"}) as worker:
            try:
                worker.call(AdapterCalls.discover, self.timeout_s)()
            except WorkerFailed as failed:
                return failed
        return None

    def _discovery(self) -> Discovery:
        identity = registry.identity(self.adapter, self._chosen.python)
        begin_s = clock.now_s()
        with self._worker() as worker:
            reply = worker.call(AdapterCalls.discover, self.timeout_s)()
            took_s = clock.now_s() - begin_s
            assert worker.hello is not None  # it comes before the reply
            return Discovery(reply.devices, environment(identity, worker.hello, reply.vendor), took_s)

    # Measurements

    @trial
    def claims(self) -> Mapping[str, schema.Share]:
        """Every suite in every precision that a device offers to it, by the key of its share: in the suite's native
        scenario, as many feeds as an audit takes."""
        targets = [phases.Target(device, self.adapter.name, self._chosen.options) for device in self.kinds]
        planned = phases.solo(
            targets,
            [workload for workload in self._suites.workloads if workload.name != "probe"],
            "smoke",
            presets.PRESETS["quick"],
            precisions=tuple(precision for precision in PRECISIONS if self._is_offered(precision)),
            probe=self._suites.probe,
        )
        shares = {share.route.key: share for phase in planned for share in phase.shares}  # each probe is planned twice
        return {share.key: self._resized(share, share.batch or BATCH) for share in shares.values()}

    @trial
    def claimed(self) -> tuple[schema.Record, ...]:
        """A record for each claim. All suites of a device are open at once in one worker; if it crashed, its suites are
        tried again, each alone."""
        records: dict[str, schema.Record] = {}
        for device in self.kinds:
            shares = [share for share in self.claims.values() if share.route.device == device.id]
            records |= {record.key: record for record in self._measured("claims", shares)}
        for key, record in records.items():
            if record.error and record.error.kind in ("crashed", "hung", "out of memory"):
                (records[key],) = self._measured("claims.confirmation", [self.claims[key]])
        return tuple(records.values())

    @trial
    def concurrent(self) -> tuple[schema.Record, ...]:
        """Every suite that ran, in the first precision that worked, with as many feeds of one sample in flight as
        the runner takes."""
        found: list[schema.Record] = []
        for device in self.kinds:
            first = {record.route.suite: record for record in reversed(self.ran(device)) if record.scenario != "probe"}
            shares = []
            for record in first.values():
                share = self._resized(self.claims[record.key], 1, CONCURRENT_FEEDS * record.concurrency)
                shares.append(share.model_copy(update={"key": f"concurrent.{share.key}", "scenario": "offline"}))
            found += self._measured("concurrent", shares)
        return tuple(found)

    @trial
    def paired(self) -> tuple[schema.Record, ...]:
        """Two devices at once, each with its quickest suite. Raises NotChecked if there is only one."""
        pair = next((pair for pair in combinations(self.devices, 2) if not pair[0].silicon & pair[1].silicon), None)
        if pair is None:
            raise NotChecked("there is one device here")
        like = {_kind(device): device for device in self.kinds}
        shares = []
        for device in pair:
            share = self.quickest(like[_kind(device)])
            route = share.route.model_copy(update={"device": device.id})
            key = phases.key_of("pair", device.id, share.key)
            shares.append(share.model_copy(update={"route": route, "key": key}))
        return tuple(self._measured("pair", shares, _at_once))

    @trial
    def killed(self) -> Mapping[str, tuple[schema.Record, schema.Record]]:
        """For each kind of device, a worker that is killed in the middle of a window, and the next worker."""
        found = {}
        for device in self.kinds:
            shares = [self.quickest(device)]
            (killed,) = self._measured("killed", shares, _hang)
            (after,) = self._measured("killed.after", shares)
            found[device.id] = killed, after
        return found

    def ran(self, device: schema.Device) -> list[schema.Record]:
        """The claims of a device that came to their end, in the order of the plan. Raises NotChecked if there is
        none."""
        found = [
            record for record in self.claimed if record.route.device == device.id and record.completions is not None
        ]
        if not found:
            raise NotChecked(f"nothing ran on {device.id}")
        return found

    def quickest(self, device: schema.Device) -> schema.Share:
        """The claim of a device with the shortest feeds. Raises NotChecked if none came to its end."""
        ran = self.ran(device)
        suites = [record for record in ran if record.scenario != "probe"]
        return self.claims[min(suites or ran, key=_feed_s).key]

    @trial
    def audited(self) -> tuple[schema.Record, ...]:
        """All records of claims and of concurrent feeds with their audits, for which each suite's reference is loaded
        once."""
        records = {record.key: record for record in (*self.claimed, *self.concurrent)}

        def keep(record: schema.Record) -> None:
            records[record.key] = record

        auditor(self._equipment, self._folder, "smoke").run(list(records.values()), keep)
        return tuple(records.values())

    def findings(
        self, rules: Iterable[Callable[[Evidence], Iterator[schema.Finding]]], records: Sequence[schema.Record]
    ) -> list[str]:
        """The findings of rules in these records, without notes, each with the route of its record."""
        evidence = gather(self.result(records))
        found = [finding for rule in rules for finding in rule(evidence) if finding.severity != "note"]
        label_of = {record.key: record.route.label for record in records}
        return [f"{label_of.get(finding.about, finding.about)}: {words(finding)}" for finding in found]

    def result(self, records: Sequence[schema.Record]) -> schema.Result:
        """A result with these records."""
        return self._header.model_copy(
            update={"phases": tuple(self._phases), "records": tuple(records), "finished": True}
        )

    # Sessions of one worker

    @trial
    def sessions(self) -> Mapping[str, Sessions]:
        """Several sessions in a row of the largest suite that ran, for each kind of device. Raises WorkerFailed."""
        return {device.id: self._sessions(device) for device in self.kinds}

    def _sessions(self, device: schema.Device) -> Sessions:
        largest = max(self.ran(device), key=lambda record: record.needed_bytes or 0)
        share, weights_bytes = self.claims[largest.key], (largest.needed_bytes or 0) - child.RUNTIME_BYTES
        memory_bytes: list[int] = []
        with self._worker() as worker:
            for number in range(1, SESSIONS + 1):
                prepared = self._prepared(worker, share)
                broken_off = worker.call(AdapterCalls.break_off, self.timeout_s)(key=share.key, seed=number)
                idle_cores = _cores((worker.pid, *prepared.processes)) if number == SESSIONS else 0.0
                worker.call(AdapterCalls.close, self.timeout_s)()
                memory_bytes.append(worker.memory_bytes())
        return Sessions(share, weights_bytes, tuple(memory_bytes), broken_off.closing_ns, idle_cores)

    def _prepared(self, worker: Worker, share: schema.Share) -> Prepared:
        """Opens a suite in a worker, and warms it up."""
        route = share.route
        worker.call(AdapterCalls.open, self.timeout_s)(
            key=share.key,
            device=self._equipment.devices[route.device, route.adapter].whole,
            suite=self._equipment.choice(route),
            precision=route.precision,
            scenario=share.scenario,
            free_bytes=None,
        )
        prepare = worker.call(AdapterCalls.prepare, self.timeout_s)
        return prepare(key=share.key, scenario=share.scenario, batch=share.batch, seed=1, limits=share.limits)

    # How measurements are made

    def _is_offered(self, precision: schema.Precision) -> bool:
        return any(
            precision in offered
            for device in self.kinds
            for offered in (device.precisions, *device.precisions_by_suite.values())
        )

    def _measured(self, name: str, shares: Sequence[schema.Share], drive: Driver | None = None) -> list[schema.Record]:
        """Measures shares as one phase; without any, there is no phase."""
        by_device: dict[str, list[schema.Share]] = defaultdict(list)
        for share in shares:
            by_device[share.route.device].append(share)
        if not shares:
            return []
        tasks = tuple(schema.Task(device=device, shares=tuple(several)) for device, several in by_device.items())
        phase = schema.Phase(name=f"{len(self._phases):03d}.{name}", purpose="solo", tasks=tasks)
        self._phases.append(phase)
        return attend(phase, self._equipment, self._folder, drive or _one_by_one)

    @trial
    def _bench(self) -> Workbench:
        targets = tuple(phases.Target(device, self.adapter.name, self._chosen.options) for device in self.devices)
        found = Found(targets, (), {self.adapter.name: self.discoveries[0].environment})
        return Workbench(self._config, {self.adapter.name: self.adapter}, self._suites, found)

    @trial
    def _equipment(self) -> Equipment:
        return self._bench.equipment(None, self.timeout_s)

    @trial
    def _header(self) -> schema.Result:
        return self._bench.header((), "smoke", "conformance")

    def _resized(self, share: schema.Share, batch: int, audits: int = 1) -> schema.Share:
        """The share in feeds of this batch, with a window of as many feeds as hold the samples of an audit, and two at
        least. audits: the number of audited feeds."""
        gate = self._equipment.suite(share.route).gate(share.route.precision)
        feeds = max(2, audits, -(-(gate.samples if gate else 1) // batch))
        return share.model_copy(update={"batch": batch, "limits": _bounded(feeds, audits)})

    def _worker(self, more_options: Mapping[str, str] | None = None) -> Worker:
        """A fresh worker for requests of the kit's own. Raises WorkerFailed."""
        options = {**self._chosen.options, **(more_options or {})}
        log = self._folder / "logs" / "kit.log"
        file, _, name = self.adapter.spec.rpartition(":")
        adapter = replace(self.adapter, spec=f"{Path(file).resolve()}:{name}") if file.endswith(".py") else self.adapter
        return Worker(adapter, options, Path(mkdtemp(dir=self._folder)), log, self._chosen.python)


def _one_by_one(parts: Sequence[Part]) -> None:
    """Measures the parts one after the other. The failure of one does not end the others, as long as their worker
    lives."""
    for part in parts:
        try:
            solo.drive([part])
        except Exception as error:  # also an error of a suite's own code
            part.failure = failure_of(error)


def _at_once(parts: Sequence[Part]) -> None:
    """Measures the parts, each in a worker of its own, at the same time."""
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda part: _one_by_one([part]), parts))


def _hang(parts: Sequence[Part]) -> None:
    """Begins a window without an end, so that the worker is killed as a hung one. Raises WorkerFailed."""
    for part in parts:
        seed = part.begin()
        endless = part.share.limits.model_copy(update={"min_ns": 600 * SECOND, "max_ns": 600 * SECOND})
        measure = part.worker.call(AdapterCalls.measure, KILLED_AFTER_S, window=part.commitments)
        measure(key=part.name, seed=seed, limits=endless, out=str(part.scratch / "killed.npz"))


def _bounded(feeds: int, audits: int = 1) -> schema.Limits:
    return schema.Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=WINDOW_NS, min_feeds=feeds, audits=audits)


def _feed_s(record: schema.Record) -> float:
    """The mean time from one feed of a record to the next."""
    assert record.completions is not None  # the record came to its end
    begin_ns, end_ns = window_ns(record.completions)
    return max(1, end_ns - begin_ns) / SECOND / len(record.completions)


def _cores(pids: Sequence[int]) -> float:
    """The number of CPU cores that the processes and their children keep busy, after they had time to settle."""
    time.sleep(SETTLE_S)
    before_s, begin_s = _cpu_s(pids), time.monotonic()
    time.sleep(IDLE_S)
    return max(0.0, _cpu_s(pids) - before_s) / (time.monotonic() - begin_s)


def _family(pids: Iterable[int]) -> Iterator[psutil.Process]:
    """The processes and their children, as far as they live."""
    for pid in pids:
        with suppress(*UNKNOWN):
            top = psutil.Process(pid)
            yield from (top, *top.children(recursive=True))


def _cpu_s(pids: Sequence[int]) -> float:
    total_s = 0.0
    for process in _family(pids):
        with suppress(*UNKNOWN):
            total_s += sum(process.cpu_times()[:2])  # of the user and of the system
    return total_s


def _kind(device: schema.Device) -> tuple[str, str, int | None]:
    return device.kind, device.name, device.memory_bytes
