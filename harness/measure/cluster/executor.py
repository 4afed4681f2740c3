"""The hosts of a run, led from this process: to the rest of the code they look like one machine with many devices."""

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
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.measure import mixed
from mixmark.harness.measure.cluster import clocks, messages, names
from mixmark.harness.measure.cluster.agents import TICK_S, Remotes, why
from mixmark.harness.measure.cluster.coordinator import EVERY_S, Coordinator
from mixmark.harness.measure.dispatch import Pair, Tally
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.mixed import Loaded, Snapshot
from mixmark.harness.plugins.calls import MAX_REASON
from mixmark.harness.record import store
from mixmark.harness.worker.messages import Garbled


@dataclass(frozen=True)
class Cluster:
    """The `Executor` of a run with several hosts. A host that is lost costs its own devices and nothing else: its
    records say why, and the others go on.

    units: the name of each suite's unit. folder: of the result. neighbours: for each host, all hosts of the run on its
    machine, itself included.
    """

    remotes: Remotes
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
        told = self.remotes.ask({name: messages.Room() for name in self.remotes.there}, messages.Roomy)
        for name, room in told.items():
            if isinstance(room, messages.Roomy):
                for pool, size in room.pool_bytes.items():
                    found[on(name, pool)] = size // (len(self.neighbours[name]) if pool == HOST_POOL else 1)
        return found

    def measure(self, order: PhaseRequest) -> Metering | None:
        shares = {share.key: share for share in order.phase.shares}
        hosts = tuple(dict.fromkeys(host_of(task.device) for task in order.phase.tasks))
        self.remotes.fresh()
        self.remotes.burst()
        self._rest(order.idle_s, begins=True)
        order.started()
        told = _Led(self.remotes, order, shares, hosts).run()
        self.remotes.burst()
        seen = self._clocks({*hosts, *self.remotes.there})
        records: list[Record] = []
        connections: list[Connection] = []
        for name in hosts:
            attended = told[name]
            if isinstance(attended, messages.Attended) and name in seen:
                try:
                    records += self._received(name, attended, seen[name], order)
                    connections.append(_connection(order.phase.name, name, seen[name], attended))
                    continue
                except (MixmarkError, ValueError, OSError) as error:
                    attended = f"what it sent cannot be used: {error}"
            reason = attended if isinstance(attended, str) else "its clock is not known, or it jumped"
            records += [self._lost(order, share, reason) for share in shares.values() if _is_of(name, share)]
        order.keep(records, connections)
        self._rest(order.idle_s, begins=False)
        return self._drained(order.phase.name, seen)

    def _clocks(self, hosts: Iterable[str]) -> dict[str, Clock]:
        """The clocks of the hosts, as far as they are known."""
        found = {}
        for name in hosts:
            with suppress(ValueError):
                found[name] = clocks.fit(self.remotes[name].pings)
        return found

    def _rest(self, seconds: float, begins: bool) -> None:
        """All meters read a cluster that does nothing."""
        if self.metered:
            request = messages.Rest(seconds=seconds, begins=begins)
            self.remotes.ask(dict.fromkeys(self.remotes.there, request), messages.Rested)

    def _received(self, name: str, attended: messages.Attended, clock: Clock, order: PhaseRequest) -> list[Record]:
        """The records that a host sent, as the run has them. Their audited answers and logs are in the result's folder
        then. Raises MixmarkError, ValueError or OSError where they cannot be used."""
        came = self.remotes[name].folder
        asked = {share.key: share for share in order.phase.shares if _is_of(name, share)}
        records = [
            names.record_on(name, each, clock) for each in store.received(came, attended.records, attended.sha256)
        ]
        for record in records:
            share = asked.pop(record.key, None)
            what = (record.phase, record.route, record.scenario, record.run, record.screening)
            if share is None or what != (
                *(order.phase.name, share.route, share.scenario, share.run, share.limits.screening),
            ):
                raise ValueError(f"{record.key} was not asked for")
        if asked and order.phase.placement is None:  # of a mix a share may have had nothing to do
            raise ValueError(f"{min(asked)} is missing")
        for record in records:
            answers = came / "raw" / f"{record.key}.answers.npz"
            if answers.exists():
                shutil.move(answers, self.folder / "raw" / answers.name)
        (self.folder / "logs").mkdir(exist_ok=True)
        for log in (came / "logs").iterdir():
            shutil.move(log, self.folder / "logs" / f"{name}.{log.name}")
        return records

    def _lost(self, order: PhaseRequest, share: Share, reason: str) -> Record:
        """The record of a share whose host did not measure it."""
        host = host_of(share.route.device)
        message = plain(f"the host {host} did not measure it: {reason}", MAX_REASON)
        return Record(
            key=share.key,
            phase=order.phase.name,
            route=share.route,
            scenario=share.scenario,
            run=share.run,
            unit=self.units[share.route.suite],
            screening=share.limits.screening,
            error=Failure(kind="crashed", message=message),
        )

    def _drained(self, phase: str, seen: Mapping[str, Clock]) -> Metering | None:
        """What the meters of all hosts read. A host whose readings cannot be used is lost."""
        if not self.metered:
            return None
        asked = [name for name in self.remotes.there if name in seen]
        told = self.remotes.ask(dict.fromkeys(asked, messages.Drain(phase=phase)), messages.Drained)
        read = []
        for name, drained in told.items():
            if isinstance(drained, messages.Drained) and drained.metering is not None:
                remote = self.remotes[name]
                try:
                    came = store.received_metering(remote.folder, drained.metering, drained.sha256)
                    if came.phase != phase:
                        raise ValueError(f"the readings of {came.phase} were not asked for")
                    read.append(names.metering_on(name, came, seen[name]))
                except (MixmarkError, ValueError) as error:
                    remote.lose(f"what it read from its meters cannot be used: {error}")
        return names.together(read)


