"""The ETA of a run: the expected seconds of each phase and each audit, whether it is planned already or not.

The expectation follows from the limits of the phase and a fixed allowance for loading, which devices do side by side
unless they share a memory. `cli.progress` scales it by the speed of the run so far. The time left is an estimate and
may grow. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from mixmark.harness.contracts.schema import Limits, Phase, Record, Result, Share
from mixmark.harness.measure import audit, experiments
from mixmark.harness.measure.run_state import Outlook
from mixmark.harness.measure.stages import stage_of, to_come
from mixmark.harness.plan import presets
from mixmark.harness.plan.presets import SECOND

LOAD_S = {"smoke": 3.0, "edge": 12.0, "server": 60.0}  # starting a worker and loading a network on a slow machine
AUDIT_S = {"smoke": 1.0, "edge": 4.0, "server": 30.0}  # one feed by the reference


class Eta:
    """Adds up the expected seconds of a run, and of its finished phases and audits. `total_s` changes when phases are
    planned."""

    def __init__(self, header: Result, metered: bool) -> None:
        """header: of a new run, or of one that is resumed. metered: whether meters read the idle machine around each
        phase."""
        self.run, self._metered = Outlook(header, presets.of(header.preset, header.tier)), metered
        self._shares: dict[tuple[str, str], Sequence[Share]] = {}
        self._seconds: dict[tuple[str, str], float] = {}  # by ("phase", its name) or ("audit", the key of its record)
        self._done: set[tuple[str, str]] = set()
        self._loaded: set[tuple[str, Limits]] = set()  # the references of planned solo measurements
        self._machines = sum(group.count for group in header.groups)
        self._pools = {device.id: device.memory_pool for device in header.devices}
        if not header.records:
            self._seconds |= {("before", each.name): each.before_s(header, metered) for each in experiments.of(header)}
        self._expect(header.phases)
        for record in header.records:
            self.record(record)

    @property
    def total_s(self) -> float:
        idle_s, unplanned = self.run.preset.idle_s, [*to_come(self.run)]
        phases_s = sum(self._phase_s(shares, idle_s) / self._abreast(shares) for shares in unplanned)
        audits_s = sum(seconds for _, seconds in _audits_s(unplanned, {*self._loaded}))
        return sum(map(self._of_run_s, self._seconds)) + phases_s + audits_s

    @property
    def done_s(self) -> float:
        return sum(map(self._of_run_s, self._done))

    def _of_run_s(self, step: tuple[str, str]) -> float:
        """The part of the run's seconds that a step takes: machines measure phases of one device side by side."""
        return self._seconds[step] / self._abreast(self._shares.get(step, ()))

    def _abreast(self, shares: Sequence[Share]) -> int:
        return self._machines if len(shares) == 1 and shares[0].scenario != "mixed" else 1

    def seconds(self, kind: str, name: str) -> float:
        """The expected seconds of a phase ("phase", its name) or an audit ("audit", the key of its record)."""
        return self._seconds.get((kind, name), 0.0)

    @property
    def before_s(self) -> float:
        """The expected seconds of what experiments measure before the first phase."""
        return sum(seconds for (kind, _), seconds in self._seconds.items() if kind == "before")

    def first_phase(self) -> None:
        """Counts as done what experiments measure before the first phase."""
        self._done |= {step for step in self._seconds if step[0] == "before"}

    def plan(self, phases: Sequence[Phase]) -> None:
        result = self.run.result
        self.run = Outlook(result.model_copy(update={"phases": (*result.phases, *phases)}), self.run.preset)
        self._expect(phases)

    def _expect(self, phases: Sequence[Phase]) -> None:
        for phase in phases:
            idle_s = stage_of(phase).idle_s(phase, self.run)
            self._seconds["phase", phase.name] = self._phase_s(phase.shares, idle_s)
            self._shares["phase", phase.name] = phase.shares
        audits = _audits_s([phase.shares for phase in phases], self._loaded)
        self._seconds |= {("audit", key): seconds for key, seconds in audits}

    def record(self, record: Record) -> None:
        """Counts the record's phase as done, and its audit unless it is pending."""
        done = {("phase", record.phase)} | (set() if audit.pending(record) else {("audit", record.key)})
        self._done |= done & self._seconds.keys()

    def _phase_s(self, shares: Sequence[Share], idle_s: float) -> float:
        loads_s = defaultdict[tuple[str, str], float](float)
        for share in shares:
            device, load_s = share.route.device, LOAD_S[_size(share)]
            loads_s["device", device] += load_s + _prepare_s(share)
            loads_s["memory", self._pools.get(device, device)] += load_s
        return 2 * idle_s * self._metered + max(loads_s.values()) + max(map(_window_s, shares))


def _size(share: Share) -> str:
    """The tier whose times a share takes: a probe loads no network."""
    return "smoke" if share.scenario == "probe" else share.route.tier


def _prepare_s(share: Share) -> float:
    """The seconds to search a batch size or a rate, and to warm up."""
    searches = share.batch is None or share.scenario == "server"
    return (share.limits.warmup_ns + searches * share.limits.search_ns) / SECOND


def _window_s(share: Share) -> float:
    """The geometric mean of the shortest and the longest window, since most end once the rate is known. A device that
    multiplies in fp32 at best is slow: its mix has too few feeds for that, and takes the longest window."""
    shortest_ns = share.limits.min_ns
    if share.scenario == "mixed" and share.route.precision == "fp32":
        shortest_ns = share.limits.max_ns
    return math.sqrt(shortest_ns * share.limits.max_ns) / SECOND


def _audits_s(phases: Iterable[Sequence[Share]], loaded: set[tuple[str, Limits]]) -> Iterator[tuple[str, float]]:
    """The seconds of the audit of each share of these phases, by its key: to compare, and to load the reference with
    the first share of a suite. loaded: gets the references of solo measurements, which are audited together if their
    limits are the same; a mix is audited for itself."""
    for shares in phases:
        known = set() if shares[0].scenario == "mixed" else loaded
        for share in shares:
            reference, audits = (share.route.suite, share.limits), share.limits.audits
            load_s = LOAD_S[_size(share)] / 2 * (reference not in known)
            known.add(reference)
            yield share.key, load_s + audits * AUDIT_S[_size(share)] if audits else 0.0
