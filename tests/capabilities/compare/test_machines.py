from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from mixmark.harness.capabilities.compare import command, forms
from mixmark.harness.capabilities.compare.machines import MachineComparison, compare_machines
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Audit, Failure, Gate, Precision, Result
from mixmark.harness.judge.assessment import judge
from tests.capabilities.compare.test_solo import run_of, runs, several, window
from tests.fakes import machine
from tests.fakes.folders import Maker, write
from tests.fakes.machine import WATTS_AT_THE_WALL
from tests.golden.sample import altered, but, closed_loop, record, result

one_run = cache(machine.one_run)  # facts are frozen, and a run takes a while


def beside(*sides: Result | Sequence[Result]) -> MachineComparison:
    named = [(f"results/{at}", [side] if isinstance(side, Result) else side) for at, side in enumerate(sides)]
    return compare_machines([(name, [judge(each) for each in side]) for name, side in named])


def on_another_machine(whole: Result) -> Result:
    devices = tuple(device.model_copy(update={"name": f"Basalt {device.kind}"}) for device in whole.devices)
    system = whole.system.model_copy(update={"cpu_model": "Basalt 1", "governor": "powersave"})
    return whole.model_copy(update={"devices": devices, "system": system})


def with_route(whole: Result, **changed: Any) -> Result:
    return altered(whole, lambda _: True, **{f"route__{name}": value for name, value in changed.items()})


def about(found: MachineComparison, label: str = "B") -> dict[str, str]:
    return {each.about: each.reason for each in found.uncompared if each.label == label}


def test_machines_of_different_kinds_are_side_by_side_and_not_tested() -> None:
    found = beside(runs([1_000_000])[0], on_another_machine(runs([500_000], 1)[0]))
    assert [(column.label, column.provenance.cpu_model) for column in found.machines] == [
        ("A", "Acme Quartz 9000"),
        ("B", "Basalt 1"),
    ]
    [row] = found.rows
    assert [solo.speed for solo in row.solos if solo] == pytest.approx([1000, 2000], rel=0.01)
    _, relative = row.relatives
    assert row.relatives[0] is None and relative is not None
    assert relative.estimate == pytest.approx(2, rel=0.01)
    assert relative.ends[0] < 2 < relative.ends[1]
    assert found.verdicts == {"B": ()} and found.comparable
    assert any("device model: Acme Quartz 9000 and Basalt cpu" in missed.reason for missed in found.uncompared)


def test_measurements_on_the_same_kind_of_device_are_tested_against_the_first() -> None:
    fast, slow = several([1_000_000, 1_001_000, 1_002_000])[0], several([1_200_000, 1_201_000, 1_202_000], 9)[0]
    found = beside(fast, slow, fast)
    assert {label: [test.verdict for test in tests] for label, tests in found.verdicts.items()} == {
        "B": ["slower"],
        "C": ["same"],
    }
    assert [solo and solo.runs for solo in found.rows[0].solos] == [3, 3, 3]


def test_machines_of_one_name_are_told_apart_by_their_instructions() -> None:
    [fast], [slow] = runs([1_000_000]), runs([2_000_000], 1)
    flags = {"avx2": slow, "avx512_bf16": fast}
    sides = [but(each, system__cpu_flags=("fma", flag)) for flag, each in flags.items()]
    found = beside(*sides)
    assert dict(forms.machines(found))["instructions"] == ["avx2", "avx512_bf16"], "but not those that both have"
    assert found.verdicts == {"B": ()}
    assert "instructions" not in dict(forms.machines(beside(sides[0], sides[0])))
    with pytest.raises(UsageError, match="cannot be merged: instructions: fma, avx2 and fma, avx512_bf16"):
        beside(sides, slow)


