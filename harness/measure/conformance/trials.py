"""The trials of an adapter. Each is made when a check first needs it, and kept.

Everything goes through real workers, by the phases, loops and audits of a run; the smoke tier makes it quick.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import psutil

from mixmark.harness.contracts.schema import (
    Device,
    Environment,
    Failure,
    Finding,
    Limits,
    Phase,
    Precision,
    Record,
    Result,
    Share,
    Task,
)
from mixmark.harness.discover.config import Config
from mixmark.harness.discover.devices import Found, environment
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.discover.machine.accelerators import Accelerators
from mixmark.harness.discover.setup import Suites, Workbench
from mixmark.harness.judge.evidence import Evidence, gather
from mixmark.harness.judge.statistics.intervals import sample_needed
from mixmark.harness.measure import solo
from mixmark.harness.measure.benchmark import auditor
from mixmark.harness.measure.conformance.report import NotChecked, trial
from mixmark.harness.measure.phase import Part, attend
from mixmark.harness.plan import phases, presets
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import child, messages
from mixmark.harness.worker.failures import Misused, WorkerFailed, failure_of
from mixmark.harness.worker.handle import Worker

SECOND = 1_000_000_000
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BATCH = 17  # samples in a feed, where a suite takes batches: no power of two, so that padding must be cut off again
WINDOW_NS = 10 * SECOND  # the longest window
ROUNDS = 4  # sessions in a row, in one worker
SETTLE_S = 0.5  # in which threads that wait for work may still spin
IDLE_S = 1.0  # in which they may not
KILLED_AFTER_S = 0.5  # of a window, in which a worker is killed
FEEDS_A_SLOT = 4  # are run at once with others, and audited
LOAD = 0.5  # of what a runner gets done: the rate at which feeds arrive at a server
SERVED_S = 15.0  # in which feeds arrive at a server; for fewer feeds than the percentile takes, where feeds are slow
UNKNOWN_OPTION = "mixmark-conformance"


@dataclass(frozen=True)
class Discovery:
    """The devices that a fresh worker found, and the traces that it had left when it replied."""

    devices: tuple[Device, ...]
    environment: Environment
    took_s: float
    children: tuple[str, ...]
    """The names of the processes that it had started, and that lived."""
    listening: tuple[int, ...]
    """The ports on which it waited for connections."""
    files: tuple[str, ...]
    """The files that it made in the current folder and in TMPDIR, and those that it held open for writing."""
    holds: tuple[str, ...]
    """The accelerators that list it among the processes that compute on them."""


@dataclass(frozen=True)
class Sessions:
    """Several sessions in one worker, one after the other."""

    share: Share
    weights_bytes: int
    memory_bytes: tuple[int, ...]
    """The memory of the worker behind each session."""
    examined: messages.RunnerChecked
    idle_cores: float
    """The CPUs that it used while it had a suite open and nothing to do."""
    unclaimed: Precision | None
    """A precision that the device does not offer to the suite; None: it offers all."""
    refusal: Failure | None
    """How the adapter refused it. None: it took it."""


@dataclass(frozen=True)
class Killed:
    """A worker that was killed while it measured, and the next one."""

    surviving_processes: tuple[str, ...]
    after: Failure | None
    """Why the next worker could not run the suite; None: it could."""


class Trials:
    """The trials of one adapter, with one device of each kind: eight equal accelerators are tried as one.

    folder: an empty one, in which records and logs are left. timeout_s: how long a worker may be silent.
    """

    def __init__(self, adapter: Plugin, config: Config, suites: Suites, folder: Path, timeout_s: float) -> None:
        self.adapter, self.timeout_s = adapter, timeout_s
        self._chosen = config.adapter(adapter.name)
        self._config, self._suites, self._folder = config, suites, folder
        self._phases: list[Phase] = []
        self._workers = 0
        (folder / "raw").mkdir(parents=True)
        (folder / "logs").mkdir()

    # Discovery

    @trial
    def discoveries(self) -> tuple[Discovery, ...]:
        """Two discoveries, each in a fresh worker. Raises WorkerFailed."""
        return tuple(self._discovered() for _ in range(2))

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the first discovery. Raises NotChecked if there is none."""
        try:
            found = self.discoveries[0].devices
        except WorkerFailed as failed:
            raise NotChecked(f"no device was discovered: {failed}") from failed
        if not found:
            raise NotChecked("the adapter reaches no device of this machine")
        return found

    @property
    def kinds(self) -> tuple[Device, ...]:
        """One device of each kind."""
        return tuple({(each.kind, each.name, each.memory_bytes): each for each in reversed(self.devices)}.values())

    @trial
    def unknown_option(self) -> WorkerFailed | None:
        """The adapter's error for an unknown option. None: it took the option."""
        with self._worker({UNKNOWN_OPTION: "1"}) as worker:
            try:
                worker.call(messages.Discover(), self.timeout_s)
            except WorkerFailed as failed:
                return failed
        return None

    def _discovered(self) -> Discovery:
        before = _files(Path.cwd())
        scratch = self._scratch()
        begin_s = time.monotonic()
        with self._worker(scratch=scratch) as worker:
            output = worker.call(messages.Discover(), self.timeout_s)
            took_s = time.monotonic() - begin_s
            assert worker.hello is not None  # it comes before the output
            process = psutil.Process(worker.pid)
            children = process.children(recursive=True)
            with Accelerators() as accelerators:
                states = accelerators.read({worker.pid, *(each.pid for each in children)}, Path("/proc"))
            files = [*(_files(Path.cwd()) - before), *(f"TMPDIR/{name}" for name in _files(scratch))]
            # Only Linux reports the mode.
            files += [
                each.path
                for each in process.open_files()
                if getattr(each, "mode", "") != "r" and each.path != str(worker.log)
            ]
            return Discovery(
                devices=output.devices,
                environment=environment(worker.hello, output.vendor),
                took_s=took_s,
                children=tuple(each.name() for each in children),
                listening=tuple(_listening([process, *children])),
                files=tuple(sorted(files)),
                holds=tuple(each.id for each in states if each.own_processes_listed),
            )

    # Measurements

    @trial
    def claims(self) -> Mapping[str, Share]:
        """Every suite in every precision that a device offers to it, by the key of its share: in the suite's native
        scenario, as many feeds as an audit takes."""
        targets = [phases.Target(each, self.adapter.name, self._chosen.options) for each in self.kinds]
        planned = phases.solo(
            targets,
            [each for each in self._suites.workloads if each.name != "probe"],
            "smoke",
            presets.PRESETS["quick"],
            precisions=tuple(precision for precision in PRECISIONS if self._offered(precision)),
            probe=self._suites.probe,
        )
        shares = {share.route.key: share for phase in planned for share in phase.shares}  # each probe is planned twice
        batches = {share.key: share.batch or BATCH for share in shares.values()}
        return {
            share.key: share.model_copy(
                update={"batch": batches[share.key], "limits": self._limits(share, batches[share.key])}
            )
            for share in shares.values()
        }

    @trial
    def claimed(self) -> tuple[Record, ...]:
        """A record for each claim. All suites of a device are open at once in one worker; if it crashed, its suites are
        tried again, each alone."""
        records = {record.key: record for device in self.kinds for record in self._together(self._claims_on(device))}
        for key, record in records.items():
            if record.error and record.error.kind in ("crashed", "hung", "out of memory"):
                (records[key],) = self._measured(f"confirmation.{key}", [self.claims[key]])
        return tuple(records.values())

    @trial
    def crowded(self) -> tuple[Record, ...]:
        """Every suite that ran, in the first precision in which it did, with as many feeds of one sample in flight as
        the runner has slots."""
        found = []
        for device in self.kinds:
            first = {share.route.suite: share for share in reversed(self.ran(device))}
            shares = [
                share.model_copy(
                    update={
                        "key": f"crowd.{share.key}",
                        "scenario": "offline",
                        "batch": 1,
                        "limits": self._limits(share, 1, audits=FEEDS_A_SLOT * self.record(share).concurrency),
                    }
                )
                for share in first.values()
                if share.scenario != "probe"
            ]
            found += self._measured(f"crowd.{_slug(device)}", shares) if shares else []
        return tuple(found)

    @trial
    def served(self) -> tuple[Record, ...]:
        """For each kind of device, the quickest suite that has latency limits: feeds arrive at half the rate that a
        closed loop got done."""
        found = []
        for device in self.kinds:
            able = [
                record
                for record in self.crowded
                if record.route.device == device.id and record.completions and self._latency(record)
            ]
            for record in sorted(able, key=_feed_s)[:1]:
                rate_per_s = LOAD * len(record.completions or ()) / _window_s(record)
                needed = min(sample_needed(self._latency(record) or 0.9), max(1, int(rate_per_s * SERVED_S)))
                share = self._shares[record.key].model_copy(
                    update={
                        "key": record.key.replace("crowd.", "server.", 1),
                        "scenario": "server",
                        "rate_per_s": rate_per_s,
                        "limits": _bounded(needed),
                    }
                )
                found += self._measured(share.key, [share])
        return tuple(found)

    @trial
    def paired(self) -> tuple[Record, ...]:
        """Two devices at once, each with its quickest suite. Raises NotChecked if there is only one."""
        for first in self.devices:
            for other in self.devices:
                if not first.silicon & other.silicon:
                    return self._pair(first, other)
        raise NotChecked("there is one device here")

    def record(self, share: Share) -> Record:
        """The record of a claim."""
        return next(each for each in self.claimed if each.key == share.key)

    def ran(self, device: Device) -> list[Share]:
        """The claims of a device that came to their end, in the order of the plan."""
        done = {record.key for record in self.claimed if record.completions is not None}
        return [share for share in self._claims_on(device) if share.key in done]

    def quickest(self, device: Device) -> Share:
        """The claim of a device with the shortest feeds. Raises NotChecked if none came to its end."""
        ran = [share for share in self.ran(device) if share.scenario != "probe"] or self.ran(device)
        if not ran:
            raise NotChecked(f"nothing ran on {device.id}")
        return min(ran, key=lambda share: _feed_s(self.record(share)))

    @trial
    def audited(self) -> tuple[Record, ...]:
        """All records of claims and crowds with their audits, for which each suite's reference is loaded once."""
        records = {record.key: record for record in (*self.claimed, *self.crowded)}

        def keep(record: Record) -> None:
            records[record.key] = record

        auditor(self._equipment, self._folder, "smoke").run(list(records.values()), keep)
        return tuple(records.values())

    def found(
        self, rules: Iterable[Callable[[Evidence], Iterator[Finding]]], records: Sequence[Record]
    ) -> list[Finding]:
        """The findings of rules in these records, without notes."""
        evidence = gather(
            self._header.model_copy(update={"phases": tuple(self._phases), "records": tuple(records), "finished": True})
        )
        return [finding for rule in rules for finding in rule(evidence) if finding.severity != "note"]

    @property
    def log_bytes(self) -> int:
        """The bytes that the workers of all measurements have printed."""
        return sum(each.stat().st_size for each in (self._folder / "logs").iterdir() if each.name.startswith("0"))

    # Sessions of one worker

    @trial
    def sessions(self) -> Mapping[str, Sessions]:
        """Several sessions in a row of the largest suite that ran, for each kind of device. Raises WorkerFailed."""
        return {device.id: self._sessions(device) for device in self.kinds}

    @trial
    def killed(self) -> Mapping[str, Killed]:
        """For each kind of device, a worker that is killed in the middle of a window, and the one after it."""
        return {device.id: self._killed(self.quickest(device)) for device in self.kinds}

    def _sessions(self, device: Device) -> Sessions:
        self.quickest(device)  # or nothing ran
        share = max(self.ran(device), key=lambda each: self._weights_bytes(each))
        memory_bytes: list[int] = []
        with self._worker() as worker:
            for last in (*[False] * (ROUNDS - 1), True):
                prepared = self._prepared(worker, share)
                examined = worker.call(messages.CheckRunner(key=share.key, seed=len(memory_bytes)), self.timeout_s)
                idle_cores = _cores((worker.pid, *prepared.processes)) if last else 0.0
                worker.call(messages.Close(), self.timeout_s)
                memory_bytes.append(worker.memory_bytes())
            others = [each for each in PRECISIONS if each not in device.offers(share.route.suite)]
            unclaimed = others[-1] if others else None
            refusal = self._refusal(worker, share, unclaimed) if unclaimed else None
        return Sessions(
            share=share,
            weights_bytes=self._weights_bytes(share),
            memory_bytes=tuple(memory_bytes),
            examined=examined,
            idle_cores=idle_cores,
            unclaimed=unclaimed,
            refusal=refusal,
        )

    def _killed(self, share: Share) -> Killed:
        endless = share.limits.model_copy(update={"min_ns": 600 * SECOND, "max_ns": 600 * SECOND})
        worker = self._worker()
        with worker:
            self._prepared(worker, share)
            worker.call(messages.Begin(key=share.key, pool=1, seed=1), self.timeout_s)
            out = str(self._folder / "killed.npz")
            with suppress(WorkerFailed):  # it is killed because it does not reply in time
                worker.call(
                    messages.Measure(key=share.key, limits=endless, out=out),
                    KILLED_AFTER_S,
                    sampling_key=lambda full: 1,
                )
        with self._worker() as next_one:
            try:
                self._prepared(next_one, share)
            except WorkerFailed as failed:
                return Killed(worker.surviving_processes, failed.failure)
        return Killed(worker.surviving_processes, None)

    def _refusal(self, worker: Worker, share: Share, precision: Precision) -> Failure | None:
        route = share.route.model_copy(update={"precision": precision})
        try:
            self._prepared(worker, share.model_copy(update={"route": route}))
        except Misused as failed:
            return failed.failure.model_copy(update={"message": f"UsageError: {failed.failure.message}"})
        except WorkerFailed as failed:
            return failed.failure
        return None

    def _prepared(self, worker: Worker, share: Share) -> messages.Prepared:
        """Opens a suite in a worker, and warms it up."""
        route = share.route
        worker.call(
            messages.Open(
                key=share.key,
                device=self._equipment.devices[route.device, route.adapter].whole,
                suite=self._equipment.choice(route),
                precision=route.precision,
                scenario=share.scenario,
                free_bytes=None,
            ),
            self.timeout_s,
        )
        asked = messages.Prepare(key=share.key, scenario=share.scenario, batch=share.batch, seed=1, limits=share.limits)
        return worker.call(asked, self.timeout_s)

    # How measurements are made

    def _claims_on(self, device: Device) -> list[Share]:
        return [share for share in self.claims.values() if share.route.device == device.id]

    def _offered(self, precision: str) -> bool:
        return any(
            precision in (*each.precisions, *(one for several in each.precisions_by_suite.values() for one in several))
            for each in self.kinds
        )

    def _together(self, shares: Sequence[Share]) -> Sequence[Record]:
        return self._measured(f"claims.{_slug_of(shares[0].route.device)}", shares) if shares else ()

    def _pair(self, first: Device, other: Device) -> tuple[Record, ...]:
        like = {(each.kind, each.name, each.memory_bytes): each for each in self.kinds}
        shares = []
        for device in (first, other):
            share = self.quickest(like[device.kind, device.name, device.memory_bytes])
            route = share.route.model_copy(update={"device": device.id})
            key = f"pair.{_slug(device)}.{share.key}"
            shares.append(share.model_copy(update={"route": route, "key": key}))
        return tuple(self._measured("pair", shares, _at_once))

    def _measured(
        self, name: str, shares: Sequence[Share], drive: Callable[[Sequence[Part]], None] | None = None
    ) -> list[Record]:
        by_device: dict[str, list[Share]] = defaultdict(list)
        for share in shares:
            by_device[share.route.device].append(share)
            self._shares[share.key] = share
        tasks = tuple(Task(device=device, shares=tuple(several)) for device, several in by_device.items())
        phase = Phase(name=f"{len(self._phases):03d}.{name}", purpose="solo", tasks=tasks)
        self._phases.append(phase)
        return attend(phase, self._equipment, self._folder, drive or _one_by_one)

    @trial
    def _shares(self) -> dict[str, Share]:
        """The shares that were measured, by their keys."""
        return {}

    @trial
    def _bench(self) -> Workbench:
        targets = tuple(phases.Target(each, self.adapter.name, self._chosen.options) for each in self.devices)
        found = Found(targets, (), {self.adapter.name: self.discoveries[0].environment})
        return Workbench(self._config, {self.adapter.name: self.adapter}, self._suites, found)

    @trial
    def _equipment(self) -> Equipment:
        return self._bench.equipment(None, self.timeout_s)

    @trial
    def _header(self) -> Result:
        return self._bench.header((), "smoke", "conformance")

    def _limits(self, share: Share, batch: int, audits: int = 1) -> Limits:
        """A window of as many feeds as hold the samples of an audit, and two at least. audits: so many of them."""
        gate = self._equipment.suite(share.route).gate(share.route.precision)
        return _bounded(max(2, audits, -(-(gate.samples if gate else 1) // batch)), audits)

    def _latency(self, record: Record) -> float | None:
        """The percentile of the latency limits of a record's suite; None: it has none."""
        latency = self._equipment.suite(record.route).latency
        return latency.percentile if latency else None

    def _weights_bytes(self, share: Share) -> int:
        return child.needed_bytes(self._equipment.suite(share.route), share.route.precision) - child.RUNTIME_BYTES

    def _scratch(self) -> Path:
        self._workers += 1
        scratch = self._folder / f"scratch-{self._workers}"
        scratch.mkdir()
        return scratch

    def _worker(self, more_options: Mapping[str, str] | None = None, scratch: Path | None = None) -> Worker:
        """A fresh worker for requests of the kit's own. Raises WorkerFailed."""
        options = {**self._chosen.options, **(more_options or {})}
        log = self._folder / "logs" / "kit.log"
        return Worker(self.adapter, options, scratch or self._scratch(), log, self._chosen.python)


def _one_by_one(parts: Sequence[Part]) -> None:
    """Measures the parts one after the other. What ends one does not end the others, as long as their worker lives."""
    for part in parts:
        try:
            solo.drive([part])
        except Exception as error:  # also what a suite's own code raises
            part.failure = failure_of(error)


def _at_once(parts: Sequence[Part]) -> None:
    """Measures the parts, each in a worker of its own, at the same time."""
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda part: _one_by_one([part]), parts))


def _bounded(feeds: int, audits: int = 1) -> Limits:
    return Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=WINDOW_NS, min_feeds=feeds, audits=audits)


