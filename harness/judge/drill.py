"""The drill, a mixed phase that loses a device for a while: how far the rate fell, and how soon the rest coped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Finding, Phase, Result
from mixmark.harness.judge.mixed_run import HOUR_NS, HOUR_S, lost, pace, run_of
from mixmark.harness.judge.score import Score
from mixmark.harness.plan.placement import place

COPES = 0.95
"""The share of the pace of the later half of the outage at which the rest is said to cope."""
BLOCKS = 40
"""The number of equal blocks of the outage. The rate of each is compared with the later pace."""


@dataclass(frozen=True)
class DrillOutcome:
    """What a drill showed. Rates are the mean progress of all suites, in mixes per hour."""

    device: str
    """The device that was taken away."""
    before_per_hour: float | None
    """The rate with all devices. None, as for the others: `problems` says why."""
    without_per_hour: float | None
    """The rate while the device was away."""
    after_per_hour: float | None
    """The rate once it was back."""
    best_without_per_hour: float | None
    """The rate that the plan of the other devices predicts. None if they make no plan."""
    coped_after_ns: int | None
    """How long after the loss the others first had COPES of their later pace. None if they never had it."""
    lost_feeds: int
    """The feeds that the device had begun and that counted nothing."""
    problems: tuple[Finding, ...]
    """Why its figures do not count. Empty if they do."""


def outcome(result: Result, score: Score | None, doubts: Sequence[Finding]) -> DrillOutcome | None:
    """None if no drill was run. doubts: the findings of the integrity rules."""
    phase = next((phase for phase in result.phases if phase.drill), None)
    if score is None or phase is None or phase.drill is None:
        return None
    drill, run = phase.drill, run_of(result, score.mix, phase, doubts)
    if run is None:
        return None
    lost_ns, back_ns = run.begin_ns + drill.lost_ns, run.begin_ns + drill.back_ns
    outage = np.linspace(lost_ns, back_ns, BLOCKS + 1).round().astype(np.int64)
    edges = np.concatenate(([run.begin_ns], outage, [run.end_ns]))
    mixes = pace(result, score.mix, phase, edges)
    later = mixes[1 + BLOCKS // 2 : 1 + BLOCKS].mean()
    coping = np.flatnonzero(mixes[1 : 1 + BLOCKS] >= COPES * later)
    rates = mixes[0], mixes[1:-1].sum(), mixes[-1]
    lengths_ns = drill.lost_ns, back_ns - lost_ns, run.end_ns - back_ns
    before, without, after = (
        None if run.problems else float(each) * HOUR_NS / ns for each, ns in zip(rates, lengths_ns, strict=True)
    )
    records = [each for each in result.records if each.phase == phase.name and each.completions is not None]
    return DrillOutcome(
        device=drill.device,
        before_per_hour=before,
        without_per_hour=without,
        after_per_hour=after,
        best_without_per_hour=_best_without(result, score, phase),
        coped_after_ns=int(outage[coping[0]] - lost_ns) if later > 0 and len(coping) else None,
        lost_feeds=sum(int(lost(record, phase).sum()) for record in records),
        problems=run.problems,
    )


def _best_without(result: Result, score: Score, phase: Phase) -> float | None:
    assert phase.drill is not None and phase.placement is not None  # the caller has checked it
    devices = [device for device in result.devices if device.id != phase.drill.device]
    rates = [rate for rate in phase.placement.rates if rate.device != phase.drill.device]
    try:
        return place(score.mix.units, rates, devices).mixes_per_s * HOUR_S
    except MixmarkError:
        return None
