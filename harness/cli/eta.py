"""The ETA of a run: the expected seconds of each phase and each audit, whether it is planned already or not.

The expectation follows from the limits of the phase and a fixed allowance for loading. `cli.progress` scales it by the
speed of the run so far. The time left is an estimate and may grow. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mixmark.harness.contracts.schema import Phase, Record, Result, Share
from mixmark.harness.measure import audit
from mixmark.harness.measure.stages import Outlook
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import experiments

if TYPE_CHECKING:
    from mixmark.harness.measure.stages import Procedure

LOAD_S = {"smoke": 3.0, "edge": 12.0, "server": 60.0}  # starting a worker and loading a network on a slow machine
AUDIT_S = {"smoke": 1.0, "edge": 4.0, "server": 30.0}  # one feed by the reference


class Eta:
    """Adds up the expected seconds of a run, and of its finished phases and audits. `total_s` changes when phases are
    planned."""

    def __init__(self, header: Result, procedure: Procedure, idle_s: float) -> None:
        """header: of a new run, or of one that is resumed. idle_s: how long the meters read the idle machine before a
        phase, and again after it."""
        self._header, self._procedure, self._idle_s = header, procedure, idle_s
        self._phases: list[Phase] = []
        self._seconds: dict[tuple[str, str], float] = {}  # by ("phase", its name) or ("audit", the key of its record)
        self._done: set[tuple[str, str]] = set()
        self.plan(header.phases)
        for record in header.records:
            self.record(record)

    @property
    def total_s(self) -> float:
        unplanned_s = sum(self._phase_s(shares) + sum(map(_audit_s, shares)) for shares in self._unplanned())
        return sum(self._seconds.values()) + unplanned_s

    @property
    def done_s(self) -> float:
        return sum(self._seconds[step] for step in self._done)

    def seconds(self, kind: str, name: str) -> float:
        """The expected seconds of a phase ("phase", its name) or an audit ("audit", the key of its record)."""
        return self._seconds.get((kind, name), 0.0)

    def plan(self, phases: Sequence[Phase]) -> None:
        self._phases += phases
        for phase in phases:
            self._seconds["phase", phase.name] = self._phase_s(phase.shares, phase.purpose)
            self._seconds |= {("audit", share.key): _audit_s(share) for share in phase.shares}

    def record(self, record: Record) -> None:
        """Counts the record's phase as done, and its audit unless it is pending."""
        done = {("phase", record.phase)} | (set() if audit.pending(record) else {("audit", record.key)})
        self._done |= done & self._seconds.keys()

    def _phase_s(self, shares: Sequence[Share], purpose: str = "") -> float:
        idle_s = 0.0 if purpose in ("probe", "screening") else 2 * self._idle_s
        return idle_s + sum(map(_load_s, shares)) + max(map(_window_s, shares))

    def _unplanned(self) -> Iterator[Sequence[Share]]:
        """The shares of each phase that the run will plan: the routes that screening chooses with their probes, the
        confirmation runs, the mix, also by other policies, at levels of load and on a part of the hosts,
        and the pipeline. The first route of each suite on each device stands for the route that will be chosen."""
        planned = [phase.purpose for phase in self._phases]
        phases = [phase for phase in (*self._header.candidates, *self._phases) if phase.purpose == "solo"]
        shares = [phase.shares[0] for phase in reversed(phases)]
        if "solo" not in planned:
            chosen = {(share.route.suite, share.route.device, share.scenario): share for share in shares}
            yield from ([share] for share in chosen.values())
            targets = {_target(share) for share in chosen.values()}
            probes = (phase.shares for phase in self._header.candidates if phase.purpose == "probe")
            yield from (shares for shares in probes if _target(shares[0]) in targets)
        if not shares:
            return
        routes = {(share.route.suite, share.route.device): share for share in shares}
        of_mix = {"limits": self._procedure.mix_limits, "batch": 1, "scenario": "mixed"}
        mixed = [share.model_copy(update=of_mix) for share in routes.values()]
        if pipeline := self._header.pipeline:
            devices = {device.whole.id for device in self._header.devices}
            others = experiments.fact(self._header, "policies", "policies", ())
            turns = 1 + len(others) + (pipeline.whole is not None) + (len(devices) > 1)
            yield from [mixed] * (turns * self._procedure.mixes - planned.count("pipeline"))
        if self._header.mix is None:
            return
        if self._procedure.confirm and not {"confirmation", "mixed"} & set(planned):
            yield from ([share] for share in routes.values())
        mixes = self._procedure.mixes - planned.count("mixed")
        yield from [mixed] * max(0, mixes)
        outlook = Outlook(self._header, self._procedure, self._phases, mixed)
        for experiment in experiments.of(self._header):
            yield from experiment.to_come(outlook)


def _target(share: Share) -> tuple[str, str, str]:
    return share.route.device, share.route.adapter, share.route.precision


def _load_s(share: Share) -> float:
    """The seconds to start a worker, load, search a batch size or a rate, and warm up."""
    searches = share.batch is None or share.scenario == "server"
    load_s = LOAD_S["smoke" if share.scenario == "probe" else share.route.tier]  # a probe loads no network
    return load_s + (share.limits.warmup_ns + searches * share.limits.search_ns) / SECOND


def _window_s(share: Share) -> float:
    """The geometric mean of the shortest and the longest window, since most end once the rate is known. A device that
    multiplies in fp32 at best is slow: its mix has too few feeds for that, and takes the longest window."""
    shortest_ns = share.limits.min_ns
    if share.scenario == "mixed" and share.route.precision == "fp32":
        shortest_ns = share.limits.max_ns
    return math.sqrt(shortest_ns * share.limits.max_ns) / SECOND


def _audit_s(share: Share) -> float:
    """The seconds to load the reference, which several records may share, and to compare."""
    tier = "smoke" if share.scenario == "probe" else share.route.tier
    return LOAD_S[tier] / 2 + share.limits.audits * AUDIT_S[tier] if share.limits.audits else 0.0
