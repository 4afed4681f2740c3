from __future__ import annotations

import csv
import json
import re
from dataclasses import replace

import pytest

from mixmark.harness.contracts.schema import Audit, Failure, Finding, Gate, RateTrial, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.findings import found, words
from mixmark.reporters import figures, report
from mixmark.reporters.data import _safe, as_csv
from tests.golden.reports import reports
from tests.golden.sample import DOMAINS, FOLDER, GPU, REPORTERS, but, closed_loop, phase, record, result, sample
from tests.reporters.hostile import HOSTILE, LONG, hostile


@pytest.mark.parametrize("name", REPORTERS)
def test_every_reporter_writes_its_golden_file(name: str) -> None:
    assert REPORTERS[name](judge(sample())) == (FOLDER / name).read_text(encoding="utf-8"), (
        "python -m tests.golden rewrites"
    )


def test_the_full_report_of_each_kind_of_result_is_its_golden_file() -> None:
    for file, assessment in reports():
        golden = file.read_text(encoding="utf-8")
        assert report.full(assessment) == golden, f"{file.name}: python -m tests.golden rewrites"
        assert max(map(len, golden.splitlines())) <= report.FULL_WIDTH


def test_a_run_without_any_record_can_be_reported() -> None:
    for render in REPORTERS.values():
        assert render(judge(result(finished=False)))


@pytest.mark.parametrize("text", [LONG, "x" * 10_000], ids=["hostile", "long"])
@pytest.mark.parametrize("name", REPORTERS)
def test_hostile_text_moves_no_cursor_and_breaks_no_line(name: str, text: str) -> None:
    report = REPORTERS[name](judge(hostile(text)))
    assert all(letter.isprintable() for letter in report.replace("\n", "")), "nothing that a terminal would obey"
    report.encode()


def test_json_keeps_hostile_text_and_is_safe_on_a_terminal() -> None:
    stored = json.loads(REPORTERS["report.json"](judge(hostile())))
    assert stored["provenance"]["cpu_model"] == HOSTILE


def test_csv_has_its_rows_and_no_formula() -> None:
    rows = list(csv.DictReader(as_csv(judge(hostile())).splitlines()))
    assert len(rows) == 2 and {None}.isdisjoint(rows[0])
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert rows[0]["suite"].startswith("'=cmd() ") and _safe("@token") == "'@token"


def test_a_device_that_no_built_in_adapter_probed_has_its_own_ceiling() -> None:
    for environments, own in ((sample().environments, False), ({}, True)):
        assessment = judge(sample().model_copy(update={"environments": environments}))
        assert ("torch, own ceiling" in report.full(assessment)) is own
        assert all(each.witnessed is not own for each in assessment.ceilings)
        assert any(solo.roofline_fraction for solo in assessment.solos) is not own


def test_joules_of_different_boundaries_name_their_boundary() -> None:
    whole = sample()
    plug = DOMAINS[1].model_copy(update={"id": "plug", "boundary": "wall", "covers": ("cpu:0", GPU)})
    first, *others = whole.meterings
    part = first.samples[DOMAINS[1].id]
    both = {**first.samples, "plug": replace(part, values=10 * part.values)}
    meterings = (first.model_copy(update={"samples": both}), *others)
    several = whole.model_copy(update={"domains": (*DOMAINS, plug), "meterings": meterings})
    text = report.full(judge(several))
    assert "Energy of the wall or the devices (without memory" in text
    assert re.search(r" wall$", text, re.MULTILINE) and re.search(r" devices$", text, re.MULTILINE)
    assert not re.search(r" devices$", report.full(judge(whole)), re.MULTILINE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.012345, "0.0123"),
        (9.996, "10.0"),
        (999.6, "1,000"),
        (5349.9, "5,350"),
        (12345, "12,300"),
        (4.1, "4.10"),
    ],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert figures.significant(value) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "–"), (0, "0 ns"), (999, "999 ns"), (999_600, "1.00 ms"), (31_200_000_000, "31.2 s"), (1_234, "1.23 µs")],
)
def test_durations_have_si_units(ns: int | None, text: str) -> None:
    assert figures.duration(ns) == text


