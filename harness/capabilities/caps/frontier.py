"""The mix with less power: how throughput and energy follow the limit, and where the most is done for a joule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.capabilities.caps.facts import SLACK, Capped, Caps
from mixmark.harness.contracts.figures import figure
from mixmark.harness.contracts.schema import Domain
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.energy.reading import EnergyReading
from mixmark.harness.judge.mixed_run import ScoredRun, run_of


@dataclass(frozen=True)
class CappedRun:
    """The mix at one cap."""

    cap: float
    """The share of their limits that the power of the devices was limited to."""
    run: ScoredRun
    exceeded: bool | None
    """Whether a device took more power than this cap. None if no meter tells: the cap is its driver's word."""

    @property
    def counts(self) -> bool:
        """Whether it shows what the machine does with this cap."""
        return self.exceeded is False and not self.run.problems


@dataclass(frozen=True)
class Frontier:
    """The runs with less power, beside the score, which has all of it."""

    full: ScoredRun
    """The median run of the score."""
    runs: tuple[CappedRun, ...]
    """The highest cap first."""
    missing: tuple[Reason, ...]
    """The caps that were not run to their end, with the reasons."""

    @property
    @figure
    def best(self) -> float | None:
        """The cap with the most mixes per kWh, of those that count; 1: none is better than all power. None if MX is not
        known."""
        found = {run.cap: run.run.mixes_per_kwh for run in self.runs if run.counts}
        known = {cap: figure.estimate for cap, figure in {1.0: self.full.mixes_per_kwh, **found}.items() if figure}
        return max(known, key=known.__getitem__) if 1.0 in known and len(known) > 1 else None


def frontier(judged: Assessment) -> Frontier | None:
    """None if there is no run of the score."""
    result, score = judged.result, judged.score
    full = score.median_run() if score else None
    if score is None or full is None:
        return None
    asked = Caps.model_validate(result.experiments["caps"])
    runs, missing = [], []
    for phase in (phase for phase in result.phases if phase.experiment == "caps"):
        cap = phase.told(Capped).cap
        failures = [record.error for record in result.records if record.phase == phase.name and record.error]
        run = run_of(result, score.mix, phase, judged.doubts)
        if run is None:
            missing += [f"{phase.name}: {failures[0].message if failures else 'nothing was recorded'}"]
            continue
        runs.append(CappedRun(cap, run, _exceeds(cap, asked, result.domains, run.total.readings)))
    return Frontier(full, tuple(sorted(runs, key=lambda each: -each.cap)), tuple(missing))


def _exceeds(cap: float, asked: Caps, domains: Sequence[Domain], readings: Mapping[str, EnergyReading]) -> bool | None:
    """Whether a device drew more than its cap, by more than its meter may be off. None if no meter tells."""
    found: list[bool | None] = []
    for limit in asked.limits:
        shown = [(domain, readings.get(domain.id)) for domain in domains if f"{domain.id}/".startswith(f"{limit.id}/")]
        fractions = [
            each.watts / (cap * limit.watts * (1 + SLACK + (each.edge_uncertainty or 0) + (domain.accuracy or 0)))
            for domain, each in shown
            if each and each.watts is not None
        ]
        found.append(max(fractions) > 1 if fractions else None)
    return True if True in found else None if None in found else False
