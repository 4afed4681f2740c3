"""What the plan gains over other policies, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.capabilities.policies.figures import PolicyRuns
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import in_full
from mixmark.reporters import figures
from mixmark.reporters.experiments import Section
from mixmark.reporters.figures import UNKNOWN, significant

SLOW = 1.05
"""How many times slower the machine must be in a run by a policy for the report to say so."""


class PoliciesSection(Section):
    def lines(self, judged: Assessment, found: Sequence[PolicyRuns]) -> Iterator[tuple[str, str]]:
        for each in found:
            yield f"plan over {figures.name(each.policy)}", _gain(each)


def _gain(policy: PolicyRuns) -> str:
    if policy.problems or policy.gain is None:
        return f"not known: {'; '.join(map(in_full, policy.problems)) or 'no pair of runs'}"
    within = f" {figures.within(policy.gain)}" if policy.gain.half_width else "; one pair of runs has no interval"
    by = UNKNOWN if policy.mixes_per_hour is None else significant(policy.mixes_per_hour.estimate)
    low, high = policy.gain.ends
    shown = "; no difference is shown" * bool(policy.gain.half_width and low <= 1 <= high)
    slower = f"; the machine was up to {significant(policy.slowdown)} × slower in its runs" * (policy.slowdown > SLOW)
    return f"{significant(policy.gain.estimate)} × its {by} mixes per hour{within}{shown}{slower}"
