"""Rules about the mix: Evidence -> findings."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.evidence import Evidence
from harness.schema import Finding


def mix_complete(evidence: Evidence) -> Iterator[Finding]:
    """Every suite of the mix has units that count, no device fell out, and the stored prices prove λ*."""
    found = evidence.score
    for problem in found.problems if found else ():
        message = f"no score: {problem.text}"
        yield Finding(rule="mix_complete", severity="invalid", about="run", message=message)


def mix_graded(evidence: Evidence) -> Iterator[Finding]:
    """What the score lacks for the next better grade, and whether it can be ranked."""
    found = evidence.score
    if found is None or found.problems:
        return
    if found.missing:
        message = f"the score is {found.graded}"
        yield Finding(rule="mix_graded", severity="note", about="run", message=message)
    for why in found.unranked:
        message = f"the score is not ranked: {why}"
        yield Finding(rule="mix_graded", severity="note", about="run", message=message)


def mix_bounded(evidence: Evidence) -> Iterator[Finding]:
    """No more was done than the solo rates allow, and no route was clearly faster in the mix than alone."""
    found = evidence.score
    for run in found.runs if found else ():
        seen = evidence.diagnoses.get(run.phase)
        if seen is None:
            continue
        faster = ", ".join(f"{each.suite} on {each.device} {each.retained:.2f} times" for each in seen.faster)
        if faster:
            message = (
                f"{run.phase}: faster in the mix than alone: {faster}; λ* counts what they did in the mix, "
                "for the machine was slow when they were measured alone: measure them again"
            )
            yield Finding(rule="mix_bounded", severity="warning", about="run", message=message)
        kappa, lowest = seen.kappa, seen.lowest_kappa(run)
        if lowest > 1 and seen.estimate:
            message = f"{run.phase}: κ is {kappa.estimate:.2f}: feeds that overlap did more than one at a time"
            yield Finding(rule="mix_bounded", severity="note", about="run", message=message)
        elif lowest > 1:
            message = (
                f"{run.phase}: κ is {kappa.estimate:.2f}, at least {lowest:.2f}, and cannot be above 1: "
                "the solo rates are too low, measure them again"
            )
            yield Finding(rule="mix_bounded", severity="warning", about="run", message=message)
