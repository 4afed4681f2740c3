"""What the plan gains over other policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mixmark.harness.capabilities.policies.facts import ByPolicy, Policies
from mixmark.harness.capabilities.policies.slowdown import slowdown
from mixmark.harness.capabilities.serving.gain import gain as gain_of
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import found
from mixmark.harness.judge.mixed_run import run_of
from mixmark.harness.judge.statistics.intervals import over_runs


@dataclass(frozen=True)
class PolicyRuns:
    """The mix run by another policy than the plan."""

    policy: str
    """The policy that assigned the work to devices."""
    mixes_per_hour: Estimate | None
    """If None, `problems` says why."""
    gain: Estimate | None
    """TX by the plan over TX by the policy, over the pairs of runs. The interval also holds the gain at one speed of
    the machine."""
    slowdown: float
    """How many times slower the machine was in a run by the policy than in the plan's run, at most. Below 1: it was
    faster."""
    problems: tuple[Finding, ...]
    """Why the figures are not known. Empty if they are."""


def policy_runs(judged: Assessment) -> tuple[PolicyRuns, ...] | None:
    """The runs of each policy, beside the plan's runs in the same minutes. None if there are none."""
    result, score = judged.result, judged.score
    if score is None:
        return None
    compared = []
    ran = [(phase, phase.told(ByPolicy).policy) for phase in result.phases if phase.experiment == "policies"]
    for policy in Policies.model_validate(result.experiments["policies"]).policies:
        phases = [phase for phase, own in ran if own == policy]
        runs = [run for phase in phases if (run := run_of(result, score.mix, phase, judged.doubts)) is not None]
        problems = [*score.problems, *(problem for run in runs for problem in run.problems)]
        ended = {run.phase for run in runs}
        names = [phase.name for phase in phases] or [policy]
        problems += [found("mix_complete.unfinished", phase=name) for name in names if name not in ended]
        figure = gain = None
        pairs = list(zip(score.runs, runs, strict=False))
        slower = [slowdown(result, planned.phase, run.phase) for planned, run in pairs]
        if not problems:
            figure = _over([run.mixes_per_hour.estimate for run in runs])
            ratios = [planned.mixes_per_hour.estimate / run.mixes_per_hour.estimate for planned, run in pairs]
            gain = gain_of(ratios, slower) if ratios and min(ratios) > 0 else None
        compared.append(PolicyRuns(policy, figure, gain, max(slower, default=1.0), tuple(problems)))
    return tuple(compared) or None


def _over(values: Sequence[float]) -> Estimate | None:
    return over_runs(values) if values and min(values) > 0 else None