def test_the_best_route_is_the_fastest_valid_one() -> None:
    onnx = run_of(500_000, 2, adapter="onnxruntime").model_copy(update={"key": "b", "phase": "b"})
    wrong = Audit(gate=Gate(metric="error", at_most=0.1), finished=1, feeds=(0,), values=(0.5,))
    cheat = run_of(100_000, 3, adapter="cheat").model_copy(update={"key": "c", "phase": "c", "audit": wrong})
    found = beside(result(run_of(1_000_000, 1), onnx, cheat), runs([1_000_000])[0])
    [row] = found.rows
    assert [solo and solo.route.adapter for solo in row.solos] == ["onnxruntime", "torch"]
    assert row.relatives[1] and row.relatives[1].estimate == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"precision": "int8"}, "weight class: 16 and 8"),
        ({"tier": "smoke"}, "tier: edge and smoke"),
        ({"suite_version": "2"}, "suite version: 1 and 2"),
        ({"weights": "llama 1f3a"}, "weights: synthetic and llama 1f3a"),
        ({"suite_options": {"rows": "full"}}, "suite options: {} and {'rows': 'full'}"),
    ],
)
def test_routes_with_different_work_never_share_a_row(changed: dict[str, Any], reason: str) -> None:
    found = beside(runs([1_000_000])[0], with_route(runs([500_000], 1)[0], **changed))
    assert [[bool(solo) for solo in row.solos] for row in found.rows] == [[True, False], [False, True]]
    assert not found.comparable
    assert (
        about(found)["resnet50, single-stream, 16-bit weights"] == f"B has no valid route for the same work ({reason})"
    )


def test_formats_of_one_weight_class_share_a_row() -> None:
    found = beside(runs([1_000_000])[0], with_route(runs([500_000], 1)[0], precision="bf16"))
    [row] = found.rows
    assert [solo and solo.route.precision for solo in row.solos] == ["fp32", "bf16"] and found.comparable
    assert found.verdicts == {"B": ()}, "but the measurements are not alike, and not tested"


def test_a_route_without_an_interval_still_has_a_speed() -> None:
    short = result(record("a", "resnet50", "image", window(500_000, 1, feeds=10)))
    found = beside(runs([1_000_000])[0], short)
    _, relative = found.rows[0].relatives
    assert relative is not None and relative.low is None
    assert relative.estimate == pytest.approx(2, rel=0.1)
    assert relative.reason == ("the window of B has no interval (it is short or not steady): several runs are needed")


def test_what_failed_in_one_of_both_is_listed_with_its_reason() -> None:
    failed = result(record("a", "resnet50", "image", error=Failure(kind="crashed", message="signal 11")))
    found = beside(runs([1_000_000])[0], failed)
    assert about(found)["resnet50, single-stream, 16-bit weights"] == (
        "B has no valid route: it has no figure: crashed: signal 11"
    )
    assert not found.comparable
    other_target = beside(failed, runs([1_000_000])[0])
    assert about(other_target)["resnet50, single-stream, 16-bit weights"].startswith(
        "A has no valid route: it has no figure"
    )


def test_scores_of_one_mix_are_compared_with_the_intervals_of_both() -> None:
    found = beside(one_run(WATTS_AT_THE_WALL, runs=3), on_another_machine(one_run(WATTS_AT_THE_WALL * 2, runs=3)))
    score = found.machines[1].score
    assert score and score.watts == pytest.approx(2 * WATTS_AT_THE_WALL, rel=0.01)
    _, mx = found.mixes_per_kwh
    assert mx is not None and mx.low is not None and mx.high is not None
    assert mx.estimate == pytest.approx(0.5, rel=0.01) and mx.low < mx.estimate < mx.high
    assert not mx.reason
    assert "TX" not in about(found) and "MX" not in about(found)


def in_eight_bits(whole: Result) -> Result:
    """The records, and the rates that the plan was made from, at another precision."""
    phases = (
        but(each, placement__rates=tuple(but(rate, precision="int8") for rate in each.placement.rates))
        if each.placement
        else each
        for each in whole.phases
    )
    return but(with_route(whole, precision="int8"), phases=tuple(phases))


def test_an_indicative_score_has_a_speed_and_no_interval() -> None:
    found = beside(one_run(WATTS_AT_THE_WALL, runs=3), one_run(WATTS_AT_THE_WALL))
    assert found.mixes_per_hour[1] is not None and found.mixes_per_hour[1].low is None
    assert found.mixes_per_hour[1].reason == "B is indicative, without an interval of several runs"


@pytest.mark.parametrize("what", ["mix", "version", "weights", "boundary", "no meter", "no score"])
def test_scores_of_different_things_are_never_compared(what: str) -> None:
    a = one_run(WATTS_AT_THE_WALL)
    reason, b, only_mx = {
        "mix": ("mix: edge-9 and mine", but(a, mix__name="mine"), False),
        "version": ("version of llm: 1 and 2", with_route(a, suite_version="2"), False),
        "weights": ("weight class: 16 and 8", in_eight_bits(a), False),
        "boundary": (
            "energy boundary: wall and node; only equal boundaries are compared",
            but(a, domains=tuple(but(each, boundary="node") for each in a.domains)),
            True,
        ),
        "no meter": ("the efficiency of B was not measured: no meter was read", one_run(None), True),
        "no score": ("B has no score: no mix was asked for", a.model_copy(update={"mix": None}), False),
    }[what]
    found = beside(a, b)
    assert about(found)["MX"].startswith(reason) and found.mixes_per_kwh[1] is None
    assert ("TX" in about(found)) is not only_mx and (found.mixes_per_hour[1] is None) is not only_mx


