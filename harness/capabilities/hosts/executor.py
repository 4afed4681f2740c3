"""Measures phases on the hosts of a run: to the rest of the code they look like one machine with many devices."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.capabilities.hosts import clocks, messages, names
from mixmark.harness.capabilities.hosts.agents import TICK_S, Agents, Received, reason
from mixmark.harness.capabilities.hosts.classes import by_classes
from mixmark.harness.capabilities.hosts.coordinator import AHEAD_S, EVERY_S, Coordinator
from mixmark.harness.capabilities.hosts.dispatcher import Grant, Tally
from mixmark.harness.capabilities.hosts.messages import AgentCalls, PhaseReports
from mixmark.harness.contracts.device_ids import host_of, on
from mixmark.harness.contracts.errors import MixmarkError, ResultError
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
from mixmark.harness.measure import mixed
from mixmark.harness.measure.audit import handed_at
from mixmark.harness.measure.executor import (
    PhaseEvent,
    PhaseFacts,
    PhaseRequest,
    PhaseStarted,
    StageStarted,
    WindowOpens,
)
from mixmark.harness.measure.mixed import LoadedSuites, MixSnapshot
from mixmark.harness.measure.record_draft import RecordDraft
from mixmark.harness.plugins.calls import MAX_REASON
from mixmark.harness.record import store
from mixmark.harness.resources import clock
from mixmark.harness.worker.calls import Call, Failed, Garbled
from mixmark.harness.worker.plugin_process import end_all


@dataclass(frozen=True)
class Cluster:
    """The `measure.executor.Executor` of a run over several hosts. A lost host costs only its own devices: their
    records say why, and the other hosts go on.

    units: the name of each suite's unit. folder: of the result. neighbours: for each host, all hosts of the run on its
    machine, itself included.
    """

    hosts: Agents
    domains: tuple[Domain, ...]
    units: Mapping[str, str]
    folder: Path
    neighbours: Mapping[str, Sequence[str]]

    @property
    def metered(self) -> bool:
        return bool(self.domains)

    @property
    def meters(self) -> None:
        return None

    def end_plugins(self) -> None:
        """Ends the processes of plugins here and in all agents, of which one may run on this machine. Outputs are drawn
        and compared here alone."""
        end_all()
        self.hosts.call(AgentCalls.end_plugins, self.hosts.present)

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        """The hosts on one machine share its main memory equally."""
        found = {}
        for name, reply in self.hosts.call(AgentCalls.free_memory, self.hosts.present).items():
            if not isinstance(reply, str):
                for pool, size in reply.items():
                    found[on(name, pool)] = size // (len(self.neighbours[name]) if pool == HOST_POOL else 1)
        return found

    def rounds(self, phases: Sequence[Phase]) -> Iterator[Sequence[Phase]]:
        """Those of one device in their order on each machine, and one of each machine at a time."""
        for alone, several in itertools.groupby(phases, lambda phase: phase.placement is not None):
            machines: dict[str, list[Phase]] = {}
            for phase in several:
                machine = "" if alone else self.neighbours[host_of(phase.tasks[0].device)][0]
                machines.setdefault(machine, []).append(phase)
            for abreast in itertools.zip_longest(*machines.values()):
                yield [phase for phase in abreast if phase]

    def measure(self, requests: Sequence[PhaseRequest], notify: Callable[[PhaseEvent], None]) -> Iterator[PhaseFacts]:
        request_of = {host_of(task.device): request for request in requests for task in request.phase.tasks}
        idle_s = max(request.idle_s for request in requests)
        self.hosts.begin_phase()
        self.hosts.burst()
        self._measure_idle(idle_s, begins=True)
        for request in requests:
            notify(PhaseStarted(request.phase))
        on_hosts = {name: _HostPhase(name, request, notify) for name, request in request_of.items()}
        on_all = _PhaseOnHosts(self.hosts, requests, on_hosts, notify)
        ended: BaseException | None = None
        try:
            on_all.run()
        except KeyboardInterrupt as interrupted:
            ended = interrupted
        self.hosts.burst()
        if not (ended or self.hosts.present):  # such as when the engine has cancelled its job
            reasons = "; ".join(f"{name}: {self.hosts[name].lost}" for name in request_of)
            ended = ResultError(plain(f"no host is left: {reasons}", MAX_REASON), "see that the hosts can be reached")
        clock_of = self._fit_clocks({*request_of, *self.hosts.present})
        records: list[Record] = []
        connections: list[Connection] = []
        for name, request in request_of.items():
            if ended and not on_all.has_measured(request):
                continue
            reply = on_hosts[name].reply
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
                            unled_ns=round(on_all.unled_s * 1e9),
                        )
                    )
                    continue
                except (MixmarkError, ValueError, OSError) as error:
                    reply = f"the files or records of its agent cannot be used: {error}"
            why = reply if isinstance(reply, str) else "its clock is not known, or it jumped"
            records += [self._lost(request, share, why) for share in request.phase.shares if _is_of(name, share)]
        yield PhaseFacts(records, connections)
        if ended:
            raise ended
        self._measure_idle(idle_s, begins=False)
        for request in requests:
            phase = request.phase
            hosts = self.neighbours if phase.placement else self.neighbours[host_of(phase.tasks[0].device)]
            own = {name: clock_of[name] for name in hosts if name in clock_of}
            yield PhaseFacts(metering=self._read_meters(phase.name, own))

    def _fit_clocks(self, hosts: Iterable[str]) -> dict[str, Clock]:
        """The clocks of the hosts that are known."""
        found = {}
        for name in hosts:
            with suppress(ValueError):
                found[name] = clocks.fit(self.hosts[name].round_trips)
        return found

    def _measure_idle(self, seconds: float, begins: bool) -> None:
        """Lets all meters read a cluster on which nothing runs."""
        if self.metered:
            self.hosts.call(AgentCalls.measure_idle, self.hosts.present, seconds=seconds, begins=begins)

    def _received(self, name: str, reply: messages.PhaseMeasured, clock: Clock, request: PhaseRequest) -> list[Record]:
        """The records of a host, with the run's names and clock. Moves their outputs and logs to the result's
        folder. Raises MixmarkError, ValueError or OSError if they cannot be used."""
        folder = self.hosts[name].folder
        missing = {share.key: share for share in request.phase.shares if _is_of(name, share)}
        records = [names.to_run(name, record, clock) for record in store.received(folder, reply.records, reply.sha256)]
        for record in records:
            share = missing.pop(record.key, None)
            asked = share and (request.phase.name, share.route, share.scenario, share.run, share.limits.screening)
            if (record.phase, record.route, record.scenario, record.run, record.screening) != asked:
                raise ValueError(f"{record.key} was not requested")
        if missing and request.phase.placement is None:  # of a mix a share may have had nothing to do
            raise ValueError(f"{min(missing)} is missing")
        for record in records:
            if (outputs := handed_at(folder, record.key)).exists():
                shutil.move(outputs, handed_at(self.folder, record.key))
        (self.folder / "logs").mkdir(exist_ok=True)
        for log in (folder / "logs").iterdir():
            shutil.move(log, self.folder / "logs" / f"{request.phase.name}.{name}.{log.name}")
        return records

    def _lost(self, request: PhaseRequest, share: Share, why: Reason) -> Record:
        """The record of a share that its host did not measure."""
        draft = RecordDraft.of(share, request.phase, self.units[share.route.suite])
        message = plain(f"the host {host_of(share.route.device)} did not measure it: {why}", MAX_REASON)
        draft.error = Failure(kind="crashed", message=message)
        return draft.record({})

    def _read_meters(self, phase: str, clock_of: Mapping[str, Clock]) -> Metering | None:
        """The samples of the meters of these hosts. A host whose samples cannot be used is lost."""
        if not self.metered:
            return None
        known = [name for name in self.hosts.present if name in clock_of]
        meterings = []
        for name, reply in self.hosts.call(AgentCalls.read_meters, known, phase=phase).items():
            if isinstance(reply, messages.MeterSamples) and reply.metering is not None:
                agent = self.hosts[name]
                try:
                    metering = store.received_metering(agent.folder, reply.metering, reply.sha256)
                    if metering.phase != phase:
                        raise ValueError(f"the samples of {metering.phase} were not requested")
                    meterings.append(names.to_run(name, metering, clock_of[name]))
                except (MixmarkError, ValueError) as error:
                    agent.lose(f"the samples of its meters cannot be used: {error}")
        return names.merged(meterings)


@dataclass
class _HostPhase(PhaseReports):
    """A phase as the agent of one host reports it. Its methods raise Garbled if a report is about something else."""

    name: str
    request: PhaseRequest
    notify: Callable[[PhaseEvent], None]
    ends_ns: int = 0
    """When a mixed phase ends, on the host's clock."""
    ready: LoadedSuites | None = None
    tally: Tally | None = None
    reply: messages.PhaseMeasured | Reason | None = None
    """What ended the host's phase."""

    def stage(self, *, key: str, name: str) -> None:
        share = next((share for share in self._shares if share.key == key), None)
        if share is None:
            raise Garbled("a stage of a share that it does not measure")
        self.notify(StageStarted(share, name))

    def mix_ready(self, *, loaded: LoadedSuites) -> None:
        placement = self.request.phase.placement
        pairs = {(rate.suite, rate.device) for rate in loaded.rates}
        planned = set(loaded.rates) <= set(placement.rates if placement else ())
        if not planned or loaded.quanta.keys() != pairs or loaded.concurrency.keys() != {id for _, id in pairs}:
            raise Garbled("it has rates ready that were not planned")
        self.ready = loaded

    def mix_progress(self, *, tally: Tally) -> None:
        pairs = {(share.route.suite, share.route.device) for share in self._shares}
        suites, devices = {suite for suite, _ in pairs}, {device for _, device in pairs}
        own = tally.finished.keys() | tally.handed_out.keys() <= suites and tally.unfinished_s.keys() <= devices
        if not (own and tally.paces.keys() <= pairs):
            raise Garbled("progress of a suite or of a device that it does not measure")
        self.tally = tally

    @property
    def _shares(self) -> list[Share]:
        return [share for share in self.request.phase.shares if _is_of(self.name, share)]


