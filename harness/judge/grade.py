"""The grade of a score: how many runs it rests on, how well they agree, and what keeps it from a rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.contracts.numbers import counted, percent
from mixmark.harness.contracts.schema import Mix
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS
from mixmark.harness.judge.mixed_run import LARGEST_SURPLUS, ScoredRun

Grade = Literal["official", "ranked", "indicative"]

SHORTEST_NS = 120_000_000_000
RANKED_RUNS = 3
RANKED_HALF_WIDTH = 0.05
OFFICIAL_RUNS = 5
OFFICIAL_HALF_WIDTH = 0.02
OFFICIAL_AUDITS = 30


def grade(
    mix: Mix, runs: Sequence[ScoredRun], figure: Estimate | None, unranked: Sequence[str]
) -> tuple[Grade, tuple[str, ...]]:
    """The grade, and what the next better one lacks.

    figure: MX or, if it is not known, TX over all runs. unranked: what keeps the score from a rank, whatever its runs
    are.
    """
    if lacks := (*unranked, *_lacks(runs, figure, RANKED_RUNS, RANKED_HALF_WIDTH)):
        return "indicative", lacks
    if lacks := (*_lacks(runs, figure, OFFICIAL_RUNS, OFFICIAL_HALF_WIDTH), *_evidence_lacks(mix, runs)):
        return "ranked", lacks
    return "official", ()


def _lacks(runs: Sequence[ScoredRun], figure: Estimate | None, enough: int, half_width: float) -> Iterator[str]:
    if len(runs) < enough:
        yield f"{len(runs)} of {enough} runs"
    shortest_ns = min((run.length_ns for run in runs), default=SHORTEST_NS)
    if shortest_ns < SHORTEST_NS:
        yield f"a window of {shortest_ns / 1e9:.0f} s of {SHORTEST_NS / 1e9:.0f} s"
    surplus = max((run.surplus for run in runs), default=0.0)
    if surplus > LARGEST_SURPLUS:
        yield f"{percent(surplus)} of the work of a window was in no whole mix (limit {LARGEST_SURPLUS * 100:g} %)"
    elif len(runs) >= enough and figure is not None:
        reached = figure.half_width
        if reached is None:
            yield "its runs are too far apart for an interval"
        elif reached > half_width:
            yield f"±{reached * 100:.1f} % of ±{half_width * 100:g} %"


def _evidence_lacks(mix: Mix, runs: Sequence[ScoredRun]) -> Iterator[str]:
    """runs: at least one."""
    for suite in mix.units:
        audits, feeds = min((run.of_suite(suite).audited, run.of_suite(suite).feeds) for run in runs)
        if audits < min(OFFICIAL_AUDITS, feeds):
            yield f"{suite} had {counted(audits, 'feed')} audited of {min(OFFICIAL_AUDITS, feeds)}"
    edges = max(run.total.edge_uncertainty or 0 for run in runs)
    if edges > 2 / ENOUGH_PERIODS:
        yield f"the slowest meter had {2 / edges:.0f} periods of {ENOUGH_PERIODS}"
