"""The mix of a made-up machine with less power, to the digit."""

from __future__ import annotations

import pytest

from mixmark.harness.capabilities.caps.facts import Caps, PowerLimit
from mixmark.harness.capabilities.caps.frontier import Frontier
from mixmark.harness.contracts.schema import Failure, Result
from mixmark.harness.judge.assessment import judge
from mixmark.reporters import report
from tests.fakes.machine import SECOND, WALL, altered, example, metering, one_run, recorded, turn, with_turns
from tests.judge.found import not_none

LIMIT = PowerLimit(id="rapl/intel-rapl:0", watts=200)
PACKAGE = WALL.model_copy(update={"id": LIMIT.id, "meter": "rapl", "covers": ("cpu:0",), "boundary": "devices"})
FULL_W, PACKAGE_W = 600.0, 150.0


def capped(base: Result, *runs: tuple[float, float, float], packages: tuple[float, ...] = (PACKAGE_W,)) -> Result:
    """runs: (cap, pace, watts at the wall) of each. packages: the power of the processor in the run of the score."""
    turns, meterings = [], []
    for cap, pace, watts in runs:
        name = f"cap{cap * 100:.0f}"
        turns.append(turn("caps", {"cap": cap}, *recorded(example(pace), name)))
        meterings.append(metering(name, WALL, watts, 600 * SECOND))
    of_score = base.phases[0].name
    full_metering = next(each for each in base.meterings if each.phase == of_score)
    samples = dict(full_metering.samples)
    for watts in packages:
        samples |= metering(of_score, PACKAGE, watts, 600 * SECOND).samples
    others = [each for each in base.meterings if each.phase != of_score]
    asked = Caps(caps=tuple(cap for cap, _, _ in runs), limits=(LIMIT,)).model_dump(mode="json")
    read = (*others, full_metering.model_copy(update={"samples": samples}), *meterings)
    domains = (*base.domains, *[PACKAGE] * bool(packages))
    return with_turns(base, {"caps": asked}, *turns, domains=domains, meterings=read)


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


def test_a_cap_binds_if_the_device_took_more(base: Result) -> None:
    runs = (0.8, 1.0, 600.0), (0.6, 0.9, 500.0)  # of 200 W: 160 W and 120 W, where the processor takes 150 W
    assert [run.binds for run in frontier(capped(base, *runs)).runs] == [False, True]
    assert [run.binds for run in frontier(capped(base, *runs, packages=())).runs] == [None, None]


def test_without_a_meter_there_is_the_pace_alone() -> None:
    base = one_run(None)
    metered = capped(one_run(FULL_W), (0.8, 0.9, 400))
    [run] = frontier(
        base.model_copy(update={name: getattr(metered, name) for name in ("phases", "records", "experiments")})
    ).runs
    assert run.run.mixes_per_kwh is None
    assert run.run.mixes_per_hour.estimate > 0
    assert run.binds is None


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
    result = capped(base, (0.8, 1.0, 400), packages=())
    *others, last = result.meterings
    torn = last.model_copy(update={"samples": {}, "lost": {WALL.id: "line 9 is torn"}})
    words = " ".join(report.full(judge(result.model_copy(update={"meterings": (*others, torn)}))).split())
    assert "the best cap is not known: 80 %: wall: lost, line 9 is torn" in words
