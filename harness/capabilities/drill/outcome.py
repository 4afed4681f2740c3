"""The drill, a mixed phase that loses a device for a while: how far the rate fell, and how soon the rest coped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.drill.phase import Drill
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Finding, Phase, Record, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import in_full
from mixmark.harness.judge.mixed_run import HOUR_NS, HOUR_S, pace, run_of
from mixmark.harness.judge.score import Score
from mixmark.harness.plan.placement import place
from mixmark.reporters import figures
from mixmark.reporters.figures import percent

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


def outcome(judged: Assessment) -> DrillOutcome | None:
    """None if no drill was run."""
    result, score = judged.result, judged.score
    phase = next((phase for phase in result.phases if phase.experiment == "drill"), None)
    if score is None or phase is None:
        return None
    drill, run = phase.told(Drill), run_of(result, score.mix, phase, judged.doubts)
    if run is None:
        return None
    lost_ns, back_ns = run.begin_ns + drill.lost_ns, run.begin_ns + drill.back_ns
    outage = np.linspace(lost_ns, back_ns, BLOCKS + 1).round().astype(np.int64)
    edges = np.concatenate(([run.begin_ns], outage, [run.end_ns]))
    mixes = pace(result, score.mix, phase, edges, lambda record: ~lost(record, drill))
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
        best_without_per_hour=_best_without(result, score, phase, drill.device),
        coped_after_ns=int(outage[coping[0]] - lost_ns) if later > 0 and len(coping) else None,
        lost_feeds=sum(int(lost(record, drill).sum()) for record in records),
        problems=run.problems,
    )


def lost(record: Record, drill: Drill) -> npt.NDArray[np.bool_]:
    """[feeds], whether each feed of a record with timestamps was with its device when that was taken away. Until it is
    back, the device gets no other feed."""
    done = record.completions
    assert done is not None and record.parent_window_ns is not None  # the caller has checked it
    if drill.device != record.route.device:
        return np.zeros(len(done), bool)
    lost_ns, back_ns = (record.parent_window_ns[0] + each for each in (drill.lost_ns, drill.back_ns))
    return np.asarray((done.issued_ns < back_ns) & (done.yielded_ns[done.ends - 1] > lost_ns))


def _best_without(result: Result, score: Score, phase: Phase, lost: str) -> float | None:
    assert phase.placement is not None  # it is a phase of the mix
    devices = [device for device in result.devices if device.id != lost]
    rates = [rate for rate in phase.placement.rates if rate.device != lost]
    try:
        return place(score.mix.units, rates, devices).mixes_per_s * HOUR_S
    except MixmarkError:
        return None


def in_words(found: DrillOutcome) -> str:
    if found.problems or not found.before_per_hour or found.without_per_hour is None or found.after_per_hour is None:
        return f"not known: {'; '.join(map(in_full, found.problems)) or 'nothing was completed before the loss'}"
    best = found.best_without_per_hour
    of_best = f" ({percent(found.without_per_hour / best)} of the plan of the rest)" if best else ""
    coped = "never steady" if found.coped_after_ns is None else f"steady after {figures.duration(found.coped_after_ns)}"
    return (
        f"without {figures.name(found.device)} {percent(found.without_per_hour / found.before_per_hour)} of the mixes "
        f"per hour before{of_best}, {coped}; {figures.counted(found.lost_feeds, 'feed')} lost; with it again "
        f"{percent(found.after_per_hour / found.before_per_hour)}"
    )
