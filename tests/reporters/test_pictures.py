"""The two pictures that come first on the page."""

from __future__ import annotations

import dataclasses
import re
from functools import partial

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.solo import Relative
from mixmark.harness.plan.placement import place
from mixmark.reporters import charts, pictures, report
from mixmark.reporters.timeline import Timeline, timelines
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
from tests.golden.sample import MS, closed_loop, record, sample
from tests.golden.sample import result as bare
from tests.judge.found import facts, not_none


@pytest.fixture(scope="module")
def measured() -> Assessment:
    return judge(one_run(WATTS_AT_THE_WALL))


def test_what_a_device_did_adds_up_to_its_busy_time(measured: Assessment) -> None:
    [seen] = timelines(measured)
    diagnosis = measured.diagnoses["mixed.1"]
    assert [lane.device for lane in seen.lanes] == ["gpu:0", "cpu:0"]
    for lane in seen.lanes:
        assert lane.busy == pytest.approx(diagnosis.busy[lane.device])
        assert sum(lane.fractions.values()) == pytest.approx(lane.busy, abs=1e-9), "one feed at a time"
        assert (lane.columns.sum(axis=0) <= 1 + 1e-9).all()
        drawn = lane.columns.mean(axis=1) * (seen.end_ns - seen.begin_ns) / seen.run.length_ns
        taken = [lane.fractions.get(suite, 0.0) for suite in seen.suites]
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
    assert (values["figure"], round(values["rate_pct"]), round(values["moved_pct"], 1)) == ("mixes per hour", 40, 8.7)
    assert slowed.verdict.word == "disturbed"
    [picture] = pictures.mixes(slowed)
    assert picture.steadiness == words(finding)
    assert picture.other_level is not None and picture.other_level.value == "40 % of the rest"
    begin, end = map(float, re.findall(r"M([\d.]+) 10H([\d.]+)", str(picture.other_level.drawn))[0])
    assert [begin, end] == pytest.approx([333, 467], abs=2)
    page = report.html(slowed)
    assert f"<small>{words(finding)}</small>" in page


def test_a_mix_that_kept_its_pace_is_steady(measured: Assessment) -> None:
    [picture] = pictures.mixes(measured)
    assert (picture.steadiness, picture.other_level) == ("steady", None)
    assert not [each for each in measured.findings if (each.rule, each.about) == ("steady", "mixed.1")]


def test_feeds_that_would_flicker_share_longer_columns(measured: Assessment) -> None:
    [seen] = timelines(measured)
    assert [lane.columns.shape[1] for lane in seen.lanes] == [50, 100], "its feeds take about 2 s of 600 s"


def concurrency_kept(whole: Result, each_ns: int) -> Timeline:
    """The processor works at two suites in turn, a feed of one each time."""
    of = {
        suite: [(at, at + each_ns) for at in range(begin, 600 * SECOND, 2 * each_ns)]
        for suite, begin in (("llm", 0), ("dlrm", each_ns))
    }
    records = tuple(
        each.model_copy(update={"completions": completions(of[each.route.suite], 1), "feed_units": 1})
        if each.key in ("mixed.1.dlrm.cpu-0", "mixed.1.llm.cpu-0")
        else each
        for each in whole.records
    )
    return timelines(judge(whole.model_copy(update={"records": records})))[0]


@pytest.mark.parametrize(("each_s", "columns"), [(20, 400), (0.02, 400), (2, 50)])
def test_bars_that_are_seen_and_shares_that_even_out_stay_fine(
    measured: Assessment, each_s: float, columns: int
) -> None:
    assert concurrency_kept(measured.result, round(each_s * SECOND)).lanes[1].columns.shape[1] == columns


def test_feeds_that_overlap_share_the_time(measured: Assessment) -> None:
    both = completions([(at * SECOND, (at + 20) * SECOND) for at in range(0, 600, 20)], 1)
    records = tuple(
        each.model_copy(update={"completions": both, "feed_units": 1})
        for each in measured.result.records
        if each.key in ("mixed.1.dlrm.cpu-0", "mixed.1.llm.cpu-0") or each.scenario != "mixed"
    )
    [seen] = timelines(judge(measured.result.model_copy(update={"records": records})))
    shares = dict(zip(seen.suites, seen.lanes[1].columns, strict=True))
    assert shares["llm"].tolist() == pytest.approx([0.5] * 400)
    assert shares["dlrm"].tolist() == pytest.approx([0.5] * 400)


def test_a_device_that_waits_is_shown_as_idle(measured: Assessment) -> None:
    lazy = measured.result.model_copy(update={"devices": (*measured.result.devices, judge(sample()).result.devices[1])})
    [picture] = pictures.mixes(judge(lazy))
    assert [lane.value for lane in picture.lanes] == ["100 % busy", "100 % busy", "0 % busy"]
    assert picture.table.rows[-1] == ("gpu:5d1c", "0 %", "0 %", "0 %", "0 %", "0 %", "100 %")
    assert "<path" not in picture.lanes[-1].drawn