def test_results_of_one_folder_are_one_column_with_the_median_score() -> None:
    whole = one_run(WATTS_AT_THE_WALL)
    days = [whole.model_copy(update={"created_utc": f"2026-01-0{day}T03:04:05+00:00"}) for day in (1, 2, 3)]
    found = beside(days[0], days)
    assert [column.results for column in found.machines] == [1, 3]
    assert found.machines[1].score is not None


@pytest.mark.parametrize("name", ["processor", "tier", "preset", "Mixmark"])
def test_results_that_are_not_of_one_plan_are_not_merged(name: str) -> None:
    [whole] = runs([1_000_000])
    changed = {
        "processor": on_another_machine(whole),
        "tier": whole.model_copy(update={"tier": "smoke"}),
        "preset": whole.model_copy(update={"preset": "standard"}),
        "Mixmark": whole.model_copy(update={"system": whole.system.model_copy(update={"mixmark": "9"})}),
    }[name]
    with pytest.raises(UsageError, match=f"results/1 holds results that cannot be merged: {name}: ") as caught:
        beside(whole, [whole, changed])
    assert "give the folder of each result by itself" in caught.value.hint


def test_a_copy_of_a_result_is_no_further_run() -> None:
    [whole] = runs([1_000_000])
    with pytest.raises(UsageError, match="results/1 holds the same result twice"):
        beside(whole, [whole, whole.model_copy()])
    assert beside(whole, whole).comparable, "but a result may be held against itself"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """`mixmark compare` with words in the place of folders."""
    [slow], [fast] = several([1_200_000, 1_201_000, 1_202_000], 9), several([1_000_000, 1_001_000, 1_002_000])
    folders = {
        "slow": [slow],
        "fast": [fast],
        "elsewhere": [on_another_machine(fast)],
        "llm": [result(record("b", "llm", "token", window(1_000_000, 1)))],
        "mixed up": [slow, on_another_machine(fast)],
        "one run": runs([1_000_000]),
        "both": [with_llm(fast)],
        "failed": [with_failed_llm(fast)],
        "wrong": [with_llm(fast, value=0.5)],
        "fp16": [with_llm(fast, "fp16")],
    }
    monkeypatch.setattr(command, "_judged", lambda path: [judge(each) for each in folders[str(path)]])
    return lambda *words: CliRunner().invoke(main, ["compare", *words])


def test_compare_exits_with_1_only_on_a_proven_regression(compared: Callable[..., Outcome]) -> None:
    gated = compared("fast", "slow", "--gate", "10")
    assert (gated.exit_code, "of B is slower by more than 10 %" in gated.stderr) == (1, True)
    assert "slower" in gated.stdout, "the comparison is printed all the same"
    third = compared("fast", "fast", "slow", "--gate", "10")
    assert (third.exit_code, "of C is slower" in third.stderr) == (1, True)
    assert compared("fast", "slow").exit_code == 0
    assert compared("fast", "slow", "--gate", "50").exit_code == 0
    assert compared("slow", "fast", "--gate", "0").exit_code == 0


def with_llm(whole: Result, precision: Precision = "fp32", value: float = 0.0) -> Result:
    """The result with a measurement of llm, whose outputs are `value` off."""
    llm = record("llm", "llm", "token", window(1_000_000, 1), precision=precision)
    audit = Audit(
        gate=Gate(metric="error", at_most=0.1), finished=len(llm.completions or ()), feeds=(0,), values=(value,)
    )
    return whole.model_copy(update={"records": (*whole.records, llm.model_copy(update={"audit": audit}))})


def with_failed_llm(whole: Result) -> Result:
    failed = record("llm", "llm", "token", error=Failure(kind="crashed", message="signal 11"))
    return whole.model_copy(update={"records": (*whole.records, failed)})


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("fast", "only in A"),
        ("failed", "crashed: signal 11"),
        ("wrong", "counts for nothing"),
        ("fp16", "not alike in precision: fp32 and fp16"),
    ],
)
def test_a_measurement_that_is_missing_or_failed_fails_the_gate(
    folder: str, reason: str, compared: Callable[..., Outcome]
) -> None:
    gated = compared("both", folder, "--gate", "50")
    assert gated.exit_code == 1
    assert "mixmark: B has no figure for llm on cpu:0 by torch in fp32, single-stream: " in gated.stderr
    assert reason in gated.stderr
    assert compared("both", folder).exit_code == 0
    back = compared(folder, "both", "--gate", "50")
    assert (back.exit_code, "B has no figure" in back.stderr) == (1 if folder == "fp16" else 0, folder == "fp16")
    assert ("could not be tested on" in back.stderr) == (folder in ("failed", "wrong")), "the baseline has none"


