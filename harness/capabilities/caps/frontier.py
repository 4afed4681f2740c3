"""The mix with less power: how throughput and energy follow the limit, and where the most is done for a joule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mixmark.harness.capabilities.caps.facts import Capped, Caps, PowerLimit
from mixmark.harness.contracts.figures import figure
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
    binds: bool | None
    """Whether a device took more power than this cap in the median run of the score. None if no meter tells."""


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
        """The cap with the most mixes per kWh; 1: none is better than all power. None if MX is not known."""
        found = {run.cap: run.run.mixes_per_kwh for run in self.runs if not run.run.problems}
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
        runs.append(CappedRun(cap, run, _binds(cap, asked.limits, full.total.readings)))
    return Frontier(full, tuple(sorted(runs, key=lambda each: -each.cap)), tuple(missing))


def _binds(cap: float, limits: Sequence[PowerLimit], readings: Mapping[str, EnergyReading]) -> bool | None:
    """readings: without a cap."""
    known = [(limit.watts, list(_watts(limit.id, readings))) for limit in limits]
    if any(watts and max(watts) > cap * most for most, watts in known):
        return True
    return False if all(watts for _, watts in known) else None


def _watts(limit: str, readings: Mapping[str, EnergyReading]) -> Iterator[float]:
    """The power by each domain of a limit's device."""
    for id, reading in readings.items():
        own = id == limit or (id.startswith(f"{limit}/") and not id.endswith("/module"))
        if own and reading.valid and reading.watts is not None:
            yield reading.watts
