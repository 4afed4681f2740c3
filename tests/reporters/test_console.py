"""The summary that a run prints last: its words, its length, and that it fits the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Absent, Audit, Failure, Gate, Record, Result
from mixmark.harness.judge import references, solo_rates
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.references import ReferenceScore
from mixmark.harness.judge.verdict import VerdictWord
from mixmark.harness.plan import mixes
from mixmark.reporters import figures, report
from mixmark.reporters.summary import LIMIT, summary
from tests.fakes.machine import EDGE, SECOND, WATTS_AT_THE_WALL, one_run
from tests.golden.sample import GPU, RIGHT, SUITES, but, closed_loop, record, result, server, unmetered
from tests.judge.rules.test_energy import metered

COLOUR = re.compile(r"\x1b\[[\d;]*m")
OTHER = ReferenceScore(
    name="Acme box",
    entry="acme/box",
    mix="edge-9",
    mixes_per_hour=Estimate(360),
    mixes_per_kwh=Estimate(900),
    boundary="wall",
    weight_class=16,
    grade="official",
    created_utc="2026-10-02T03:04:05+00:00",
)


@pytest.fixture
def measured() -> Result:
    return one_run(WATTS_AT_THE_WALL).model_copy(update={"suites": SUITES})


def test_the_score_is_compared_with_references_of_the_same_mix(measured: Result) -> None:
    of_another_mix = OTHER.model_copy(update={"mix": "edge-8"})
    shown = summary(judge(measured, (of_another_mix, OTHER)))
    own, other = shown.standing
    assert own == ("this machine", "█" * 11 + "▒", "852 ± 0.8 %", "1,420 ± 0.8 %", "")
    assert shown.is_good == "above Acme box"
    beside = "this one does about 2.37 × (official, 2026-10-02"
    assert other == ("Acme box", "█" * 5, "360", "900", f"{beside})"), "another run may differ"
    narrower = OTHER.model_copy(update={"boundary": "node", "weight_class": 8})
    shown = summary(judge(measured, (narrower,)))
    assert shown.standing[1][3:] == ("–", f"{beside}, 8-bit weights)"), "boundaries are never compared"


def test_only_disjoint_intervals_of_a_good_result_show_who_is_faster(measured: Result) -> None:
    judged = judge(measured)
    assert judged.score is not None
    interval = Estimate(100.0, 95.0, 105.0)
    judged = replace(
        judged,
        score=replace(judged.score, mixes_per_hour=interval, mixes_per_kwh=None),
        verdict=replace(judged.verdict, word="solid"),
    )

    def words(low: float, high: float, found: Assessment = judged) -> str:
        other = OTHER.model_copy(update={"mixes_per_hour": Estimate((low + high) / 2, low, high)})
        (beside,) = (row[-1] for row in summary(replace(found, against=(other,))).standing if row[0] == "Acme box")
        return beside.partition(" (")[0]

    assert words(80, 90) == "this one is faster: 1.18 ×"
    assert words(110, 120) == "this one is slower: 0.870 ×"
    assert words(100, 120) == "as fast, as far as the intervals tell: 0.909 ×"
    disturbed = replace(judged, verdict=replace(judged.verdict, word="disturbed"))
    assert words(80, 90, disturbed) == "this one does about 1.18 ×"


@pytest.mark.parametrize("runs", [1, 2])
def test_a_disturbed_window_has_no_interval_and_disturbed_runs_have_one(runs: int) -> None:
    """The blocks of a window show how steady it was, and not what slowed all of them down."""
    judged = judge(one_run(WATTS_AT_THE_WALL, runs=runs).model_copy(update={"suites": SUITES}))
    assert judged.score is not None
    figure = Estimate(100.0, 95.0, 105.0)
    rows = tuple(replace(row, units_per_s=figure, runs=runs) for row in judged.solos)
    score = replace(judged.score, mixes_per_hour=figure)
    judged = replace(judged, score=score, solos=rows, hardware_limit_per_hour=Estimate(200.0))
    verdicts: tuple[tuple[VerdictWord, bool], ...] = (("fair", True), ("disturbed", runs > 1))
    for word, intervals in verdicts:
        shown = summary(replace(judged, verdict=replace(judged.verdict, word=word)))
        texts = (shown.score, shown.sentence, shown.suites[0].rate, shown.standing[0][2])
        assert ["±" in text for text in texts] == [intervals] * 4, texts


def test_without_a_mix_the_sentence_says_what_was_done_and_what_a_score_lacks() -> None:
    alone = result(record("a", "llm", "token", closed_loop([[SECOND // 4] * 4] * 8)))
    done = "This machine does 4.00 LLM tokens a second, each suite alone. There is no score: "
    assert summary(judge(alone)).sentence == f"{done}the mix edge-9 also needs diffusion, dlrm, resnet50."
    with patch.object(mixes, "frozen", lambda: {"edge-9": EDGE.model_copy(update={"units": {"llm": 50.0}})}):
        assert summary(judge(alone)).sentence == f"{done}no mix was asked for."
    assert summary(judge(alone)).score == "llm 4.00 tok/s (prompt 512 tok/s, first after 250 ms)"
    (ran,), (facts, *rest) = alone.records, alone.suites
    names = facts.unit_names.model_copy(update={"first_unit": "pp512", "per_unit": "tg3"})
    route = ran.route.model_copy(update={"precision": "as-file", "suite_options": {"plugin": "gguf-file"}})
    as_file = ran.model_copy(update={"route": route, "audit": None, "exempt": "no gate"})
    own = {"records": (as_file,), "suites": (facts.model_copy(update={"unit_names": names}), *rest)}
    rates = "pp512 512 tok/s, tg3 4.00 tok/s (unaudited)"
    assert summary(judge(alone.model_copy(update=own))).score == f"llm: {rates}"
    other = as_file.model_copy(update={"phase": "b", "route": route.model_copy(update={"adapter": "other"})})
    both = summary(judge(alone.model_copy(update={**own, "records": (as_file, other)}))).score
    assert both == f"llm by cpu:0 {route.adapter} as-file: {rates}; llm by cpu:0 other as-file: {rates}"
    unasked = alone.model_copy(update={"command": ("run", "--mix", "none")})
    assert summary(judge(unasked)).sentence.endswith("There is no score: no mix was asked for.")
    two = result(*alone.records, record("b", "dlrm", "sample", closed_loop([[SECOND // 4]] * 8), device=GPU))
    said = "This machine does, by the fastest device for each: 4.00 LLM tokens (cpu:0), 4.00 recommendations (gpu:5d1c)"
    assert summary(judge(two)).sentence.startswith(f"{said} a second, each suite alone.")
    wrong = alone.records[0].model_copy(update={"audit": RIGHT.model_copy(update={"values": (9.0,)})})
    assert summary(judge(result(wrong))).sentence.startswith("This machine has no rate that counts.")
    nothing = alone.model_copy(update={"records": (), "finished": False})
    assert summary(judge(nothing)).score == "" and summary(judge(nothing)).sentence.startswith(
        "This machine has finished no measurement. There is no score"
    )


def test_the_limit_of_the_hardware_stands_on_the_same_scale(measured: Result) -> None:
    """A mix of half the hardware's speed; without the fraction of a suite there is no limit."""
    judged = judge(measured)
    assert judged.score is not None and judged.score.mixes_per_hour is not None
    halves = tuple(replace(row, roofline_fraction=0.5, roofline_typical=0.8) for row in judged.solos)
    limit = solo_rates.hardware_limit_per_hour(measured, halves)
    whole = solo_rates.hardware_limit_per_hour(measured, [replace(row, roofline_fraction=1.0) for row in halves])
    assert limit is not None and whole is not None
    assert limit.estimate == pytest.approx(2 * whole.estimate) and limit.ends == (limit.estimate / 1.6, limit.estimate)
    assert solo_rates.hardware_limit_per_hour(measured, [row for row in halves if row.route.suite != "llm"]) is None
    tx = judged.score.mixes_per_hour.estimate
    near = replace(judged, hardware_limit_per_hour=Estimate(tx / 0.42, tx / 0.5, tx / 0.42))
    own, bound = summary(near).standing
    assert (own[0], *bound[:2], bound[-1]) == ("this machine", LIMIT, "░" * 12, "42 % of it reached")
    assert summary(near).is_good == "42 % of what this hardware allows"
    score = replace(judged.score, mixes_per_hour=Estimate(tx, 0.9 * tx, 1.1 * tx))
    calm = replace(near, score=score, verdict=replace(judged.verdict, word="fair"))
    assert summary(calm).standing[1][-1] == "42 % of it reached (38 % to 55 %)"


