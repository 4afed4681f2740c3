"""The pictures of the page: the mix over time, and the routes of each suite."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from mixmark.harness.capabilities.wide_pictures import routes, strips, timeline
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.harness.plan.placement import place
from mixmark.reporters import report
from tests.fakes.machine import (
    EDGE,
    GPU_AND_CPU,
    MIX,
    QUANTA,
    SECOND,
    WATTS_AT_THE_WALL,
    Machine,
    completions,
    device,
    one_run,
    recorded,
    result,
)
from tests.golden.sample import sample
from tests.judge.found import facts, not_none


@pytest.fixture(scope="module")
def measured() -> Assessment:
    return judge(one_run(WATTS_AT_THE_WALL))


def middle(judged: Assessment) -> ScoredRun:
    return not_none(not_none(judged.score).median_run())


def seen(judged: Assessment) -> list[timeline.Lane]:
    return timeline.lanes(judged.result, middle(judged))


def test_what_a_device_did_adds_up_to_its_busy_time(measured: Assessment) -> None:
    diagnosis, run = measured.diagnoses["mixed.1"], middle(measured)
    begin_ns, end_ns = timeline.span_ns(measured.result, run)
    assert [lane.device for lane in seen(measured)] == ["gpu:0", "cpu:0"]
    for lane in seen(measured):
        assert lane.busy == pytest.approx(diagnosis.busy[lane.device])
        assert sum(lane.fractions.values()) == pytest.approx(lane.busy, abs=1e-9), "one feed at a time"
        assert (lane.columns.sum(axis=0) <= 1 + 1e-9).all()
        drawn = lane.columns.mean(axis=1) * (end_ns - begin_ns) / run.length_ns
        taken = [lane.fractions.get(suite.suite, 0.0) for suite in run.suites]
        assert drawn.tolist() == pytest.approx(taken, abs=0.01), "the picture shows what the table says"


def slow_for_a_while() -> Assessment:
    devices = [device(id) for id in ("gpu:0", "cpu:0")]
    machine = Machine(
        MIX,
        GPU_AND_CPU,
        QUANTA,
        plan=partial(place, devices=devices),
        actual=lambda pair, at_s: GPU_AND_CPU[pair] * (0.4 if 200 < at_s < 280 else 1),
    )
    machine.run(600)
    return judge(result([recorded(machine)], EDGE, None, machine.now_ns, ("gpu:0", "cpu:0")))


def test_a_mix_that_went_slower_for_a_while_is_not_steady_and_says_what_it_cost() -> None:
    slowed = slow_for_a_while()
    [finding] = [each for each in slowed.findings if (each.rule, each.about) == ("steady", "mixed.1")]
    _, _, values = facts(finding)
    assert [values[name] for name in ("begin_s", "end_s", "window_s")] == pytest.approx([200, 280, 600])
    assert (values["figure"], round(values["rate_pct"]), round(values["moved_pct"], 1)) == ("mixes per hour", 41, 8.6)
    assert slowed.verdict.word == "rough"
    assert f"<small>{words(finding)}</small>" in report.html(slowed)


def test_a_mix_that_kept_its_pace_is_steady(measured: Assessment) -> None:
    assert "over the 600 s of mixed.1: <small>steady</small>" in report.html(measured)
    assert not [each for each in measured.findings if (each.rule, each.about) == ("steady", "mixed.1")]


def test_feeds_that_overlap_share_the_time(measured: Assessment) -> None:
    both = completions([(at * SECOND, (at + 20) * SECOND) for at in range(0, 600, 20)], 1)
    records = tuple(
        each.model_copy(update={"completions": both, "feed_units": 1})
        for each in measured.result.records
        if each.key in ("mixed.1.dlrm.cpu-0", "mixed.1.llm.cpu-0") or each.scenario != "mixed"
    )
    judged = judge(measured.result.model_copy(update={"records": records}))
    shares = dict(zip((each.suite for each in middle(judged).suites), seen(judged)[1].columns, strict=True))
    assert shares["llm"].tolist() == pytest.approx([0.5] * timeline.COLUMNS)
    assert shares["dlrm"].tolist() == pytest.approx([0.5] * timeline.COLUMNS)


def test_a_device_that_waits_is_shown_as_idle(measured: Assessment) -> None:
    lazy = measured.result.model_copy(update={"devices": (*measured.result.devices, judge(sample()).result.devices[1])})
    [picture] = timeline.mix_over_time(judge(lazy))
    assert picture.table and picture.table.rows[-1] == ("gpu:5d1c", "0 %", "0 %", "0 %", "0 %", "0 %", "100 %")
    assert [busy in picture.drawn for busy in ("100 % busy", "0 % busy")] == [True, True]


def test_the_run_that_the_figures_are_of_is_shown() -> None:
    several = judge(one_run(None, runs=3))
    page = report.html(several)
    assert page.count("What each device did over the 600 s of") == 1
    assert f"over the 600 s of {middle(several).phase}" in page


def test_power_is_drawn_if_a_meter_read_it(measured: Assessment) -> None:
    unmetered = judge(one_run(None))
    assert timeline.power(unmetered.result, middle(unmetered), (0, 1)) is None
    power = not_none(timeline.power(measured.result, middle(measured), (0, 1)))
    assert (power.label, power.value) == ("Power of the wall", "600 W on average")


def test_a_lane_is_filled_from_the_bottom_and_alike_columns_are_one() -> None:
    columns = np.array([[1.0, 1.0, 0.25, 0.0], [0.0, 0.0, 0.5, 0.0]])
    drawn = strips.lane(columns, window=(0, 1))
    assert '<path class="hue0" d="M0 0h2v100h-2zM2 75h1v25h-1z"/>' in drawn
    assert '<path class="hue1" d="M2 25h1v50h-1z"/>' in drawn
    assert "veil" not in drawn
    assert '<path class="veil" d="M3.0 0H4.0V100H3.0z"/><path class="limit" d="M3.0 0V100"/>' in strips.lane(
        columns, window=(0, 0.75)
    )


def test_the_pictures_of_many_devices_stay_small() -> None:
    rng = np.random.Generator(np.random.Philox(3))
    lane = strips.lane(rng.dirichlet(np.ones(4), timeline.COLUMNS).T[:3], (0, 1))
    assert 64 * len(lane) < 500_000, "though no two columns are alike, and each device runs three suites"


def test_the_suites_are_compared_with_the_fastest_route_of_each() -> None:
    bars = dict(routes.suites(judge(sample())))
    assert bars["resnet50"][0].detail == "not steady, no interval"
    fast, *slow = bars["llm"]
    assert (fast.label, fast.rate, fast.detail) == ("gpu:5d1c · torch · bf16 · single-stream", "219 tok/s", "± 0.8 %")
    assert [bar.detail for bar in slow] == ["interval not known, 2 % of the best"] * 2
    assert [bar.rate for bar in bars["diffusion"]] == ["0.0885 img/s", "failed"]
    assert (bars["diffusion"][1].detail, bars["diffusion"][1].drawn) == ("out of memory", None)
    assert bars["diffusion"][1].href == "missing"
    drawn = not_none(bars["dlrm"][1].drawn)
    assert 'class="hue2"' in drawn and 'class="whisker"' in drawn
    assert slow[0].drawn is not None and "whisker" not in slow[0].drawn


def test_a_bar_shows_how_far_the_roofline_is() -> None:
    drawn = strips.bar(60.0, None, 80.0, 100.0, hue=0)
    assert 'd="M0 2H600V12H0z"' in drawn and 'class="limit" d="M800.0 0V14"' in drawn
    assert "limit" not in strips.bar(60.0, None, None, 100.0, hue=0)


def test_a_route_that_was_only_tried_is_hatched() -> None:
    tried, drawn = strips.bar(3.0, None, None, 100.0, hue=0, hatched=True), strips.bar(3.0, None, None, 100.0, hue=0)
    assert (tried.count("V12"), drawn.count("V12")) == (2, 1)
    assert "M20 2H30V12H20z" in tried


def test_power_has_holes_where_it_is_not_known() -> None:
    drawn = strips.curve(np.array([50.0, np.nan, 100, 100]), 200.0, (0, 1), mean=None, ticks=(100.0,))
    assert '<path class="power" d="M0 75H250M500 50H750V50H1000"/>' in drawn
    assert '<path class="grid" d="M0 50.0H1000"/>' in drawn


def test_the_axis_counts_from_the_begin_of_the_window(measured: Assessment) -> None:
    labels = [f"{seconds} s" for seconds in (0, 100, 200, 300, 400, 500)]
    ticks = timeline._ticks(0, 600 * SECOND, 600 * SECOND)
    assert [label for _, label in ticks] == [*labels, "600 s"] and ticks[0][0] == 0
    late = timeline._ticks(-60 * SECOND, 600 * SECOND, 600 * SECOND)
    place, label = late[0]
    assert place == pytest.approx(60 / 660 * 100, abs=0.1) and label == "0 s"