def test_the_run_that_the_figures_are_of_is_shown_first() -> None:
    several = judge(one_run(None, runs=3))
    phases = [picture.phase for picture in pictures.mixes(several)]
    assert sorted(phases) == ["mixed.1", "mixed.2", "mixed.3"]
    page = report.html(several)
    first = f"What each device did over the 600 s of the mix, {phases[0]}"
    assert page.index(first) < page.index(f"of the mix, {phases[1]}")


def test_without_a_meter_no_power_is_drawn(measured: Assessment) -> None:
    assert pictures.mixes(judge(one_run(None)))[0].power is None
    power = not_none(pictures.mixes(measured)[0].power)
    assert (power.label, power.value) == ("Power of the wall", "600 W on average")


def test_a_lane_is_filled_from_the_bottom_and_alike_columns_are_one() -> None:
    columns = np.array([[1.0, 1.0, 0.25, 0.0], [0.0, 0.0, 0.5, 0.0]])
    drawn = charts.lane(columns, edges=(0.0, 0.5), window=(0, 1))
    assert '<path class="hue0" d="M0 0h2v100h-2zM2 75h1v25h-1z"/>' in drawn
    assert '<path class="hue1" d="M2 25h1v50h-1z"/>' in drawn
    assert '<path class="began" d="M2.0 0V100"/>' in drawn
    assert "veil" not in drawn
    assert '<path class="veil" d="M3.0 0H4.0V100H3.0z"/><path class="limit" d="M3.0 0V100"/>' in charts.lane(
        columns, (), window=(0, 0.75)
    )


@pytest.mark.exhaustive
def test_a_million_feeds_make_a_small_picture() -> None:
    whole = one_run(WATTS_AT_THE_WALL)
    short = completions([(at * 600, at * 600 + 590) for at in range(1_000_000)], 1)
    done = dataclasses.replace(
        short, **{name: getattr(short, name) * 1000 for name in ("due_ns", "issued_ns", "yielded_ns")}
    )
    records = tuple(
        each.model_copy(update={"completions": done, "feed_units": 1}) if each.key == "mixed.1.resnet50.gpu-0" else each
        for each in whole.records
    )
    assert whole.records != records
    assert len(report.html(judge(whole.model_copy(update={"records": records})))) < 400_000


def test_the_pictures_of_many_devices_and_runs_stay_small() -> None:
    rng = np.random.Generator(np.random.Philox(3))
    for devices, runs in ((1, 5), (8, 5), (64, 1)):
        columns = min(400, max(120, 3200 // devices))
        several = [columns, *[round(0.4 * columns)] * (runs - 1)]
        drawn = [charts.lane(rng.dirichlet(np.ones(4), count).T[:3], (), (0, 1)) for count in several]
        assert devices * sum(map(len, drawn)) < 500_000, (
            "though no two columns are alike, and each device runs three suites"
        )


def test_the_suites_are_compared_with_the_fastest_route_of_each() -> None:
    bars = dict(pictures.suites(judge(sample())))
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


def test_a_bar_is_as_long_as_its_rate() -> None:
    [(_, [fast, slow])] = pictures.suites(
        judge(
            bare(
                record("a", "llm", "token", closed_loop([[MS]] * 8)),
                record("b", "llm", "token", closed_loop([[4 * MS]] * 8), adapter="onnxruntime"),
            )
        )
    )
    lengths = [float(re.findall(r"M0 2H([\d.]+)V", str(bar.drawn))[0]) for bar in (fast, slow)]
    assert lengths == [1000, 250]


def test_a_bar_shows_how_far_the_roofline_is() -> None:
    drawn = charts.bar(60.0, None, 80.0, 100.0, hue=0)
    assert 'd="M0 2H600V12H0z"' in drawn and 'class="limit" d="M800.0 0V14"' in drawn
    assert "limit" not in charts.bar(60.0, None, None, 100.0, hue=0)


def test_a_route_that_was_only_tried_is_hatched() -> None:
    tried, drawn = charts.bar(3.0, None, None, 100.0, hue=0, hatched=True), charts.bar(3.0, None, None, 100.0, hue=0)
    assert (tried.count("V12"), drawn.count("V12")) == (2, 1)
    assert "M20 2H30V12H20z" in tried


@pytest.mark.parametrize(
    ("ratio", "tint"), [(1.0, 0), (1.03, 0.01), (0.97, -0.01), (2.0, 0.3), (10.0, 1), (0.1, -1), (500.0, 1), (None, 0)]
)
def test_a_tint_is_as_strong_as_the_difference(ratio: float | None, tint: float) -> None:
    assert pictures.tint(Relative(ratio, 1.0, "token")) == tint


def test_power_has_holes_where_it_is_not_known() -> None:
    drawn = charts.curve(np.array([50.0, np.nan, 100, 100]), 200.0, (0, 1), mean=None, ticks=(100.0,))
    assert '<path class="power" d="M0 75H250M500 50H750V50H1000"/>' in drawn
    assert '<path class="grid" d="M0 50.0H1000"/>' in drawn


def test_the_axis_counts_from_the_begin_of_the_window(measured: Assessment) -> None:
    [picture] = pictures.mixes(measured)
    assert [label for _, label in picture.ticks] == ["0 s", "100 s", "200 s", "300 s", "400 s", "500 s"]
    assert picture.ticks[0][0] == 0
    assert measured.score is not None and measured.score.runs[0].length_ns < 601 * SECOND