@dataclass
class _Led:
    """A phase while it is measured on one host or on several."""

    remotes: Remotes
    order: PhaseRequest
    shares: Mapping[str, Share]
    hosts: Sequence[str]
    parts: dict[str, Phase] = field(default_factory=dict)
    """What each host does of the phase, as it calls it."""
    ready: dict[str, messages.Ready] = field(default_factory=dict)
    tallied: dict[str, messages.Tallied] = field(default_factory=dict)
    told: dict[str, messages.Attended | str] = field(default_factory=dict)
    """What each host said in the end, or why it said nothing."""
    coordinator: Coordinator | None = None
    problem: str = ""
    """Why a mixed phase cannot begin, in words."""
    begin_s: float = 0.0
    granted_s: float = 0.0

    def run(self) -> Mapping[str, messages.Attended | str]:
        """Returns when each host has said what it measured, or is lost."""
        order, placement = self.order, self.order.phase.placement
        for name in self.hosts:
            service = dict(order.mix.limits) if order.mix and placement else {}
            host_fraction = placement.host_fraction if placement else 0.0
            self.parts[name] = names.phase_of(name, order.phase)
            request = messages.Attend(phase=self.parts[name], service=service, host_fraction=host_fraction)
            self.remotes[name].say(request)
        while self.told.keys() != set(self.hosts):
            for remote, message in self.remotes.messages(time.monotonic() + TICK_S):
                if remote.name in self.hosts and remote.name not in self.told:
                    try:
                        self._heard(remote.name, message)
                    except Garbled as problem:
                        remote.lose(f"it said what no agent says: {problem}")
            for name in self.hosts:
                if (gone := self.remotes[name].gone) and name not in self.told:
                    self._over(name, gone)
            if placement is not None:
                self._lead()
        return self.told

    def _heard(self, name: str, message: object) -> None:
        """Raises Garbled where a host tells of what is none of its business."""
        if isinstance(message, messages.Staged):
            share = self.shares.get(message.key)
            if share is None or not _is_of(name, share):
                raise Garbled("a stage of what it does not measure")
            self.order.stage(share, message.stage)
        elif isinstance(message, messages.Ready):
            _check_ready(self.parts[name], message)
            self.ready[name] = message
        elif isinstance(message, messages.Tallied):
            _check_tallied(self.parts[name], message)
            self.tallied[name] = message
            if self.coordinator and name in self.coordinator.hosts:
                self.coordinator.heard(name, _tally(name, message))
        elif isinstance(message, messages.Attended):
            self._over(name, message)
        elif isinstance(message, messages.Refused):
            self._over(name, why(message))

    def _over(self, name: str, how: messages.Attended | str) -> None:
        """A host has ended the phase, or is lost. Before the window is over, the others then do what it would have
        done."""
        self.told[name] = how
        elapsed_s = time.monotonic() - self.begin_s
        if self.coordinator and name in self.coordinator.hosts:
            lasts_ns = self._lasts_ns(self.coordinator)
            if lasts_ns is None or elapsed_s * 1e9 < lasts_ns:
                self.coordinator.lost(name, elapsed_s)

    def _lead(self) -> None:
        """Begins the phase when every host that is left is ready, and grants what each may do."""
        now_s = time.monotonic()
        if self.coordinator is None:
            waiting = self.ready.keys() - self.told.keys()
            if waiting and not self.problem and waiting | self.told.keys() == set(self.hosts):
                self._begin(now_s)
            return
        if now_s - self.granted_s >= EVERY_S:
            self._grant(messages.Granted, now_s)
        self.order.mixing(self._snapshot(now_s))

    def _begin(self, now_s: float) -> None:
        order, placement = self.order, self.order.phase.placement
        assert order.mix is not None and placement is not None  # it is a phase of a mix
        loaded = _loaded({name: each for name, each in self.ready.items() if name not in self.told})
        plan = order.planner()
        try:
            chosen = mixed.planned(placement, loaded, order.mix.units, plan)
            chosen = chosen.model_copy(update={"rates": loaded.rates})
            host_of_each = {device: host_of(device) for device in loaded.concurrency}
            self.coordinator = Coordinator(
                order.mix.units, chosen, loaded.quanta, loaded.concurrency, host_of_each, plan
            )
        except (ValueError, MixmarkError) as error:
            self.problem = str(error)
            for name in self.ready.keys() - self.told.keys():
                self.remotes[name].say(messages.Begin(units={}, credit={}, lasts_ns=0, problem=self.problem))
            return
        self.begin_s = now_s
        self._grant(messages.Begin, now_s)

    def _grant(self, kind: type[messages.Begin], now_s: float) -> None:
        assert self.coordinator is not None
        self.granted_s = now_s
        lasts_ns = self._lasts_ns(self.coordinator)
        for name, grant in self.coordinator.grants(now_s - self.begin_s).items():
            self.remotes[name].say(kind(units=dict(grant.units), credit=dict(grant.credit), lasts_ns=lasts_ns))

    def _lasts_ns(self, coordinator: Coordinator) -> int | None:
        limits = self.order.phase.shares[0].limits
        return mixed.lasts_ns(limits, self._feeds(), coordinator.abandoned)

    def _feeds(self) -> Mapping[str, int]:
        """The finished feeds of each suite on all hosts, also on those that are lost."""
        assert self.order.mix is not None
        feeds = Counter(dict.fromkeys(self.order.mix.units, 0))
        for each in self.tallied.values():
            feeds.update(each.feeds)
        return feeds

    def _snapshot(self, now_s: float) -> Snapshot:
        assert self.coordinator is not None and self.order.mix is not None
        return Snapshot(
            elapsed_ns=round((now_s - self.begin_s) * 1e9),
            longest_ns=self.order.phase.shares[0].limits.max_ns,
            mixes=self.coordinator.mixes,
            planned_per_s=self.coordinator.placement.mixes_per_s,
            running={
                on(name, device): suite
                for name, each in self.tallied.items()
                if name not in self.told
                for device, suite in each.running.items()
            },
            tally=Tally(self.coordinator.units, {}, {}),
            feeds=self._feeds(),
            mix_units=self.order.mix.units,
        )


