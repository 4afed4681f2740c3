"""Rules about the mix: Evidence -> findings."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.score import took_no_part

LARGEST_SHARE = 0.001
"""The largest part of a window that may be uncertain because the clocks of its hosts are: more is a finding."""


def hosts_took_part(evidence: Evidence) -> Iterator[Finding]:
    """Every host that was asked for took part. Where there is a score, it says so itself."""
    for message in took_no_part(evidence.result) if evidence.score is None else ():
        yield Finding(rule="hosts_took_part", severity="invalid", about="run", message=message)


def clocks_synchronised(evidence: Evidence) -> Iterator[Finding]:
    """The clock of every host is known to a thousandth of the window of each mixed run. The window is counted longer by
    what is not known, so the rate is never too high for it."""
    phases = {run.phase: run for run in (evidence.score.runs if evidence.score else ())}
    for each in evidence.result.connections:
        run = phases.get(each.phase)
        if run is None or each.clock.bound_ns <= LARGEST_SHARE * (run.length_ns - 2 * run.clock_bound_ns):
            continue
        share = each.clock.bound_ns / (run.length_ns - 2 * run.clock_bound_ns)
        message = (
            f"{run.phase}: the clock of {each.host} is known to ±{each.clock.bound_ns / 1e6:,.1f} ms, "
            f"{share * 100:.2g} % of the window (limit {LARGEST_SHARE * 100:g} %), which is counted "
            f"{2 * run.clock_bound_ns / 1e6:,.1f} ms longer for it"
        )
        yield Finding(rule="clocks_synchronised", severity="warning", about="run", message=message)


def mix_complete(evidence: Evidence) -> Iterator[Finding]:
    """Every suite of the mix has units that count, no device and no host fell out, and the stored prices prove λ*."""
    found = evidence.score
    for problem in found.problems if found else ():
        message = f"no score: {problem.text}"
        yield Finding(rule="mix_complete", severity="invalid", about="run", message=message)


def score_graded(evidence: Evidence) -> Iterator[Finding]:
    """What the score lacks for the next better grade, and whether it can be ranked."""
    found = evidence.score
    if found is None or found.problems:
        return
    if found.missing:
        message = f"the score is {found.graded}"
        yield Finding(rule="score_graded", severity="note", about="run", message=message)
    for why in found.unranked:
        message = f"the score is not ranked: {why}"
        yield Finding(rule="score_graded", severity="note", about="run", message=message)


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
        if lowest > 1 and seen.bound_is_estimate:
            message = f"{run.phase}: κ is {kappa.estimate:.2f}: feeds that overlap did more than one at a time"
            yield Finding(rule="mix_bounded", severity="note", about="run", message=message)
        elif lowest > 1:
            message = (
                f"{run.phase}: κ is {kappa.estimate:.2f}, at least {lowest:.2f}, and cannot be above 1: "
                "the solo rates are too low, measure them again"
            )
            yield Finding(rule="mix_bounded", severity="warning", about="run", message=message)