def test_of_many_published_machines_the_nearest_on_either_side_are_named(measured: Result) -> None:
    own = judge(measured).score
    assert own is not None and own.mixes_per_hour is not None
    tx = own.mixes_per_hour.estimate
    speeds = {"far": 9.0, "above": 1.2, "below": 0.9, "slow": 0.1}
    published = [but(OTHER, name=name, mixes_per_hour=Estimate(tx * times)) for name, times in speeds.items()]
    itself = but(OTHER, name="itself", mixes_per_hour=Estimate(tx), created_utc=measured.created_utc)
    many = [each.model_copy(update={"name": f"{each.name}-{index}"}) for each in published[1:3] for index in range(4)]
    shown = summary(replace(judge(measured, (*published, *many, itself)), hardware_limit_per_hour=Estimate(4 * tx)))
    names = [row[0] for row in shown.standing]
    assert len(names) == 7 and names[-1] == LIMIT, "the nearest of three on either side"
    assert names.index("this machine") == 2 and shown.is_good.startswith("above below-3, below above; 25 %")


def test_suites_alone_are_compared_with_those_of_a_reference(measured: Result) -> None:
    found = judge(measured)
    assert found.score is not None and found.score.mixes_per_hour is not None
    speeds = {"mixes_per_hour": found.score.mixes_per_hour, "alone": references.rates(found.solos)}
    reference = OTHER.model_copy(update={"name": "the same", **speeds})
    (line,) = (row[-1] for row in summary(judge(measured, (reference,))).standing if row[0] == "the same")
    assert line.startswith("this one does about 1.00 ×")
    assert all(f"{suite} 1.00 ×" in line.partition("; alone ")[2] for suite in reference.alone)
    suite, rate = next(iter(reference.alone.items()))
    newer = reference.model_copy(update={"alone": {suite: rate.model_copy(update={"version": "99"})}})
    rows = summary(judge(measured, (newer,))).standing
    assert not any("alone" in row[-1] for row in rows), "rates of two versions do not compare"


