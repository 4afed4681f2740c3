"""What makes a result solid, fair, disturbed, invalid or unfinished."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge import verdict as verdicts
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.judgement import RULES, judge
from mixmark.harness.judge.mixed_run import Figure
from mixmark.harness.judge.score import score
from mixmark.harness.judge.verdict import Verdict
from mixmark.harness.plan import mixes
from mixmark.harness.plan.placement import place
from tests.fakes.machine import EDGE, MIX, WATTS_AT_THE_WALL, one_run
from tests.fakes.machine import result as made_up
from tests.golden.sample import closed_loop, probe, record, result
from tests.judge.found import SECOND, beside, block, done, failed, six


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})


def verdict(of: Result) -> tuple[str, str]:
    found = judge(of).verdict
    return found.word, found.reason


def rules(of: Result) -> list[str]:
    return [each.rule for each in judge(of).verdict.reasons]


def test_two_runs_that_agree_are_solid() -> None:
    assert verdict(one_run(WATTS_AT_THE_WALL, runs=2)) == (
        "solid",
        "2 runs agree within ±0.7 %, and nothing disturbed them",
    )


@pytest.mark.parametrize(("tx", "verdict"), [(0.04, "solid"), (0.3, "fair"), (None, "fair")])
def test_the_less_certain_of_mx_and_tx_decides(tx: float | None, verdict: str) -> None:
    evidence = gather(one_run(WATTS_AT_THE_WALL, runs=2))
    found = score(evidence.result, ())
    assert found and found.mixes_per_kj and found.mixes_per_kj.half_width
    figure = Figure(1.0) if tx is None else Figure(1.0, 1 - tx, 1 + tx)
    evidence = replace(evidence, score=replace(found, mixes_per_s=figure))
    told = verdicts.verdict(evidence, (), (), 0)
    assert told.word == verdict
    assert tx is None or f"±{tx * 100:.0f}" in told.reason


def test_one_run_is_fair_however_good_it_is() -> None:
    assert verdict(one_run(WATTS_AT_THE_WALL)) == ("fair", "one run does not show how far runs differ")


def test_a_score_without_an_interval_is_fair() -> None:
    short = one_run(WATTS_AT_THE_WALL).model_copy(update={"seed": 5})
    assert verdict(short) == (
        "fair",
        "the score is indicative and has no interval; the inputs were known beforehand, by --seed",
    )
    assert judge(short).verdict.remedy == "leave --seed away", "no preset helps"


@pytest.mark.parametrize(
    ("feeds", "preset"), [(2, "standard gives an interval"), (1, "official gives an interval, in hours")]
)
def test_the_preset_that_is_told_is_long_enough(feeds: int, preset: str) -> None:
    """A window of two minutes; standard has a quarter of an hour for ten feeds."""
    evidence = gather(one_run(None))
    found = score(evidence.result, ())
    assert found
    suites = tuple(replace(each, feeds=feeds) for each in found.runs[0].suites)
    run = replace(found.runs[0], begin_ns=0, end_ns=120 * SECOND, suites=suites)
    bare = replace(found, mixes_per_s=Figure(1.0), runs=(run,))
    told = verdicts.verdict(replace(evidence, score=bare), (), (), 0)
    assert told.remedy == f"--preset {preset}"


def test_a_loaded_machine_is_disturbed_from_a_twentieth_on() -> None:
    def loaded(share: float) -> Result:
        own_ns = round(1.9 * SECOND - share * 2 * SECOND)
        return six(busy_ns=round(1.9 * SECOND), own_ns=own_ns)

    assert verdict(loaded(0.46)) == ("disturbed", "other programs used up to 46 % of the machine")
    assert judge(loaded(0.46)).verdict.remedy == "run again on an idle machine, or with --wait-idle 60"
    assert verdict(loaded(0.05))[0] == "fair"
    assert "other programs ran" in verdict(loaded(0.05))[1]
    assert "no_foreign_load" not in rules(six())


def test_a_hypervisor_that_takes_much_disturbs() -> None:
    assert verdict(six(stolen_ns=SECOND // 5)) == (
        "disturbed",
        "the hypervisor gave up to 10 % of the CPUs' time to others",
    )
    assert verdict(six(stolen_ns=SECOND // 10))[0] == "fair"


def test_a_probe_that_drifts_far_disturbs() -> None:
    def drifting(percent: int) -> Result:
        return result(
            probe("a", 100, 400), record("b", "llm", "token", closed_loop([[9]])), probe("c", 100 + percent, 400)
        )

    assert verdict(drifting(113)) == ("disturbed", "the machine's speed drifted by 113 % during the run")
    assert verdict(drifting(25))[0] == "fair"
    assert rules(drifting(25))[-1] == "speed_stable"
    assert "speed_stable" not in rules(drifting(5))


def test_a_mix_faster_than_its_devices_alone_disturbs() -> None:
    calm = one_run(WATTS_AT_THE_WALL)
    assert "mix_bounded" not in rules(calm)
    [phase] = calm.phases
    assert phase.placement
    low = [rate.model_copy(update={"units_per_s": rate.units_per_s / 1.2}) for rate in phase.placement.rates]
    mixed = [each for each in calm.records if each.scenario == "mixed"]
    slowed = made_up([(mixed, place(MIX, low, calm.devices))], EDGE, None, 0, ("gpu:0", "cpu:0"))
    text = "the mix did 1.20 times what its devices alone allow, so those were slowed down"
    assert verdict(slowed) == ("disturbed", text)


def test_a_collapse_within_a_window_disturbs_if_it_moves_the_figure() -> None:
    def collapsed(slow: int) -> Result:
        steps = [[SECOND // 10]] * 200
        steps[100:140] = [[SECOND // 10 * slow // 10]] * 40
        return result(record("b", "resnet50", "image", closed_loop(steps)))

    assert verdict(collapsed(30)) == (
        "disturbed",
        "a change of speed within a window moved its figure by 38 %",
    )
    assert verdict(collapsed(11))[0] == "fair"
    assert "steady" in rules(collapsed(11))
    assert "steady" not in rules(collapsed(10))


def test_what_failed_is_invalid_and_names_itself() -> None:
    assert verdict(failed("crashed")) == ("invalid", "llm on cpu:0 by torch in fp32: crashed: so it is (do this)")
    assert verdict(result()) == ("invalid", "nothing was measured")


def test_an_interrupted_run_is_unfinished() -> None:
    assert verdict(done().model_copy(update={"finished": False})) == ("unfinished", "the run was interrupted")


def test_the_smoke_tier_is_at_best_fair() -> None:
    found = judge(done().model_copy(update={"tier": "smoke"})).verdict
    assert (found.word, found.reasons[0].text) == ("fair", "the smoke tier only shows that everything works")


def test_the_verdict_follows_the_exit_code() -> None:
    for each, code in ((done(), 0), (failed("crashed"), 1), (done().model_copy(update={"finished": False}), 130)):
        found = judge(each)
        assert found.exit_code == code
        assert (found.verdict.word in ("solid", "fair", "disturbed")) == (code == 0)


def test_a_reason_counts_the_measurements_that_it_is_about() -> None:
    hot = beside(*(block(second, thermal_throttles=1) for second in range(6)))
    assert "a CPU slowed down for heat" in verdict(hot)[1].split("; ")
    one_of_two = hot.model_copy(update={"records": (*hot.records, record("c", "llm", "token", closed_loop([[9]])))})
    assert "a CPU slowed down for heat (1 of 2 measurements)" in verdict(one_of_two)[1]


def test_a_run_that_goes_on_in_another_process_is_unfinished() -> None:
    live = done().model_copy(update={"live": True, "finished": False})
    assert verdict(live) == ("unfinished", "the run is still going on")
    [finding] = [each for each in judge(live).findings if each.rule == "finished"]
    assert (finding.severity, finding.message) == ("warning", "still going on in another process")


def test_a_speed_that_wanders_through_a_window_disturbs_its_figure() -> None:
    slow_drift = 1.0 + 0.4 * np.sin(np.linspace(0, 3 * np.pi, 600))
    steps = [[int(1e7 / speed)] for speed in slow_drift.tolist()]
    wandering = result(record("b", "resnet50", "image", closed_loop(steps)))
    found = judge(wandering)
    assert found.measured["b"].interval is None
    assert found.verdict.word == "disturbed"


def test_the_text_has_at_most_two_reasons_in_full() -> None:
    reasons = tuple(verdicts.VerdictReason("", text) for text in ("one", "two", "three", "four"))
    assert str(Verdict("fair", reasons)) == "fair: one; two; and 2 more"
    assert str(Verdict("fair", reasons[:1])) == "fair: one"


def test_every_rule_that_can_warn_is_a_reason_or_has_a_verdict_of_its_own() -> None:
    known = {*verdicts.NOTICED, *verdicts.ELSEWHERE}
    never = {
        "mix_complete",
        "score_graded",
        "audited",
        "no_orphans",
        "units_counted",
        "window_bracketed",
        "on_schedule",
    }
    never |= {
        "concurrency_kept",
        "threads_pinned",
        "never_suspended",
        "probed",
        "precise",
        "ceiling_known",
        "enough_feeds",
    }
    never |= {"energy_measured", "screened", "fastest_measured", "closed_cleanly", "hosts_took_part"}
    assert {rule.__name__ for rule in RULES} == known | never
