"""The hosts of a run in words: what they are, what their networks carried, and how the rate grows with them.

Nothing here says anything of a run on one machine that leads itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.contracts.schema import Result, System
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.scaling import ScalingStep
from mixmark.harness.judge.score import Figure, ScoredRun
from mixmark.reporters import figures
from mixmark.reporters.figures import UNKNOWN, significant

MOST = 12  # hosts that a table lists; the others are in the JSON
SAID = {True: "yes", False: "NO", None: "not known"}


def groups(result: Result) -> Iterator[tuple[str, System]]:
    """(2 hosts: host1, host2, what they are) of all hosts, equal ones together."""
    for each in result.hosts:
        count = len(each.names)
        yield f"{'1 host' if count == 1 else f'{count} hosts'}: {listed(each.names)}", each.system


def listed(names: Sequence[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")


def facts(run: ScoredRun) -> Iterator[tuple[str, str]]:
    """How well the clocks of a run were known, and whether its hosts did all of it."""
    if not run.traffic:
        return
    longer = figures.duration(2 * run.clock_bound_ns)
    yield "clocks", f"known to ±{figures.duration(run.clock_bound_ns)}; the window is counted {longer} longer for it"
    outside, agents = (sum(getattr(each, of) for each in run.traffic) for of in ("outside_bytes", "agent_bytes"))
    told = {each.self_contained for each in run.traffic}
    known = "self-contained" if None not in told else "self-contained as far as known"
    said = "not self-contained" if False in told else known
    carried = f"{figures.prefixed(outside, 'B')} beside the agents' own {figures.prefixed(agents, 'B')}"
    yield "traffic", f"{carried}: {said}"


def traffic(run: ScoredRun) -> Sequence[Sequence[str]]:
    """(host, its agent's stream, other traffic, a second, whether it is self-contained), the loudest hosts first."""
    loudest = sorted(run.traffic, key=lambda each: -each.outside_per_s)[:MOST]
    return [
        (
            each.host,
            figures.prefixed(each.agent_bytes, "B"),
            figures.prefixed(each.outside_bytes, "B") if each.seconds else UNKNOWN,
            figures.prefixed(each.outside_per_s, "B/s") if each.seconds else UNKNOWN,
            SAID[each.self_contained],
        )
        for each in loudest
    ]


TRAFFIC = ("host", "its agent", "other traffic", "a second", "self-contained")
SCALING = ("hosts", "mix/s", "mix/kJ", "λ*", "efficiency")


def scaling(judgement: Judgement) -> Sequence[Sequence[str]]:
    """(hosts, mix/s, mix/kJ, λ*, efficiency) of the mix on the first hosts and on all of them."""
    return [
        (
            str(len(each.hosts)),
            _figure(each.mixes_per_s),
            _figure(each.mixes_per_kj),
            significant(each.bound_per_s),
            figures.share(each.efficiency),
        )
        for each in judgement.scaling
    ]


def lacking(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """Why a step has no rate or no efficiency."""
    for each in judgement.scaling[:-1]:  # the last one is the score, which says it itself
        if why := each.problem or each.unmeasured:
            yield f"on {_hosts(each)}", f"{'no rate' if each.problem else 'no mix/kJ'}: {why}"


def _hosts(step: ScalingStep) -> str:
    return "1 host" if len(step.hosts) == 1 else f"{len(step.hosts)} hosts"


def _figure(figure: Figure | None) -> str:
    return UNKNOWN if figure is None else significant(figure.estimate)