def test_a_route_far_from_its_roofline_is_called_so_and_none_claims_more_than_all_of_it(measured: Result) -> None:
    judged = judge(measured)

    def others(fraction: float) -> str:
        rows = tuple(replace(row, roofline_fraction=fraction) for row in judged.solos)
        return summary(replace(judged, solos=rows)).suites[0].others

    assert others(0.32).startswith("32 % of the hardware limit")
    assert "limit" not in others(0.5)
    assert [figures.roofline(each) for each in (None, 0.43, 1.0, 1.03)] == ["–", "43 %", "100 %", "≥ 100 %"]


def test_without_a_meter_the_words_say_so(measured: Result) -> None:
    shown = summary(judge(one_run(None)))
    assert shown.energy.startswith("not measured: ") and summary(judge(unmetered())).energy == shown.energy
    assert "kJ" not in shown.sentence
    assert shown.score.endswith("energy not measured")


def test_the_reason_that_a_meter_gave_no_joules_is_the_one_that_is_known() -> None:
    """It covers the whole machine, so neither "no meter" nor the list of meters would help."""
    both = {"package": "its peer closed it", "power": "line 9 is torn"}
    reasons = {
        3: ({}, "not measured: package: window too short; power: window too short; --preset quick is long enough"),
        60: (both, "not measured: package: lost, its peer closed it; power: lost, line 9 is torn"),
    }
    for seconds, (lost, said) in reasons.items():
        shown = summary(judge(metered(seconds=seconds, lost=lost)))
        assert shown.energy.startswith(said) and "mixmark meters" not in shown.energy
    assert summary(judge(metered())).energy.startswith("of the devices (without memory, ")
    part = metered().model_copy(update={"devices": (*metered().devices, result().devices[1])})
    assert summary(judge(part)).energy.endswith("mixmark meters says what is needed")
    unread = metered().model_copy(update={"meterings": ()})
    assert summary(judge(unread)).energy == "not measured: the meters were not read in its phase"
    nothing = metered().model_copy(update={"records": ()})
    assert summary(judge(nothing)).energy.startswith("not measured: no window")


def test_a_meter_that_the_machine_announces_and_that_cannot_be_read_is_the_reason(measured: Result) -> None:
    rapl = Absent(kind="meter", name="rapl", reason="only root may read it", covers=("cpu:0",))
    shown = summary(judge(one_run(None).model_copy(update={"absent": (rapl,)})))
    assert shown.energy.startswith("not measured: no meter was read; rapl: only root may read it; mixmark meters")


def test_without_a_score_no_sentence_claims_one(measured: Result) -> None:
    unreached = measured.model_copy(update={"records": (), "phases": (), "meterings": (), "finished": False})
    shown = summary(judge(unreached))
    assert shown.sentence.startswith("This machine has no score")
    assert shown.score == "No score: the run ended before its mix, edge-9"