def _feed_s(record: Record) -> float:
    """The time of a feed of a record, on the average."""
    return _window_s(record) / len(record.completions or ())


def _window_s(record: Record) -> float:
    done = record.completions
    assert done is not None  # it is asked of records that came to their end
    return max(1, int(done.yielded_ns.max() - done.issued_ns.min())) / SECOND


def _cores(pids: Sequence[int]) -> float:
    """How many CPU cores the processes and their children keep busy, once they had time to settle."""
    time.sleep(SETTLE_S)
    before_s, begin_s = _cpu_s(pids), time.monotonic()
    time.sleep(IDLE_S)
    return max(0.0, _cpu_s(pids) - before_s) / (time.monotonic() - begin_s)


def _cpu_s(pids: Sequence[int]) -> float:
    total_s = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            top = psutil.Process(pid)
            for each in (top, *top.children(recursive=True)):
                with suppress(psutil.Error):
                    times = each.cpu_times()
                    total_s += times.user + times.system
    return total_s


def _files(folder: Path) -> set[str]:
    with suppress(OSError):
        return {each.name for each in folder.iterdir()} - {"__pycache__"}
    return set()


def _listening(processes: Iterable[psutil.Process]) -> Iterator[int]:
    for each in processes:
        with suppress(psutil.Error):
            yield from (one.laddr.port for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN)


def _slug(device: Device) -> str:
    return _slug_of(device.id)


def _slug_of(id: str) -> str:
    return id.lower().replace(":", "-").replace("_", "-")