def test_devices_keep_short_names_apart() -> None:
    first, second = "gpu:GPU-5d1cae40-1", "gpu:GPU-5d1cbe40-2"
    measured = (record(device[-1], "llm", "token", closed_loop([[5]]), device=device) for device in (first, second))
    whole = result(*measured)
    names = figures.device_names(whole)
    assert names["cpu:0"] == "cpu:0"
    assert (names[first], names[second]) == ("gpu:5d1cae40-1", "gpu:5d1cbe40-2")  # the sample has gpu:GPU-5d1cae40-…
    others = ("simulated:webgpu0", "npu:coreml", "gpu:migraphx")
    measured = (record(id[-3:], "llm", "token", closed_loop([[5]]), device=id) for id in others)
    named = figures.device_names(result(*measured))
    assert all(named[id] == id for id in others), "a word is no serial number"
    drifted = found("speed_stable", first, adapter="torch", precision="bf16", drift=0.8, unit="byte/s")
    [(_, about, _)] = figures.merged([drifted], figures.labels(whole))
    assert about == names[first]


def runs_of(*step_ns: int) -> Result:
    done = [closed_loop([[step] * 3] * 4) for step in step_ns]
    records = [record(f"b.{run}", "resnet50", "image", each) for run, each in enumerate(done, 1)]
    return result(*(each.model_copy(update={"run": run}) for run, each in enumerate(records, 1)))


def test_runs_of_a_measurement_are_one_row_with_their_geometric_mean_and_interval() -> None:
    whole = runs_of(9_600_000, 10_000_000, 10_000_000)
    [row] = judge(whole).solos
    assert row.speed == pytest.approx((1e9 / 9_600_000 * 100 * 100) ** (1 / 3))
    assert (row.runs, len(judge(whole).runs)) == (3, 3)
    rate, width = figures.throughput(row)
    assert rate == "101 img/s"
    assert width.startswith("± ") and width.endswith(" % of 3 runs")
    for name in ("report.txt", "report.md"):
        assert "101 img/s" in REPORTERS[name](judge(whole))
    assert REPORTERS["report.csv"](judge(whole)).count("b.") == 3


def test_runs_that_differ_by_a_factor_have_no_interval() -> None:
    [row] = judge(runs_of(2_500_000, 10_000_000, 10_000_000)).solos
    assert figures.throughput(row) == ("159 img/s", "of 3 runs, interval not known")


def test_a_run_that_failed_leaves_the_others() -> None:
    broken = but(record("b.9", "resnet50", "image", error=Failure(kind="crashed", message="it fell")), run=9)
    whole = result(*runs_of(100, 100).records, broken)
    assert [(row.status, row.runs) for row in judge(whole).solos] == [("ok", 2)]
    assert [row.status for row in judge(result(broken)).solos] == ["failed"]


def wrong() -> Result:
    """Two devices. The faster one has wrong outputs."""
    honest = record("a", "resnet50", "image", closed_loop([[10**9]] * 8))
    fast = record("b", "resnet50", "image", closed_loop([[10**8]] * 8), device=GPU)
    audit = Audit(gate=Gate(metric="distance", at_most=1.0), finished=8, feeds=(0,), values=(9.0,))
    return result(honest, fast.model_copy(update={"audit": audit}))


def test_a_fast_wrong_output_counts_for_nothing() -> None:
    honest, cheat = judge(wrong()).solos
    assert figures.throughput(honest) == ("1.00 img/s",)
    assert (cheat.status, figures.throughput(cheat)) == ("invalid", ("invalid", "10.0 img/s"))
    assert judge(wrong()).matrix is None, "there is but one device with a figure"
    assert " invalid " in report.full(judge(wrong())) and "invalid, 10.0 img/s" in report.markdown(judge(wrong()))
    assert [row["status"] for row in csv.DictReader(as_csv(judge(wrong())).splitlines())] == ["ok", "invalid"]
    rows = json.loads(REPORTERS["report.json"](judge(wrong())))["runs"]
    assert {row["key"]: row["status"] for row in rows}["b"] == "invalid"
    assert '<a href="#b"><span class="state bad">invalid</span></a>' in report.html(judge(wrong()))


