"""Measures phases on the hosts of a run: to the rest of the code they look like one machine with many devices."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mixmark.harness.contracts.device_ids import host_of, on
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
    Rate,
    Record,
    Share,
)
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.measure import mixed
from mixmark.harness.measure.audit import kept_at
from mixmark.harness.measure.cluster import clocks, messages, names
from mixmark.harness.measure.cluster.agents import TICK_S, Agents
from mixmark.harness.measure.cluster.coordinator import EVERY_S, Coordinator
from mixmark.harness.measure.dispatch import Pair, Tally
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.mixed import LoadedSuites, MixSnapshot
from mixmark.harness.plugins.calls import MAX_REASON
from mixmark.harness.record import store
from mixmark.harness.worker.messages import Garbled


@dataclass(frozen=True)
class Cluster:
    """The `measure.executor.Executor` of a run over several hosts. A host that is lost costs its own devices and
    nothing else: its records say why, and the others go on.

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
                    found[on(name, pool)] = size // (len(self.neighbours[name]) if pool == HOST_POOL else 1)
        return found

    def measure(self, request: PhaseRequest) -> Metering | None:
        hosts = tuple(dict.fromkeys(host_of(task.device) for task in request.phase.tasks))
        self.agents.begin_phase()
        self.agents.burst()
        self._measure_idle(request.idle_s, begins=True)
        request.started()
        replies = _PhaseOnHosts(self.agents, request, hosts).run()
        self.agents.burst()
        clock_of = self._fit_clocks({*hosts, *self.agents.present})
        records: list[Record] = []
        connections: list[Connection] = []
        for name in hosts:
            reply = replies[name]
            if isinstance(reply, messages.PhaseMeasured) and name in clock_of:
                try:
                    records += self._received(name, reply, clock_of[name], request)
                    connections.append(_connection(request.phase.name, name, clock_of[name], reply))
                    continue
                except (MixmarkError, ValueError, OSError) as error:
                    reply = f"the files or records of its agent cannot be used: {error}"
            reason = reply if isinstance(reply, str) else "its clock is not known, or it jumped"
            records += [self._lost(request, share, reason) for share in request.phase.shares if _is_of(name, share)]
        request.keep(records, connections)
        self._measure_idle(request.idle_s, begins=False)
        return self._read_meters(request.phase.name, clock_of)

    def _fit_clocks(self, hosts: Iterable[str]) -> dict[str, Clock]:
        """The clocks of the hosts that are known."""
        found = {}
        for name in hosts:
            with suppress(ValueError):
                found[name] = clocks.fit(self.agents[name].round_trips)
        return found

    def _measure_idle(self, seconds: float, begins: bool) -> None:
        """All meters read a cluster on which nothing runs."""
        if self.metered:
            request = messages.MeasureIdle(seconds=seconds, begins=begins)
            self.agents.request(dict.fromkeys(self.agents.present, request), messages.IdleMeasured)

    def _received(self, name: str, reply: messages.PhaseMeasured, clock: Clock, request: PhaseRequest) -> list[Record]:
        """The records of a host, with the run's names and clock. Moves their audited outputs and logs to the result's
        folder. Raises MixmarkError, ValueError or OSError if they cannot be used."""
        folder = self.agents[name].folder
        missing = {share.key: share for share in request.phase.shares if _is_of(name, share)}
        records = [
            names.record_on(name, record, clock) for record in store.received(folder, reply.records, reply.sha256)
        ]
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

    def _lost(self, request: PhaseRequest, share: Share, reason: Reason) -> Record:
        """The record of a share that its host did not measure."""
        host = host_of(share.route.device)
        message = plain(f"the host {host} did not measure it: {reason}", MAX_REASON)
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
                    meterings.append(names.metering_on(name, metering, clock_of[name]))
                except (MixmarkError, ValueError) as error:
                    agent.lose(f"the samples of its meters cannot be used: {error}")
        return names.merged(meterings)


