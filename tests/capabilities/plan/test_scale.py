"""The scale beside a score: bounds of known devices by hand, those that bracket a machine, and when there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mixmark.harness.capabilities.plan import scale
from mixmark.harness.capabilities.plan.assumed import Batch, Workload
from mixmark.harness.capabilities.plan.scale import bracket
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Cost, Result
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import registry
from mixmark.reporters import data
from mixmark.reporters.summary import summary
from tests.capabilities.plan import bounds_page
from tests.fakes.machine import one_run
from tests.golden.sample import SUITES

GB = 10**9
COMPUTE = Workload([Batch("fp16", 1, (Cost(name="a", flops=900e12, min_flops=330.3e12, bytes=1),))], {"fp16": 6 * GB})
STREAM = Workload([Batch("fp16", 1, (Cost(name="b", flops=1, bytes=900e9, streamed_bytes=504e9),))], {"fp16": 6 * GB})
WORKS, UNITS = {"compute": COMPUTE, "stream": STREAM}, {"compute": 2.0, "stream": 4.0}
INSTALLED = {name: registry.find("suites")[name].load().version for name in ("llm", "diffusion", "dlrm", "resnet50")}


def measured(versions: dict[str, str] = INSTALLED) -> Assessment:
    """A run of the mix whose suites have these versions."""
    suites = tuple(suite.model_copy(update={"version": versions[suite.name]}) for suite in SUITES)
    result: Result = one_run(600.0).model_copy(update={"suites": suites})
    return judge(result)


def of(works: Mapping[str, Workload], mix_units: Mapping[str, float] = UNITS) -> Mapping[str, float]:
    return scale.bounds(mix_units, {suite: bounds_page.most(work) for suite, work in works.items()})


def test_a_device_does_as_many_mixes_as_its_peak_and_its_bandwidth_allow() -> None:
    """The RTX 4090: 2 × 1 s by 330.3 TFLOP/s, 4 × 0.5 s by 1,008 GB/s. The i5-7300U: 2 × 1,474.55 s, 4 × 14.78 s."""
    bounds = of(WORKS)
    assert bounds["NVIDIA GeForce RTX 4090"] == pytest.approx(900)
    assert bounds["Intel Core i5-7300U"] == pytest.approx(3600 / 3008.23, rel=1e-5)


@pytest.mark.parametrize(
    ("device", "most"),
    [("AMD Ryzen 9 7950X", 842), ("Apple M1 (GPU)", 446), ("Intel Core i7-8700K", 172), ("Intel Core i5-7300U", 47.1)],
)
def test_at_most_is_by_the_most_economical_algorithm(device: str, most: float) -> None:
    """As `below_ceiling` takes it: Winograd's multiplications, and only bytes that no cache holds."""
    mix = mixes.frozen()["edge-1"]
    suites = {name: scale._content()[name]["edge"] for name in mix.units}
    assert scale.bounds(mix.units, suites)[device] == pytest.approx(most, rel=0.003)


def test_a_device_without_room_for_the_whole_mix_or_a_bound_of_a_suite_is_left_out() -> None:
    """12 GB of weights just fit into the RTX 3060."""
    fits = of(WORKS).keys()
    wider = {**WORKS, "stream": replace(STREAM, memory_bytes={"fp16": 6 * GB + 1})}
    assert fits - of(wider).keys() == {"NVIDIA GeForce RTX 3060 12 GB"}
    assert "Google TPU v5e" not in fits, "its sheet has no fp16"
    assert of(WORKS, {**UNITS, "foreign": 1.0}) == {}


@pytest.mark.parametrize(
    ("per_hour", "names"),
    [(35.0, "bcde"), (30.0, "bcde"), (29.0, "abcd"), (10.0, "abc"), (5.0, "ab"), (50.0, "de"), (45.0, "cde")],
)
def test_the_nearest_slower_and_faster_devices_bracket_a_machine(per_hour: float, names: str) -> None:
    """One that is exactly as fast counts as slower; where a side has fewer, the other side has no more."""
    known = {name: 10.0 * (index + 1) for index, name in enumerate("abcde")}
    assert "".join(bracket(dict(reversed(known.items())), per_hour).mixes_per_hour) == names


def test_the_scale_stands_around_the_limit_of_the_hardware() -> None:
    judged = measured()
    score = judged.score
    assert score is not None and score.mixes_per_hour is not None
    by_score = summary(judged).standing
    assert [row[-1] for row in by_score] == ["", *["by datasheet, at most"] * 4]
    assert all(row[3] == "–" for row in by_score if row[-1]), "the efficiency of a device is not known"
    rows = summary(replace(judged, hardware_limit_per_hour=Estimate(9 * score.mixes_per_hour.estimate))).standing
    names = [row[0] for row in rows]
    assert names[3] == "the limit of its hardware" and names[1:3] != [row[0] for row in by_score[1:3]]
    bounds = json.loads(data.as_json(judged))["experiments"]["datasheets"]["mixes_per_hour"]
    assert sorted(bounds, key=lambda name: -bounds[name]) == [row[0] for row in by_score if row[-1]]


def test_a_score_that_is_of_other_work_has_no_scale() -> None:
    """Suites of another version; weights of fewer bits; no score; weights that fit into caches."""
    judged = measured()
    assert judged.score is not None
    assert scale.scale(judged) is not None
    assert scale.scale(measured(INSTALLED | {"llm": "0"})) is None
    assert scale.scale(replace(judged, score=replace(judged.score, weight_class=8))) is None
    assert scale.scale(replace(judged, score=replace(judged.score, mixes_per_hour=None))) is None
    assert scale.scale(replace(judged, score=None)) is None
    smoke = judged.score.mix.model_copy(update={"tier": "smoke"})
    assert scale.scale(replace(judged, score=replace(judged.score, mix=smoke))) is None