def test_an_invalid_run_is_not_among_those_that_are_averaged() -> None:
    fine, cheat = wrong().records
    again = fine.model_copy(update={"key": "c", "phase": "c", "run": 2})
    cheat = cheat.model_copy(update={"route": fine.route, "run": 3})
    [row] = judge(result(fine, again, cheat)).solos
    assert (row.status, row.runs) == ("ok", 2) and row.speed == pytest.approx(1)
    assert [row.status for row in judge(result(cheat)).solos] == ["invalid"]


def test_runs_that_chose_different_batches_say_so() -> None:
    fine, _ = wrong().records
    chosen = enumerate((512, 1024, 512), start=1)
    chose = [but(fine, key=f"k{run}", phase=f"k{run}", run=run, batch=batch) for run, batch in chosen]
    [row] = judge(result(*chose)).solos
    assert row.batches == (512, 1024) and "batches of 512, 1024" in figures.throughput(row)
    [same] = judge(result(*(each.model_copy(update={"batch": 512}) for each in chose))).solos
    assert same.batches == () and not any("batches" in part for part in figures.throughput(same))


def test_a_confirmation_run_is_another_measurement_and_the_next_run_is_not() -> None:
    """Whatever the order of the records."""
    keys = (("a", 1), ("b", 1), ("c", 2))
    first, again, second = (but(record(key, "resnet50", "image", closed_loop([[100]])), run=run) for key, run in keys)
    phases = (phase(first), phase(again).model_copy(update={"purpose": "confirmation"}), phase(second))
    for order in ((first, again, second), (again, second, first)):
        measured = judge(result(*order).model_copy(update={"phases": phases})).solos
        assert sorted(each.runs for each in measured) == [1, 2]
        assert [each.key for each in measured if each.runs == 1] == ["b"]


def fell(first_mhz: float, last_mhz: float, what: str, about: str) -> Finding:
    clocks = {"first_mhz": first_mhz, "last_mhz": last_mhz, "fell": 1 - last_mhz / first_mhz, "limit": 0.03}
    return found("frequency_stable", about, what=what, **clocks)


def test_findings_that_differ_only_in_numbers_become_one_with_ranges() -> None:
    cpus, gpu = "the CPUs", "gpu:0"
    several = [fell(4000, 3000, cpus, "a"), fell(4000, 2000, cpus, "b"), fell(4200, 2100, cpus, "c")]
    several += [fell(1700, 850, gpu, "c"), found("screened", "b"), found("screened", "c")]
    several += [fell(2000, 1000 * times, "a node", f"node{times}.of-the-cluster.example.org") for times in (1, 1.5)]
    labels = {key: f"llm on gpu:0 by acme in fp{bits}" for key, bits in (("a", 32), ("b", 16), ("c", 8))}
    assert figures.merged(several, labels) == [
        (
            "warning",
            "3 measurements",
            "the clock of the CPUs fell by 25 % to 50 %: 4000 to 4200 MHz at first, 2000 to 3000 MHz at last "
            "(limit 3.0 %)",
        ),
        ("warning", labels["c"], "the clock of gpu:0 fell by 50 %: 1700 MHz at first, 850 MHz at last (limit 3.0 %)"),
        (
            "warning",
            "2 parts",
            "the clock of a node fell by 25 % to 50 %: 2000 MHz at first, 1000 to 1500 MHz at last (limit 3.0 %)",
        ),
        ("note", "2 measurements", "only a quick check of seconds: --all-routes measures this one"),
    ]


def test_invalid_findings_are_not_merged() -> None:
    several = [found("concurrency_kept", "a", most=most, device="cpu:0", concurrency=1) for most in (2, 3)]
    merged = figures.merged(several, {})
    assert [message for _, _, message in merged] == [words(each) for each in several]


def test_a_server_is_labelled_by_its_arrivals() -> None:
    served = record("b", "resnet50", "image", closed_loop([[100]]), scenario="server")
    fixed = served.model_copy(update={"rate_per_s": 5.0})
    assert figures.scenario(fixed) == "server 5/s"
    trials = (RateTrial(rate_per_s=12.345, feeds=9, kept=True),)
    assert figures.scenario(but(served, rate_per_s=12.345, rate_trials=trials)) == "server max 12.3/s"


def test_a_time_beyond_the_years_is_shown_as_it_is_stored() -> None:
    for created in ("0001-01-01T00:00:00+14:00", "soon"):
        assert created in report.html(judge(result().model_copy(update={"created_utc": created})))
