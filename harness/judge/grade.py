"""The grade of a score: how many feeds, audits and runs it rests on, and how narrow its interval is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from mixmark.harness.contracts.schema import Mix
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS
from mixmark.harness.judge.mixed_run import NS_PER_S, Figure, ScoredRun
from mixmark.harness.judge.statistics.intervals import FEWEST_BLOCKS
from mixmark.harness.plan.presets import PROVISIONAL_FEEDS

Grade = Literal["official", "provisional", "indicative"]

OFFICIAL_RUNS = 5
OFFICIAL_NS = 120 * NS_PER_S
OFFICIAL_FEEDS = 100
OFFICIAL_AUDITS = 30
OFFICIAL_HALF_WIDTH = 0.02


def grade(
    mix: Mix, runs: Sequence[ScoredRun], figure: Figure | None, seed_given: bool
) -> tuple[Grade, tuple[str, ...]]:
    """The grade, and what the next better one lacks.

    figure: MX or, if it is not known, TX over all runs. seed_given: whether a person chose the seed.
    """
    lacks = tuple(_lacks_for_provisional(mix, runs, seed_given))
    if not lacks and (figure is None or figure.half_width is None):
        lacks = ("nothing tells how sure it is",)
    if lacks:
        return "indicative", lacks
    lacks = tuple(_lacks_for_official(mix, runs, figure))
    return ("provisional", lacks) if lacks else ("official", ())


def _lacks_for_provisional(mix: Mix, runs: Sequence[ScoredRun], seed_given: bool) -> Iterator[str]:
    for suite in mix.units if runs else ():
        feeds = min(run.of_suite(suite).feeds for run in runs)
        if feeds < PROVISIONAL_FEEDS:
            yield f"{suite} finished {feeds} feeds of {PROVISIONAL_FEEDS}"
    if any(run.steady is None for run in runs):
        yield (
            f"too few feeds fit into the window to tell whether it was steady: {FEWEST_BLOCKS} of each suite are needed"
        )
    if any(run.steady is False for run in runs):
        yield "the window was not steady"
    if seed_given:
        yield "its seed was given"


def _lacks_for_official(mix: Mix, runs: Sequence[ScoredRun], figure: Figure | None) -> Iterator[str]:
    """runs: at least one."""
    if len(runs) < OFFICIAL_RUNS:
        yield f"{len(runs)} of {OFFICIAL_RUNS} runs"
    shortest_ns = min(run.length_ns for run in runs)
    if shortest_ns < OFFICIAL_NS:
        yield f"a window of {shortest_ns / NS_PER_S:.0f} s of {OFFICIAL_NS // NS_PER_S} s"
    for suite in mix.units:
        feeds = min(run.of_suite(suite).feeds for run in runs)
        if feeds < OFFICIAL_FEEDS:
            yield f"{suite} finished {feeds} feeds of {OFFICIAL_FEEDS}"
    for suite in mix.units:
        audits = min(run.of_suite(suite).audited for run in runs)
        if audits < OFFICIAL_AUDITS:
            yield f"{suite} had {audits} feeds audited of {OFFICIAL_AUDITS}"
    edges = max(run.total.edge_uncertainty or 0 for run in runs)
    if edges > 2 / ENOUGH_PERIODS:
        yield f"the slowest meter had {2 / edges:.0f} periods of {ENOUGH_PERIODS}"
    half_width = figure.half_width if figure else None
    if half_width is not None and half_width > OFFICIAL_HALF_WIDTH:
        yield f"±{half_width * 100:.1f} % of ±{OFFICIAL_HALF_WIDTH * 100:g} %"
    if not mix.frozen:
        yield f"{mix.name} is a mix of one's own"
