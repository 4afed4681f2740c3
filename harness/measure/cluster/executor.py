"""Measures phases on the hosts of a run: to the rest of the code they look like one machine with many devices."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mixmark.harness.contracts.device_ids import host_of, local
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import (
    HOST_POOL,
    Clock,
    Connection,
    Device,
    Domain,
    Failure,
    Metering,
    Phase,
    Record,
    Share,
)
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.measure import mixed
from mixmark.harness.measure.audit import kept_at
from mixmark.harness.measure.cluster import clocks, messages, names
from mixmark.harness.measure.cluster.agents import TICK_S, Agents, reason
from mixmark.harness.measure.cluster.coordinator import EVERY_S, Coordinator
from mixmark.harness.measure.dispatch import Grant, Pair, Tally
from mixmark.harness.measure.executor import PhaseEvent, PhaseFacts, PhaseRequest, PhaseStarted, StageStarted
from mixmark.harness.measure.mixed import LoadedSuites, MixSnapshot
from mixmark.harness.plan.placement import replanner
from mixmark.harness.plugins.calls import MAX_REASON
from mixmark.harness.record import store
from mixmark.harness.worker.messages import Failed, Garbled


@dataclass(frozen=True)
class Cluster:
    """The `measure.executor.Executor` of a run over several hosts. A lost host costs only its own devices: their
    records say why, and the other hosts go on.

    units: the name of each suite's unit. folder: of the result. neighbours: for each host, all hosts of the run on its
    machine, itself included.
    """

    agents: Agents
    domains: tuple[Domain, ...]
    units: Mapping[str, str]
    folder: Path
    neighbours: Mapping[str, Sequence[str]]

    @property
    def metered(self) -> bool:
        return bool(self.domains)

    def current_power(self) -> CurrentPower | None:
        return None

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        """The hosts on one machine share its main memory equally."""
        found = {}
        requests = dict.fromkeys(self.agents.present, messages.FreeMemory())
        for name, reply in self.agents.request(requests, messages.MemoryPools).items():
            if isinstance(reply, messages.MemoryPools):
                for pool, size in reply.pool_bytes.items():
                    found[pool] = size // (len(self.neighbours[name]) if local(pool) == HOST_POOL else 1)
        return found

    def measure(self, request: PhaseRequest, notify: Callable[[PhaseEvent], None]) -> Iterator[PhaseFacts]:
        hosts = tuple(dict.fromkeys(host_of(task.device) for task in request.phase.tasks))
        self.agents.begin_phase()
        self.agents.burst()
        self._measure_idle(request.idle_s, begins=True)
        notify(PhaseStarted(request.phase))
        replies = _PhaseOnHosts(self.agents, request, hosts, notify).run()
        self.agents.burst()
        clock_of = self._fit_clocks({*hosts, *self.agents.present})
        records: list[Record] = []
        connections: list[Connection] = []
        for name in hosts:
            reply = replies[name]
            if isinstance(reply, messages.PhaseMeasured) and name in clock_of:
                try:
                    records += self._received(name, reply, clock_of[name], request)
                    connections.append(
                        Connection(
                            phase=request.phase.name,
                            host=name,
                            clock=clock_of[name],
                            sent_bytes=reply.sent_bytes,
                            received_bytes=reply.received_bytes,
                        )
                    )
                    continue
                except (MixmarkError, ValueError, OSError) as error:
                    reply = f"the files or records of its agent cannot be used: {error}"
            why = reply if isinstance(reply, str) else "its clock is not known, or it jumped"
            records += [self._lost(request, share, why) for share in request.phase.shares if _is_of(name, share)]
        yield PhaseFacts(records, connections)
        self._measure_idle(request.idle_s, begins=False)
        yield PhaseFacts(metering=self._read_meters(request.phase.name, clock_of))

    def _fit_clocks(self, hosts: Iterable[str]) -> dict[str, Clock]:
        """The clocks of the hosts that are known."""
        found = {}
        for name in hosts:
            with suppress(ValueError):
                found[name] = clocks.fit(self.agents[name].round_trips)
        return found

    def _measure_idle(self, seconds: float, begins: bool) -> None:
        """Lets all meters read a cluster on which nothing runs."""
        if self.metered:
            request = messages.MeasureIdle(seconds=seconds, begins=begins)
            self.agents.request(dict.fromkeys(self.agents.present, request), messages.IdleMeasured)

    def _received(self, name: str, reply: messages.PhaseMeasured, clock: Clock, request: PhaseRequest) -> list[Record]:
        """The records of a host, with the run's names and clock. Moves their audited outputs and logs to the result's
        folder. Raises MixmarkError, ValueError or OSError if they cannot be used."""
        folder = self.agents[name].folder
        missing = {share.key: share for share in request.phase.shares if _is_of(name, share)}
        records = [names.to_run(name, record, clock) for record in store.received(folder, reply.records, reply.sha256)]
        for record in records:
            share = missing.pop(record.key, None)
            about = (record.phase, record.route, record.scenario, record.run, record.screening)
            if share is None or about != (
                *(request.phase.name, share.route, share.scenario, share.run, share.limits.screening),
            ):
                raise ValueError(f"{record.key} was not requested")
        if missing and request.phase.placement is None:  # of a mix a share may have had nothing to do
            raise ValueError(f"{min(missing)} is missing")
        for record in records:
            if (outputs := kept_at(folder, record.key)).exists():
                shutil.move(outputs, kept_at(self.folder, record.key))
        (self.folder / "logs").mkdir(exist_ok=True)
        for log in (folder / "logs").iterdir():
            shutil.move(log, self.folder / "logs" / f"{name}.{log.name}")
        return records

    def _lost(self, request: PhaseRequest, share: Share, why: Reason) -> Record:
        """The record of a share that its host did not measure."""
        host = host_of(share.route.device)
        message = plain(f"the host {host} did not measure it: {why}", MAX_REASON)
        return Record(
            key=share.key,
            phase=request.phase.name,
            route=share.route,
            scenario=share.scenario,
            run=share.run,
            unit=self.units[share.route.suite],
            screening=share.limits.screening,
            error=Failure(kind="crashed", message=message),
        )

    def _read_meters(self, phase: str, clock_of: Mapping[str, Clock]) -> Metering | None:
        """The samples of the meters of all hosts. A host whose samples cannot be used is lost."""
        if not self.metered:
            return None
        requests = {name: messages.ReadMeters(phase=phase) for name in self.agents.present if name in clock_of}
        meterings = []
        for name, reply in self.agents.request(requests, messages.MeterSamples).items():
            if isinstance(reply, messages.MeterSamples) and reply.metering is not None:
                agent = self.agents[name]
                try:
                    metering = store.received_metering(agent.folder, reply.metering, reply.sha256)
                    if metering.phase != phase:
                        raise ValueError(f"the samples of {metering.phase} were not requested")
                    meterings.append(names.to_run(name, metering, clock_of[name]))
                except (MixmarkError, ValueError) as error:
                    agent.lose(f"the samples of its meters cannot be used: {error}")
        return names.merged(meterings)


@dataclass
class _PhaseOnHosts:
    """A phase while its hosts measure it."""

    agents: Agents
    request: PhaseRequest
    hosts: Sequence[str]
    notify: Callable[[PhaseEvent], None]
    ready: dict[str, messages.MixReady] = field(default_factory=dict)
    progress: dict[str, messages.MixProgress] = field(default_factory=dict)
    replies: dict[str, messages.PhaseMeasured | Reason] = field(default_factory=dict)
    """The reply of each host that has ended the phase, or why there is none."""
    coordinator: Coordinator | None = None
    problem: Reason | None = None
    """Why a mixed phase cannot begin."""
    begin_s: float = 0.0
    granted_s: float = 0.0
    lasts_ns: int | None = None
    """How long a mixed phase lasted, once it is over."""

    def run(self) -> Mapping[str, messages.PhaseMeasured | Reason]:
        """Returns when each host has replied or is lost."""
        request, placement = self.request, self.request.phase.placement
        for name in self.hosts:
            service = dict(request.mix.limits) if request.mix and placement else {}
            host_fraction = placement.host_fraction if placement else 0.0
            part = names.phase_of(name, request.phase)
            self.agents[name].send(messages.MeasurePhase(phase=part, service=service, host_fraction=host_fraction))
        while self.replies.keys() != set(self.hosts):
            for agent, message in self.agents.messages(time.monotonic() + TICK_S):
                if agent.name in self.hosts and agent.name not in self.replies:
                    try:
                        self._receive(agent.name, message)
                    except Garbled as problem:
                        agent.lose(f"its agent broke the protocol: {problem}")
            for name in self.hosts:
                if (lost := self.agents[name].lost) and name not in self.replies:
                    self._end(name, lost)
            if placement is not None:
                self._coordinate()
        return self.replies

    def _receive(self, name: str, message: object) -> None:
        """Raises Garbled if a message is about a share that the host does not measure."""
        if isinstance(message, messages.StageBegun):
            share = next((share for share in self.request.phase.shares if share.key == message.key), None)
            if share is None or not _is_of(name, share):
                raise Garbled("a stage of a share that it does not measure")
            self.notify(StageStarted(share, message.stage))
        elif isinstance(message, messages.MixReady):
            _check_ready(self.request.phase, message)
            self.ready[name] = message
        elif isinstance(message, messages.MixProgress):
            _check_progress(name, self.request.phase, message)
            self.progress[name] = message
            if self.coordinator and name in self.coordinator.hosts:
                self.coordinator.update(name, _tally(message))
        elif isinstance(message, messages.PhaseMeasured):
            self._end(name, message)
        elif isinstance(message, Failed):
            self._end(name, plain(reason(message), MAX_REASON))

    def _end(self, name: str, reply: messages.PhaseMeasured | Reason) -> None:
        """Ends the phase of a host that has replied or is lost. Before the end of the window the host's part of the mix
        then goes to the other hosts."""
        self.replies[name] = reply
        elapsed_s = time.monotonic() - self.begin_s
        if self.coordinator and name in self.coordinator.hosts and self.lasts_ns is None:
            self.coordinator.remove(name, elapsed_s)

    def _coordinate(self) -> None:
        """Begins a mixed phase when every remaining host is ready, and then grants work every EVERY_S."""
        now_s = time.monotonic()
        if self.coordinator is None:
            waiting = self.ready.keys() - self.replies.keys()
            if waiting and not self.problem and waiting | self.replies.keys() == set(self.hosts):
                self._begin(now_s)
            return
        elapsed_ns = round((now_s - self.begin_s) * 1e9)
        over = mixed.is_over(elapsed_ns, self.coordinator.surplus, self.request.phase.shares[0].limits)
        if over and self.lasts_ns is None:
            self.lasts_ns = elapsed_ns
            self._grant(messages.GrantWork, now_s)
        elif now_s - self.granted_s >= EVERY_S:
            self._grant(messages.GrantWork, now_s)
        self.notify(self._snapshot(now_s))

    def _begin(self, now_s: float) -> None:
        request, placement = self.request, self.request.phase.placement
        assert request.mix is not None and placement is not None  # it is a mixed phase
        loaded = _loaded([ready for name, ready in self.ready.items() if name not in self.replies])
        plan = replanner(placement, request.devices)
        try:
            chosen = mixed.planned(placement, loaded, request.mix.units, plan)
            chosen = chosen.model_copy(update={"rates": loaded.rates})
            host_of_device = {device: host_of(device) for device in loaded.concurrency}
            self.coordinator = Coordinator(
                request.mix.units, chosen, loaded.quanta, loaded.concurrency, host_of_device, plan
            )
        except (ValueError, MixmarkError) as error:
            self.problem = str(error)
            for name in self.ready.keys() - self.replies.keys():
                self.agents[name].send(messages.BeginMix(grant=Grant({}, {}), lasts_ns=0, problem=self.problem))
            return
        self.begin_s = now_s
        self._grant(messages.BeginMix, now_s)

    def _grant(self, kind: type[messages.GrantWork], now_s: float) -> None:
        assert self.coordinator is not None
        self.granted_s = now_s
        for name, grant in self.coordinator.grants(now_s - self.begin_s).items():
            self.agents[name].send(kind(grant=grant, lasts_ns=self.lasts_ns))

    def _feeds(self) -> Mapping[str, int]:
        """The finished feeds of each suite on all hosts, including the lost ones."""
        assert self.request.mix is not None
        feeds = Counter(dict.fromkeys(self.request.mix.units, 0))
        for progress in self.progress.values():
            feeds.update(progress.feeds)
        return feeds

    def _snapshot(self, now_s: float) -> MixSnapshot:
        assert self.coordinator is not None and self.request.mix is not None
        longest_ns = self.request.phase.shares[0].limits.max_ns
        return MixSnapshot(
            elapsed_ns=round((now_s - self.begin_s) * 1e9),
            longest_ns=longest_ns,
            mixes=self.coordinator.mixes,
            planned_per_s=self.coordinator.placement.mixes_per_s,
            least_surplus=self.coordinator.least_surplus(longest_ns / 1e9),
            running={
                device: suite
                for name, progress in self.progress.items()
                if name not in self.replies
                for device, suite in progress.running.items()
            },
            tally=Tally(self.coordinator.units, {}, {}, {}),
            feeds=self._feeds(),
            mix_units=self.request.mix.units,
        )


def _is_of(host: str, share: Share) -> bool:
    return host_of(share.route.device) == host


def _check_ready(phase: Phase, ready: messages.MixReady) -> None:
    """Raises Garbled if a host has loaded other routes than those of the plan."""
    rates = phase.placement.rates if phase.placement else ()
    if not set(ready.rates) <= set(rates) or len(ready.quanta) != len(ready.rates):
        raise Garbled("it has rates ready that were not planned")
    if ready.concurrency.keys() != {rate.device for rate in ready.rates}:
        raise Garbled("it has other devices ready than rates")


def _check_progress(host: str, phase: Phase, progress: messages.MixProgress) -> None:
    """Raises Garbled if a host reports another suite or device than those of its tasks."""
    pairs = {(share.route.suite, share.route.device) for share in phase.shares if _is_of(host, share)}
    suites, devices = {suite for suite, _ in pairs}, {device for _, device in pairs}
    if not (progress.finished.keys() | progress.handed_out.keys() | progress.feeds.keys()) <= suites:
        raise Garbled("sums of a suite that it does not measure")
    if not _paces(progress).keys() <= pairs:
        raise Garbled("a pace of a pair that it does not measure")
    if not progress.unfinished_s.keys() <= devices:
        raise Garbled("work of a device that it does not measure")
    if not progress.running.keys() <= devices or not set(progress.running.values()) <= suites | {""}:
        raise Garbled("it runs a suite or a device that it does not measure")


def _paces(progress: messages.MixProgress) -> dict[Pair, float]:
    return {(suite, device): pace for device, paces in progress.paces.items() for suite, pace in paces.items()}


def _tally(progress: messages.MixProgress) -> Tally:
    return Tally(progress.finished, progress.handed_out, _paces(progress), progress.unfinished_s)


def _loaded(ready_hosts: Sequence[messages.MixReady]) -> LoadedSuites:
    """The suites that all hosts have loaded."""
    quanta = {
        (rate.suite, rate.device): units
        for ready in ready_hosts
        for rate, units in zip(ready.rates, ready.quanta, strict=True)
    }
    concurrency = {device: count for ready in ready_hosts for device, count in ready.concurrency.items()}
    return LoadedSuites(tuple(rate for ready in ready_hosts for rate in ready.rates), quanta, concurrency)