def test_what_a_gate_cannot_decide_is_named(compared: Callable[..., Outcome]) -> None:
    single = compared("one run", "one run", "--gate", "50")
    assert (single.exit_code, "of B is not decided: one run on each side" in single.stderr) == (0, True)
    near = compared("fast", "slow", "--gate", "16.7")
    assert (near.exit_code, "of its relative speed, 0.8" in near.stderr) == (0, True), near.stderr
    assert "not decided" not in compared("fast", "slow", "--gate", "50").stderr
    assert "not alike in device model" in compared("fast", "elsewhere", "--gate", "5").stderr


def test_a_result_that_is_invalid_fails_the_gate() -> None:
    good = one_run(None)
    assert not any(fails for fails, _ in beside(good, good).gate(0.5))
    crashed = {"error": Failure(kind="crashed", message="signal 11"), "completions": None}
    fails, line = next(beside(good, altered(good, lambda each: each.scenario == "mixed", **crashed)).gate(0.5))
    assert fails and line.startswith("B is invalid: ")
    lacking = tuple(each for each in good.records if not (each.route.suite == "llm" and each.scenario == "offline"))
    failing = [line for fails, line in beside(good, good.model_copy(update={"records": lacking})).gate(0.5) if fails]
    assert [line[:46] for line in failing] == ["B is invalid: mixed.1: the plan has llm on gpu"], "and no line for each"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("fast",), "compare needs at least two results"),
        (("fast", "slow", "--format", "pdf"), "pdf"),
        (("fast", "llm"), "these results have nothing in common to compare"),
        (("fast", "elsewhere", "--gate", "5"), "--gate found no solo measurement to test"),
        (("fast", "mixed up"), "mixed up holds results that cannot be merged: processor: "),
    ],
)
def test_compare_of_what_cannot_be_is_misuse(
    words: tuple[str, ...], reason: str, compared: Callable[..., Outcome]
) -> None:
    done = compared(*words)
    assert (done.exit_code, reason in done.stderr) == (2, True), done.stderr
    if "llm" in words:
        assert "B has no valid route" in done.stdout, "what differs is listed"


def test_a_folder_of_results_is_one_side(tmp_path: Path) -> None:
    """Such as an entry of a board, whose results lie in a folder below it."""
    later = Maker(2).result().model_copy(update={"created_utc": "2026-01-02T05:04:05+00:00"})
    for path, whole in (("entry/results/1", Maker().result()), ("entry/results/2", later), ("alone", later)):
        write(tmp_path / path, whole)
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "entry"), str(tmp_path / "alone"), "--json"])
    assert [each["results"] for each in json.loads(done.stdout)["machines"]] == [2, 1]


def test_the_history_shows_a_change_that_compare_finds() -> None:
    """MX at 300 W, at 303 W, which three runs 1 % apart do not tell from it, and at 200 W."""
    judged = [judge(machine.one_run(watts, runs=3)) for watts in (300.0, 303.0, 200.0)]
    rows = [command._in_history(each, judged[:at]) for at, each in enumerate(judged)]
    assert [row[1:3] for row in rows] == [("Acme Quartz 9000", "edge-9")] * 3
    assert [row[-1] for row in rows] == ["", "", "1.51 ×"] and all("± " in row[3] for row in rows), rows
    alone = judge(result(record("a", "llm", "token", closed_loop([[5]]))))
    assert command._in_history(alone, judged)[2:] == ("–", "–", "rough", "")


def test_a_damaged_folder_is_named_and_the_history_shows_the_others(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        write(tmp_path / name, Maker().result())
    (tmp_path / "bad/result.json").write_text("{")
    done = CliRunner().invoke(main, ["history", str(tmp_path)])
    assert (done.exit_code, len(done.stderr.splitlines()), "bad/result.json" in done.stderr) == (0, 1, True)
    assert done.stdout.count("2026-01-02") == 1, done.stdout
    assert CliRunner().invoke(main, ["history", str(tmp_path / "absent")]).exit_code == 2