@dataclass
class _PhaseOnHosts:
    """A phase while it is measured on one host or on several."""

    agents: Agents
    request: PhaseRequest
    hosts: Sequence[str]
    parts: dict[str, Phase] = field(default_factory=dict)
    """Each host's part of the phase, with its own names."""
    ready: dict[str, messages.MixReady] = field(default_factory=dict)
    progress: dict[str, messages.MixProgress] = field(default_factory=dict)
    replies: dict[str, messages.PhaseMeasured | Reason] = field(default_factory=dict)
    """The reply of each host that has ended the phase, or why there is none."""
    coordinator: Coordinator | None = None
    problem: Reason | None = None
    """Why a mixed phase cannot begin."""
    begin_s: float = 0.0
    granted_s: float = 0.0

    def run(self) -> Mapping[str, messages.PhaseMeasured | Reason]:
        """Returns when each host has replied or is lost."""
        request, placement = self.request, self.request.phase.placement
        for name in self.hosts:
            service = dict(request.mix.limits) if request.mix and placement else {}
            host_fraction = placement.host_fraction if placement else 0.0
            self.parts[name] = names.phase_of(name, request.phase)
            self.agents[name].send(
                messages.MeasurePhase(phase=self.parts[name], service=service, host_fraction=host_fraction)
            )
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
            self.request.stage(share, message.stage)
        elif isinstance(message, messages.MixReady):
            _check_ready(self.parts[name], message)
            self.ready[name] = message
        elif isinstance(message, messages.MixProgress):
            _check_progress(self.parts[name], message)
            self.progress[name] = message
            if self.coordinator and name in self.coordinator.hosts:
                self.coordinator.update(name, _tally(name, message))
        elif isinstance(message, messages.PhaseMeasured):
            self._end(name, message)
        elif isinstance(message, messages.Refused):
            self._end(name, plain(message.reason, MAX_REASON))

    def _end(self, name: str, reply: messages.PhaseMeasured | Reason) -> None:
        """A host has ended the phase, or is lost. Before the end of the window its part then goes to the others."""
        self.replies[name] = reply
        elapsed_s = time.monotonic() - self.begin_s
        if self.coordinator and name in self.coordinator.hosts:
            lasts_ns = self._lasts_ns(self.coordinator)
            if lasts_ns is None or elapsed_s * 1e9 < lasts_ns:
                self.coordinator.remove(name, elapsed_s)

    def _coordinate(self) -> None:
        """Begins a mixed phase when every host that is left is ready, and then grants what each may do."""
        now_s = time.monotonic()
        if self.coordinator is None:
            waiting = self.ready.keys() - self.replies.keys()
            if waiting and not self.problem and waiting | self.replies.keys() == set(self.hosts):
                self._begin(now_s)
            return
        if now_s - self.granted_s >= EVERY_S:
            self._grant(messages.GrantCredit, now_s)
        self.request.mixing(self._snapshot(now_s))

    def _begin(self, now_s: float) -> None:
        request, placement = self.request, self.request.phase.placement
        assert request.mix is not None and placement is not None  # it is a mixed phase
        loaded = _loaded({name: ready for name, ready in self.ready.items() if name not in self.replies})
        plan = request.planner()
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
                self.agents[name].send(messages.BeginMix(units={}, credit={}, lasts_ns=0, problem=self.problem))
            return
        self.begin_s = now_s
        self._grant(messages.BeginMix, now_s)

    def _grant(self, kind: type[messages.GrantCredit], now_s: float) -> None:
        assert self.coordinator is not None
        self.granted_s = now_s
        lasts_ns = self._lasts_ns(self.coordinator)
        for name, grant in self.coordinator.grants(now_s - self.begin_s).items():
            self.agents[name].send(kind(units=dict(grant.units), credit=dict(grant.credit), lasts_ns=lasts_ns))

    def _lasts_ns(self, coordinator: Coordinator) -> int | None:
        limits = self.request.phase.shares[0].limits
        return mixed.lasts_ns(limits, self._feeds(), coordinator.abandoned)

    def _feeds(self) -> Mapping[str, int]:
        """The finished feeds of each suite on all hosts, including the lost ones."""
        assert self.request.mix is not None
        feeds = Counter(dict.fromkeys(self.request.mix.units, 0))
        for progress in self.progress.values():
            feeds.update(progress.feeds)
        return feeds

    def _snapshot(self, now_s: float) -> MixSnapshot:
        assert self.coordinator is not None and self.request.mix is not None
        return MixSnapshot(
            elapsed_ns=round((now_s - self.begin_s) * 1e9),
            longest_ns=self.request.phase.shares[0].limits.max_ns,
            mixes=self.coordinator.mixes,
            planned_per_s=self.coordinator.placement.mixes_per_s,
            running={
                on(name, device): suite
                for name, progress in self.progress.items()
                if name not in self.replies
                for device, suite in progress.running.items()
            },
            tally=Tally(self.coordinator.units, {}, {}),
            feeds=self._feeds(),
            mix_units=self.request.mix.units,
        )


def _is_of(host: str, share: Share) -> bool:
    return host_of(share.route.device) == host


def _check_ready(part: Phase, ready: messages.MixReady) -> None:
    """part: the host's part of the phase. Raises Garbled if something else is ready."""
    rates = part.placement.rates if part.placement else ()
    if not set(ready.rates) <= set(rates) or len(ready.quanta) != len(ready.rates):
        raise Garbled("it has rates ready that were not planned")
    if ready.concurrency.keys() != {rate.device for rate in ready.rates}:
        raise Garbled("it has other devices ready than rates")


def _check_progress(part: Phase, progress: messages.MixProgress) -> None:
    """part: the host's part of the phase. Raises Garbled if the progress is of another suite or device."""
    pairs = {(share.route.suite, share.route.device) for share in part.shares}
    suites, devices = {suite for suite, _ in pairs}, {device for _, device in pairs}
    if not (progress.finished.keys() | progress.handed_out.keys() | progress.feeds.keys()) <= suites:
        raise Garbled("sums of a suite that it does not measure")
    if not {pace[:2] for pace in progress.paces} <= pairs:
        raise Garbled("a pace of a pair that it does not measure")
    if not progress.running.keys() <= devices or not set(progress.running.values()) <= suites | {""}:
        raise Garbled("it runs a suite or a device that it does not measure")


def _tally(host: str, progress: messages.MixProgress) -> Tally:
    paces = {(suite, on(host, device)): pace for suite, device, pace in progress.paces}
    return Tally(progress.finished, progress.handed_out, paces)


def _loaded(ready_hosts: Mapping[str, messages.MixReady]) -> LoadedSuites:
    """What all hosts have loaded, with the run's names."""
    rates: list[Rate] = []
    concurrency: dict[str, int] = {}
    quanta: dict[Pair, int] = {}
    for name, ready in ready_hosts.items():
        for rate, units in zip(ready.rates, ready.quanta, strict=True):
            rates.append(rate.model_copy(update={"device": on(name, rate.device)}))
            quanta[rate.suite, on(name, rate.device)] = units
        concurrency |= {on(name, device): count for device, count in ready.concurrency.items()}
    return LoadedSuites(tuple(rates), quanta, concurrency)


def _connection(phase: str, host: str, clock: Clock, reply: messages.PhaseMeasured) -> Connection:
    return Connection(
        phase=phase, host=host, clock=clock, sent_bytes=reply.sent_bytes, received_bytes=reply.received_bytes
    )