def _is_of(host: str, share: Share) -> bool:
    return host_of(share.route.device) == host


def _check_ready(part: Phase, ready: messages.Ready) -> None:
    """part: the host's part of the phase. Raises Garbled where something else is ready than it holds."""
    rates = part.placement.rates if part.placement else ()
    if not set(ready.rates) <= set(rates) or len(ready.quanta) != len(ready.rates):
        raise Garbled("it has ready what was not planned")
    if ready.concurrency.keys() != {rate.device for rate in ready.rates}:
        raise Garbled("it has other devices ready than rates")


def _check_tallied(part: Phase, told: messages.Tallied) -> None:
    """part: the host's part of the phase. Raises Garbled where sums are told of something else than it holds."""
    pairs = {(share.route.suite, share.route.device) for share in part.shares}
    suites, devices = {suite for suite, _ in pairs}, {device for _, device in pairs}
    if not (told.finished.keys() | told.handed_out.keys() | told.feeds.keys()) <= suites:
        raise Garbled("sums of a suite that it does not measure")
    if not {pace[:2] for pace in told.paces} <= pairs:
        raise Garbled("a pace of what it does not measure")
    if not told.running.keys() <= devices or not set(told.running.values()) <= suites | {""}:
        raise Garbled("it runs what it does not measure")


def _tally(host: str, told: messages.Tallied) -> Tally:
    paces = {(suite, on(host, device)): pace for suite, device, pace in told.paces}
    return Tally(told.finished, told.handed_out, paces)


def _loaded(ready: Mapping[str, messages.Ready]) -> Loaded:
    """What all hosts have ready, as the run calls it."""
    rates: list[Rate] = []
    concurrency: dict[str, int] = {}
    quanta: dict[Pair, int] = {}
    for name, each in ready.items():
        for rate, units in zip(each.rates, each.quanta, strict=True):
            rates.append(rate.model_copy(update={"device": on(name, rate.device)}))
            quanta[rate.suite, on(name, rate.device)] = units
        concurrency |= {on(name, device): count for device, count in each.concurrency.items()}
    return Loaded(tuple(rates), quanta, concurrency)


def _connection(phase: str, host: str, clock: Clock, attended: messages.Attended) -> Connection:
    return Connection(
        phase=phase,
        host=host,
        clock=clock,
        sent_bytes=attended.sent_bytes,
        received_bytes=attended.received_bytes,
    )