@dataclass
class _PhaseOnHosts:
    """The phases of a round while their hosts measure them. A mixed phase is alone in its round."""

    agents: Agents
    requests: Sequence[PhaseRequest]
    hosts: Mapping[str, _HostPhase]
    notify: Callable[[PhaseEvent], None]
    coordinator: Coordinator | None = None
    problem: Reason | None = None
    """Why a mixed phase cannot begin."""
    begin_s: float | None = None
    """When the first host had begun a mixed phase."""
    granted_s: float = 0.0
    unled_s: float = 0.0
    """The longest time between two grants beyond that of a credit."""
    over: bool = False
    """Whether the end of a mixed phase is known."""

    @property
    def request(self) -> PhaseRequest:
        return self.requests[0]

    @property
    def measuring(self) -> list[_HostPhase]:
        """The hosts that have neither replied nor are lost."""
        return [host for host in self.hosts.values() if host.reply is None]

    def has_measured(self, request: PhaseRequest) -> bool:
        """Whether all hosts of a phase have measured it."""
        own = [host for host in self.hosts.values() if host.request is request]
        return all(isinstance(host.reply, messages.PhaseMeasured) for host in own)

    def run(self) -> None:
        """Returns when each host has its reply, or the reason why there is none."""
        request, placement = self.request, self.request.phase.placement
        if placement is None:
            for each in self.requests:
                self.notify(WindowOpens(each.phase))
        for name, own in self.hosts.items():
            self.agents[name].send(
                AgentCalls.measure_phase,
                phase=names.phase_of(name, own.request.phase),
                service=dict(request.mix.limits) if request.mix and placement else {},
            )
        while self.measuring:
            for agent, received in self.agents.received(clock.now_s() + TICK_S):
                host = self.hosts.get(agent.name)
                if host and host.reply is None:
                    try:
                        self._receive(host, received)
                    except Garbled as problem:
                        agent.lose(f"its agent broke the protocol: {problem}")
            for host in self.measuring:
                if lost := self.agents[host.name].lost:
                    self._end(host, lost)
            if placement is not None:
                self._coordinate()

    def _receive(self, host: _HostPhase, received: Received) -> None:
        """Raises Garbled if it is not about the host's part of the phase."""
        if isinstance(received, Call):
            getattr(host, received.name)(**received.arguments)
            if host.tally and self.coordinator and host.name in self.coordinator.hosts:
                self.coordinator.update(host.name, host.tally)
                if self.begin_s is None:
                    self.begin_s = clock.now_s()
                    self._end_at(self.begin_s + self.request.phase.shares[0].limits.max_ns / 1e9)
        elif isinstance(received, Failed):
            self._end(host, plain(reason(received), MAX_REASON))
        elif received.name == AgentCalls.measure_phase.__name__:
            self._end(host, received.of(AgentCalls.measure_phase))

    def _end(self, host: _HostPhase, reply: messages.PhaseMeasured | Reason) -> None:
        """Ends the phase of a host that has replied or is lost. Before the end of the window the host's part of the mix
        then goes to the other hosts."""
        host.reply = reply
        if self.coordinator and host.name in self.coordinator.hosts and not self.over:
            self.coordinator.remove(host.name)

    def _coordinate(self) -> None:
        """Begins a mixed phase when every remaining host is ready, and then grants work every EVERY_S."""
        now_s = clock.now_s()
        if self.coordinator is None:
            if self.measuring and not self.problem and all(host.ready for host in self.measuring):
                self._begin(now_s)
            return
        elapsed_ns = round(self._elapsed_s(now_s) * 1e9)
        over = mixed.is_over(elapsed_ns, self.coordinator.surplus, self.request.phase.shares[0].limits)
        if over and not self.over:
            self.over = True
            self._end_at(now_s)
            self._grant(now_s)
        elif now_s - self.granted_s >= EVERY_S:
            self._grant(now_s)
        self.notify(self._snapshot(now_s))

    def _begin(self, now_s: float) -> None:
        request, placement = self.request, self.request.phase.placement
        assert request.mix is not None and placement is not None  # it is a mixed phase
        loaded = _joined([host.ready for host in self.measuring if host.ready])
        plan = by_classes(placement, request.devices)
        try:
            chosen = mixed.planned(placement, loaded, request.mix.units, plan)
            chosen = chosen.model_copy(update={"rates": loaded.rates})
            host_of_device = {device: host_of(device) for device in loaded.concurrency}
            self.coordinator = Coordinator(
                request.mix.units, chosen, loaded.quanta, loaded.concurrency, host_of_device, plan
            )
        except (ValueError, MixmarkError) as error:
            self.problem = str(error)
            for host in self.measuring:
                self.agents[host.name].send(AgentCalls.grant, grant=Grant({}, {}), ends_ns=0, problem=self.problem)
            return
        self.notify(WindowOpens(request.phase))
        self._end_at(now_s + request.phase.shares[0].limits.max_ns / 1e9)
        self._grant(now_s)

    def _elapsed_s(self, now_s: float) -> float:
        """The time since the first host began; 0 before."""
        return 0.0 if self.begin_s is None else now_s - self.begin_s

    def _end_at(self, time_s: float) -> None:
        """Sets when the phase ends on all hosts: their next grants say it."""
        for host in self.measuring:
            with suppress(ValueError):  # a host whose clock is not known has no part in the end
                host.ends_ns = clocks.theirs_ns(clocks.fit(self.agents[host.name].round_trips), round(time_s * 1e9))

    def _grant(self, now_s: float) -> None:
        assert self.coordinator is not None
        if self.begin_s is not None:
            self.unled_s = max(self.unled_s, now_s - self.granted_s - AHEAD_S)
        self.granted_s = now_s
        for name, grant in self.coordinator.grants(self._elapsed_s(now_s)).items():
            self.agents[name].send(AgentCalls.grant, grant=grant, ends_ns=self.hosts[name].ends_ns)

    def _snapshot(self, now_s: float) -> MixSnapshot:
        assert self.coordinator is not None and self.request.mix is not None
        return MixSnapshot(
            elapsed_ns=round(self._elapsed_s(now_s) * 1e9),
            mixes=self.coordinator.mixes,
            planned_per_s=self.coordinator.placement.mixes_per_s,
            running={},
            units=self.coordinator.units,
            mix_units=self.request.mix.units,
        )


def _is_of(host: str, share: Share) -> bool:
    return host_of(share.route.device) == host


def _joined(loaded: Sequence[LoadedSuites]) -> LoadedSuites:
    """The suites that all hosts have loaded."""
    return LoadedSuites(
        rates=tuple(rate for host in loaded for rate in host.rates),
        quanta={pair: units for host in loaded for pair, units in host.quanta.items()},
        concurrency={device: count for host in loaded for device, count in host.concurrency.items()},
    )
