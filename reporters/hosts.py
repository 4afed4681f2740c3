"""The hosts of a run in words: their systems, their network traffic, and how the rate grows with their number.

All functions are empty for a run on this machine alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.contracts.schema import Result, System
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.reporters import figures
from mixmark.reporters.figures import UNKNOWN, significant
from mixmark.reporters.tables import TextTable

MOST = 12  # hosts that a table lists; the others are in the JSON
YES_OR_NO = {True: "yes", False: "NO", None: "not known"}


def groups(result: Result) -> Iterator[tuple[str, System]]:
    """("2 hosts: host1, host2", their system) of each group of equal hosts."""
    for group in result.hosts:
        yield f"{figures.counted(len(group.names), 'host')}: {_listed(group.names)}", group.system


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")


def facts(run: ScoredRun) -> Iterator[tuple[str, str]]:
    """How well the clocks of a run's hosts were known, and whether the run was self-contained."""
    if not run.traffic:
        return
    longer = figures.duration(2 * run.clock_bound_ns)
    yield "clocks", f"known to ±{figures.duration(run.clock_bound_ns)}; the window is counted {longer} longer for it"
    outside = sum(traffic.outside_bytes for traffic in run.traffic)
    agents = sum(traffic.agent_bytes for traffic in run.traffic)
    answers = {traffic.self_contained for traffic in run.traffic}
    known = "self-contained" if None not in answers else "self-contained as far as known"
    conclusion = "not self-contained" if False in answers else known
    carried = f"{figures.prefixed(outside, 'B')} beside the agents' own {figures.prefixed(agents, 'B')}"
    yield "traffic", f"{carried}: {conclusion}"


def tables(run: ScoredRun, judgement: Judgement) -> Iterator[TextTable]:
    """The traffic of the hosts with the most other traffic, and the mix on the first hosts and on all of them."""
    busiest = sorted(run.traffic, key=lambda traffic: -traffic.outside_per_s)[:MOST]
    if busiest:
        rows = [
            (
                traffic.host,
                figures.prefixed(traffic.agent_bytes, "B"),
                figures.prefixed(traffic.outside_bytes, "B") if traffic.seconds else UNKNOWN,
                figures.prefixed(traffic.outside_per_s, "B/s") if traffic.seconds else UNKNOWN,
                YES_OR_NO[traffic.self_contained],
            )
            for traffic in busiest
        ]
        yield TextTable("Hosts", ("host", "its agent", "other traffic", "a second", "self-contained"), rows)
    if judgement.scaling:
        steps = [
            (
                str(len(step.hosts)),
                estimate(step.mixes_per_hour),
                estimate(step.mixes_per_kwh),
                significant(step.bound_per_hour),
                figures.whole_percent(step.efficiency),
            )
            for step in judgement.scaling
        ]
        yield TextTable("Scaling", ("hosts", "mix/h", "mix/kWh", "λ*", "efficiency"), steps)


def missing(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """Why a step of the scaling has no rate or no efficiency. The last step is the score, which has its own reason."""
    for step in judgement.scaling[:-1]:
        if why := step.problem or step.unmeasured:
            yield (
                f"on {figures.counted(len(step.hosts), 'host')}",
                f"{'no rate' if step.problem else 'no mix/kWh'}: {why}",
            )


def estimate(figure: Estimate | None) -> str:
    return UNKNOWN if figure is None else figures.number(figure)