def test_the_routes_of_a_line_are_of_one_scenario() -> None:
    fast, slow = closed_loop([[1_000_000]] * 50, units=8), closed_loop([[2_000_000]] * 50)
    offline = record("a", "resnet50", "image", fast, scenario="offline", batch=8)
    other = record("b", "resnet50", "image", slow, adapter="onnxruntime")
    [line] = summary(judge(result(offline, other))).suites
    assert (line.route, line.others) == ("cpu:0 torch fp32", ""), "a batch of 8 is not held against single images"
    both = record("c", "resnet50", "image", slow, adapter="onnxruntime", scenario="offline")
    [line] = summary(judge(result(offline, other, both))).suites
    assert line.others == "16.0 × cpu:0 onnxruntime fp32"


def test_a_line_names_the_route_whose_outputs_are_not_those_of_the_reference() -> None:
    slow, fast = closed_loop([[2_000_000]] * 50), closed_loop([[1_000_000]] * 50)
    right, other = record("a", "ocr", "image", slow), record("b", "ocr", "image", fast, adapter="openvino")
    lead = "2.00 × as fast by cpu:0 openvino fp32, but "
    wrong = Audit(gate=Gate(metric="error", at_most=0.02), feeds=(0,), values=(1.2,), finished=50)
    for changed, why in (
        ({"audit": wrong}, "wrong: error 1.2, at most 0.02"),
        ({"audit": None, "exempt": "no gate"}, "not audited: the suite has no gate"),
    ):
        [line] = summary(judge(result(right, other.model_copy(update=changed)))).suites
        assert (line.route, line.others) == ("cpu:0 torch fp32", lead + why)


def test_devices_of_one_model_share_a_line() -> None:
    def on(key: str, device: str, step_ns: int) -> Record:
        return record(key, "resnet50", "image", closed_loop([[step_ns]] * 50), device=device)

    whole = result(on("a", "cpu:0", 8_000_000), on("b", "gpu:1", 1_000_000), on("c", GPU, 1_250_000))
    gpu = whole.devices[1]
    whole = whole.model_copy(update={"devices": (*whole.devices, gpu.model_copy(update={"id": "gpu:1"}))})
    [line] = summary(judge(whole)).suites
    assert line.route == "gpu:1 torch fp32"
    assert "2 equal devices, 1.25 × the slowest" in line.others and "8.00 × cpu:0 torch fp32" in line.others
    assert (
        '<h1><span class="brand">Mixmark</span> Acme Quartz 9000, 16 cores, 32 threads, 64.0 GiB, 2 × Acme Topaz</h1>'
        in report.html(judge(whole))
    )


def test_the_rate_of_arrivals_is_no_speed() -> None:
    asked = server(closed_loop([[1_000_000]] * 50), rate_per_s=5.0)
    [line] = summary(judge(asked)).suites
    assert line.route == "cpu:0 torch fp32, server 5/s"
    [arrivals] = asked.records
    twin = but(arrivals, key="b", route__adapter="onnxruntime")
    [line] = summary(judge(result(arrivals, twin))).suites
    assert line.others == "", "both rates are the one that was asked for"
    closed = record("c", "llm", "token", closed_loop([[SECOND]] * 3), adapter="onnxruntime")
    [line] = summary(judge(result(arrivals, closed))).suites
    assert line.route == "cpu:0 onnxruntime fp32", "a speed, where there is one"


def test_a_suite_without_a_figure_names_the_failure_rather_than_the_refusal() -> None:
    left_out = record("a", "llm", "token", error=Failure(kind="refused", message="64.2 GiB needed"))
    crashed = record("b", "llm", "token", adapter="onnxruntime", error=Failure(kind="crashed", message="signal 11"))
    [line] = summary(judge(result(left_out, crashed))).suites
    assert (line.rate, line.others) == ("failed", "signal 11")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_it_fits_the_terminal_and_breaks_no_word(
    columns: int, measured: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = report.console(judge(measured, (OTHER,)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    coloured = report.console(judge(measured, (OTHER,)))
    text = COLOUR.sub("", coloured)
    assert coloured != text, "a terminal has colours"
    assert not COLOUR.search(piped), "a pipe has none"
    assert max(map(len, text.splitlines())) <= columns
    assert sorted(re.findall(r"[\w.%×]+", text)) == sorted(re.findall(r"[\w.%×]+", piped))
    assert len(piped.splitlines()) <= 23


def test_the_full_report_begins_with_the_short_one(measured: Result) -> None:
    short, full = (report.report(judge(measured), depth).blocks for depth in ("brief", "full"))
    assert full[: len(short)] == short


def test_a_quota_stands_in_the_header() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    header = report.console(judge(but(told, system__cpu_quota=2.5))).splitlines()[0]
    assert "32 threads, 2.5 of 32 CPUs by quota, 64.0 GiB" in header
