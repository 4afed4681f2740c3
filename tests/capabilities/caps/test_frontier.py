"""The mix of a made-up machine with less power, to the digit."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from mixmark.harness.capabilities.caps import blocks
from mixmark.harness.capabilities.caps.facts import Caps, PowerLimit
from mixmark.harness.capabilities.caps.frontier import Frontier
from mixmark.harness.contracts.schema import Failure, Metering, Result
from mixmark.harness.judge.assessment import judge
from mixmark.reporters import report
from tests.fakes.machine import SECOND, WALL, example, metering, one_run, recorded, turn, with_turns
from tests.golden.sample import altered
from tests.judge.found import not_none

LIMIT = PowerLimit(id="rapl/intel-rapl:0", watts=200)
PACKAGE = WALL.model_copy(update={"id": LIMIT.id, "meter": "rapl", "covers": ("cpu:0",), "boundary": "devices"})
FULL_W, PACKAGE_W = 600.0, 150.0


def capped(
    base: Result, *runs: tuple[float, float, float], package_w: float | None = PACKAGE_W, of_its_cap: float = 1.0
) -> Result:
    """runs: (cap, pace, watts at the wall) of each. package_w: of the processor without a cap; None: it has no
    meter. of_its_cap: at most this fraction of its cap is drawn."""

    def read(name: str, wall_w: float, most_w: float) -> Metering:
        wall = metering(name, WALL, wall_w, 600 * SECOND)
        package = {} if package_w is None else metering(name, PACKAGE, min(package_w, most_w), 600 * SECOND).samples
        return wall.model_copy(update={"samples": {**wall.samples, **package}})

    turns = [turn("caps", {"cap": cap}, *recorded(example(pace), f"cap{cap * 100:.0f}")) for cap, pace, _ in runs]
    of_score = base.phases[0].name
    meterings = [each for each in base.meterings if each.phase != of_score]
    meterings += [read(of_score, FULL_W, inf)]
    meterings += [read(f"cap{cap * 100:.0f}", watts, cap * LIMIT.watts * of_its_cap) for cap, _, watts in runs]
    asked = Caps(caps=tuple(cap for cap, _, _ in runs), limits=(LIMIT,)).model_dump(mode="json")
    domains = (*base.domains, *[PACKAGE] * (package_w is not None))
    return with_turns(base, {"caps": asked}, *turns, domains=domains, meterings=tuple(meterings))


@pytest.fixture(scope="module")
def base() -> Result:
    return one_run(FULL_W)


def frontier(result: Result) -> Frontier:
    found = judge(result).experiments["caps"]
    assert isinstance(found, Frontier)
    return found


def test_the_best_cap_is_the_one_with_the_most_mixes_per_joule(base: Result) -> None:
    """At 80 % nine tenths of the pace for two thirds of the power; at 60 % half the pace for nearly as much."""
    found = frontier(capped(base, (0.8, 0.9, 400), (0.6, 0.5, 380)))
    whole = not_none(found.full.mixes_per_kwh)
    gains = [run.run.mixes_per_kwh.estimate / whole.estimate for run in found.runs if run.run.mixes_per_kwh]
    assert gains == pytest.approx([0.9 / (400 / FULL_W), 0.5 / (380 / FULL_W)], rel=0.01)
    assert found.best == 0.8
    assert frontier(capped(base, (0.8, 0.5, 400))).best == 1, "no cap is better than all power"


@pytest.mark.parametrize(
    ("facts", "state", "best"),
    [
        ({}, "shown by a meter", 0.6),
        ({"of_its_cap": 1.009}, "shown by a meter", 0.6),  # drivers round
        ({"of_its_cap": 1.05}, "exceeded", None),
        ({"package_w": None}, "not metered", None),
    ],
)
def test_a_cap_counts_if_a_meter_shows_it(base: Result, facts: dict[str, Any], state: str, best: float | None) -> None:
    result = capped(base, (0.6, 0.9, 400), **facts)
    assert frontier(result).best == best
    assert [row[-1] for row in blocks.table(frontier(result)).rows] == ["–", state]


def test_without_a_meter_there_is_the_pace_alone() -> None:
    base = one_run(None)
    metered = capped(one_run(FULL_W), (0.8, 0.9, 400))
    [run] = frontier(
        base.model_copy(update={name: getattr(metered, name) for name in ("phases", "records", "experiments")})
    ).runs
    assert run.run.mixes_per_kwh is None
    assert run.run.mixes_per_hour.estimate > 0
    assert run.exceeded is None


def test_a_cap_that_was_not_set_has_its_reason_and_costs_no_other(base: Result) -> None:
    result = capped(base, (0.8, 0.9, 400), (0.6, 0.5, 380))
    failure = Failure(kind="no result", message="the limit cannot be lowered: the driver hangs")
    lost = altered(result, lambda each: each.phase == "cap60", completions=None, audit=None, error=failure)
    found = frontier(lost)
    assert [run.cap for run in found.runs] == [0.8]
    assert found.missing == ("cap60: the limit cannot be lowered: the driver hangs",)
    assert found.best == 0.8


def test_the_score_is_that_of_all_power(base: Result) -> None:
    alone, beside = judge(base).score, judge(capped(base, (0.8, 0.9, 100))).score
    assert alone is not None and beside is not None
    assert beside.mixes_per_kwh == alone.mixes_per_kwh
    assert not judge(base).experiments


def test_a_cap_whose_meter_was_lost_is_the_reason_why_no_cap_is_best(base: Result) -> None:
    result = capped(base, (0.8, 1.0, 400), package_w=None)
    *others, last = result.meterings
    torn = last.model_copy(update={"samples": {}, "lost": {WALL.id: "line 9 is torn"}})
    words = " ".join(report.full(judge(result.model_copy(update={"meterings": (*others, torn)}))).split())
    assert "the best cap is not known: 80 %: wall: lost, line 9 is torn" in words
