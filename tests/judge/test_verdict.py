"""What makes a result solid, fair, disturbed, invalid or unfinished."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Failure, Finding, Result
from mixmark.harness.judge import verdict as verdicts
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.findings import CODES, found
from mixmark.harness.judge.score import score, scored_runs
from mixmark.harness.judge.verdict import Verdict
from tests.fakes import machine
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.sample import GPU, altered, but, closed_loop, probe, record, result
from tests.judge.found import SECOND, Said, beside, block, done, facts, failed, gpu_state, not_none, says, six


def verdict(of: Result) -> tuple[str, Said]:
    """The word, and the first reason."""
    found = judge(of).verdict
    return found.word, facts(found.reasons[0])


def word(of: Result) -> str:
    return judge(of).verdict.word


def rules(of: Result) -> list[str]:
    return [each.rule for each in judge(of).verdict.reasons]


def test_three_runs_that_agree_are_solid() -> None:
    told, (code, _, values) = verdict(one_run(WATTS_AT_THE_WALL, runs=3))
    assert (told, code, values["runs"], round(values["widest_pct"], 1)) == ("solid", "score_graded.agree", 3, 2.7)


@pytest.mark.parametrize(
    ("tx", "verdict", "case"),
    [(0.029, "solid", "agree"), (0.09, "fair", "known"), (0.3, "rough", "known"), (None, "rough", "unknown")],
)
def test_the_less_certain_of_mx_and_tx_decides(tx: float | None, verdict: str, case: str) -> None:
    evidence = gather(one_run(WATTS_AT_THE_WALL, runs=3))
    result = evidence.result
    scored = score(result, scored_runs(result, (), {}), ())
    assert scored and scored.mixes_per_kwh and scored.mixes_per_kwh.half_width
    figure = Estimate(1.0) if tx is None else Estimate(1.0, 1 - tx, 1 + tx)
    evidence = replace(evidence, score=replace(scored, mixes_per_hour=figure))
    told = verdicts.verdict(evidence, (), (), 0)
    assert (told.word, told.reasons[0].code) == (verdict, f"score_graded.{case}")
    if tx and case == "known":
        assert told.reasons[0].values["widest_pct"] == pytest.approx(tx * 100)


def test_a_refused_route_is_no_run_that_agrees() -> None:
    steps = [[1000]] * 64, [[1001]] * 64, [[999]] * 64
    runs = [but(record(f"b{run}", "llm", "token", closed_loop(own)), run=run) for run, own in enumerate(steps, 1)]
    refused = record("c", "llm", "token", adapter="other", error=Failure(kind="unsupported", message="no fp32 here"))
    told, (code, _, values) = verdict(result(*runs, refused))
    assert (told, code, values["runs"], round(values["widest_pct"], 2)) == ("solid", "score_graded.agree", 3, 0.25)


@pytest.mark.parametrize(("throttled_s", "code"), [(1.2, "no_quota_throttling.much"), (0.5, "no_foreign_load.much")])
def test_a_quota_that_kept_more_time_from_it_than_others_used_is_the_reason(throttled_s: float, code: str) -> None:
    """Others use 45 % of two CPUs; the quota keeps 60 % or 25 % of them from the run."""
    quota = {"throttled_periods": 8, "throttled_ns": round(throttled_s * SECOND)}
    told = six(busy_ns=1_900_000_000, own_ns=1_000_000_000, **quota)
    assert verdict(told) == ("disturbed", says(code, "run", **_much(code)))
    assert rules(six(**quota))[0] != "no_quota_throttling" and word(six(**quota)) == "rough"


def _much(code: str) -> dict[str, object]:
    if code == "no_foreign_load.much":
        return {"used_pct": 45.0, "machine": "the machine", "share": ()}
    return {"periods": 40, "lost_pct": 60.0, "machine": "the machine", "share": ()}


def test_one_run_is_fair_however_good_it_is() -> None:
    told, (code, _, values) = verdict(one_run(WATTS_AT_THE_WALL))
    assert (told, code, round(values["widest_pct"], 2)) == ("fair", "score_graded.known", 0.75)
    assert ([each.code for each in values["why"]], values["remedy"]) == (
        ["margin.few"],
        "--preset ranked makes 3 runs of the mix",
    )


@pytest.mark.parametrize(
    ("busy_ns", "host", "why"),
    [(SECOND, None, "changed"), (SECOND, "KVM", "shared"), (1_020_000_000, "KVM", "no_foreign_load.noticed")],
)
def test_the_largest_cause_of_a_margin_is_what_was_seen_in_its_windows(
    busy_ns: int, host: str | None, why: str
) -> None:
    """The probes around the mix differ by 30 %. A load beside its windows disturbs nothing, and costs the rank."""
    told = one_run(None)
    around = [machine.probe("gpu:0", machine.GEMM, machine.READ, took_ns=each * SECOND // 10) for each in (10, 13)]
    probes = [each.model_copy(update=dict.fromkeys(("key", "phase"), f"around{n}.p")) for n, each in enumerate(around)]
    told = but(told, records=(*told.records, *probes), system__virtualization=host)

    def watched(scenario: str, **load: object) -> Assessment:
        blocks = tuple(block(second, **load) for second in range(1, 6))
        return judge(altered(told, lambda each: each.scenario == scenario, conditions=blocks))

    beside = watched("offline", busy_ns=2 * SECOND)
    assert "no_foreign_load.much" in [each.code for each in not_none(beside.score).unranked]
    for judged, expected in ((watched("mixed", busy_ns=busy_ns), why), (beside, "shared" if host else "changed")):
        reason = judged.verdict.reasons[0]
        codes = [each.code.removeprefix("margin.") for each in cast(tuple[Finding, ...], reason.values["why"])]
        assert (judged.verdict.word, reason.code, codes) == ("rough", "score_graded.known", [expected])
    assert watched("mixed", busy_ns=2 * SECOND).verdict.word == "disturbed"


def test_a_range_instead_of_a_number_is_rough() -> None:
    evidence = gather(one_run(None, runs=3))
    result = evidence.result
    scored = not_none(score(result, scored_runs(result, (), {}), ()))
    runs = tuple(replace(run, end_ns=run.begin_ns + 600 * SECOND) for run in scored.runs)
    ranged = replace(scored, runs=runs, mixes_per_hour=Estimate(1.0, 1.0, 1.2, kind="bracket"))
    told = verdicts.verdict(replace(evidence, score=ranged), (), (), 0)
    assert (told.word, told.reasons[0].code) == ("rough", "score_graded.bracket")
    assert told.remedy == "--preset standard waits up to 20 minutes, --preset official waits up to 60 minutes"
    brief = replace(ranged, runs=tuple(replace(run, end_ns=run.begin_ns + 30 * SECOND) for run in ranged.runs))
    assert not verdicts.verdict(replace(evidence, score=brief), (), (), 0).remedy, "it is the smoke tier's"


def test_a_loaded_machine_is_disturbed_from_a_twentieth_on() -> None:
    def loaded(share: float) -> Result:
        own_ns = round(1.9 * SECOND - share * 2 * SECOND)
        return six(busy_ns=round(1.9 * SECOND), own_ns=own_ns)

    much = says("no_foreign_load.much", "run", used_pct=46.0, machine="the machine", share=())
    assert verdict(loaded(0.46)) == ("disturbed", much)
    assert word(loaded(0.05)) == "rough"
    assert "no_foreign_load.noticed" in [each.code for each in judge(loaded(0.05)).verdict.reasons]
    assert "no_foreign_load" not in rules(six())


def test_a_load_that_only_a_quick_check_met_disturbs_no_figure() -> None:
    busy = six(busy_ns=round(1.9 * SECOND), own_ns=SECOND).records[0]
    quick = but(busy, key="screening.a", route__adapter="other", screening=True, phase="screening.a")
    quiet = six()
    told = quiet.model_copy(update={"records": (*quiet.records, quick)})
    assert (verdict(told), rules(told)) == (verdict(quiet), rules(quiet))
    assert ("no_foreign_load", "screening.a") in [(each.rule, each.about) for each in judge(told).findings]


def test_a_battery_that_gives_power_disturbs_and_one_that_is_charged_is_noticed() -> None:
    assert verdict(six(power_source="battery")) == ("disturbed", says("on_mains.much", "run", share=()))
    assert word(six(power_source="charging")) == "rough"
    assert "on_mains.noticed" in [each.code for each in judge(six(power_source="charging")).verdict.reasons]
    assert "on_mains" not in rules(six(power_source=None))


def test_a_hypervisor_that_takes_much_disturbs() -> None:
    much = says("no_steal_time.much", "run", stolen_pct=10.0, machine="the machine", share=())
    assert verdict(six(stolen_ns=SECOND // 5)) == ("disturbed", much)
    assert word(six(stolen_ns=SECOND // 10)) == "rough"


def test_a_machine_that_slows_down_for_heat_disturbs() -> None:
    """A quota is a setting of the machine; heat in one of twenty blocks is a note."""
    hot = says("no_thermal_throttling.much", "run", hot_pct=100.0, share=())
    assert verdict(six(thermal_throttles=1)) == ("disturbed", hot)
    _, (code, _, values) = verdict(beside(block(1, **gpu_state(reasons=("thermal limit",))), device=GPU))
    assert (code, values["hot_pct"], values["device"]) == ("no_accelerator_throttling.much", 100.0, GPU)


def test_a_probe_that_drifts_far_is_noticed_and_costs_the_rank() -> None:
    def drifting(percent: int) -> Result:
        return result(
            probe("a", 100, 400), record("b", "llm", "token", closed_loop([[9]])), probe("c", 100 + percent, 400)
        )

    both = result(probe("a", 100, 400), record("b", "llm", "token", closed_loop([[9]])), probe("c", 213, 640))
    for each in (drifting(113), both):  # and its bandwidth by 60 %
        assert word(each) == "rough" and "speed_stable.noticed" in [why.code for why in judge(each).verdict.reasons]
    assert rules(drifting(11))[-1] == "speed_stable"
    assert "speed_stable" not in rules(drifting(5))


TWICE = machine.probe("gpu:0", machine.GEMM, machine.READ, took_ns=2 * SECOND)
LATER = but(TWICE, key="later", phase="later")


def test_a_probe_that_drifts_beside_a_run_without_a_mix_is_judged() -> None:
    """No mix is whole without one of its suites, so the run's rate is 0."""
    told = one_run(WATTS_AT_THE_WALL)
    kept = [each for each in told.records if (each.scenario, each.route.suite) != ("mixed", "llm")]
    found = judge(but(told, records=(*kept, LATER)))
    assert "speed_stable" in [each.rule for each in found.verdict.reasons]
    assert found.score is not None and found.score.problems


@pytest.mark.parametrize(("runs", "costs"), [(3, False), (1, True)])
def test_a_probe_that_drifts_costs_runs_that_agree_no_rank(runs: int, costs: bool) -> None:
    """A probe lasts for seconds: on a shared host one moved by 38 % between mixes that agreed within 2.2 %."""
    told = one_run(WATTS_AT_THE_WALL, runs=runs)
    drifted = told.model_copy(update={"records": (*told.records, LATER)})
    found = judge(drifted)
    assert found.score and ("speed_stable.much" in [each.code for each in found.score.unranked]) == costs
    assert (found.verdict.word, "speed_stable" in rules(drifted)) == (("fair", True) if costs else ("solid", False))


def test_a_collapse_within_a_window_or_a_speed_that_wanders_leaves_a_suite_without_a_margin() -> None:
    def suite(steps: list[list[int]]) -> Result:
        return result(record("b", "resnet50", "image", closed_loop(steps)))

    def collapsed(slow: int) -> Result:
        return suite([[SECOND // 10]] * 100 + [[SECOND // 10 * slow // 10]] * 40 + [[SECOND // 10]] * 60)

    slow_drift = 1.0 + 0.4 * np.sin(np.linspace(0, 3 * np.pi, 600))
    for each in (collapsed(30), collapsed(11), suite([[int(1e7 / speed)] for speed in slow_drift.tolist()])):
        found, (code, _, values) = verdict(each)
        assert (found, code, values["why"][0].code) == ("rough", "score_graded.unknown", "margin.changed")
    assert "steady" in rules(collapsed(11)) and "steady" not in rules(collapsed(10))


def test_what_failed_is_invalid_and_names_itself() -> None:
    told = judge(failed("crashed")).verdict
    assert (told.word, told.reasons[0].code) == ("invalid", "finished.failed")
    assert told.reason.startswith("llm on cpu:0 by torch in fp32: crashed")
    assert verdict(result()) == ("invalid", says("finished.nothing", "run"))


def test_an_interrupted_run_is_unfinished() -> None:
    assert verdict(done().model_copy(update={"finished": False})) == ("unfinished", says("finished.interrupted", "run"))


def test_the_smoke_tier_is_at_best_fair() -> None:
    found = judge(done().model_copy(update={"tier": "smoke"})).verdict
    assert (found.word, found.reasons[0].code) == ("fair", "score_graded.smoke")


def test_a_reason_counts_the_measurements_that_it_is_about() -> None:
    full = six(memory_stall_ns=20_000_000)
    one_of_two = full.model_copy(update={"records": (*full.records, record("c", "llm", "token", closed_loop([[9]])))})
    for told, share in ((full, ()), (one_of_two, (1, 2))):
        noticed = says("no_memory_pressure.noticed", "run", share=share)
        assert noticed in [facts(each) for each in judge(told).verdict.reasons]


def test_a_run_that_goes_on_in_another_process_is_unfinished() -> None:
    live = done().model_copy(update={"live": True, "finished": False})
    assert verdict(live) == ("unfinished", says("finished.live", "run"))
    assert [each.code for each in judge(live).findings if each.rule == "finished"] == ["finished.live"]


def test_the_text_has_at_most_three_reasons_and_says_where_the_others_are() -> None:
    reasons = tuple(found("mix_complete.absent", why=why) for why in ("one", "two", "three", "four"))
    assert str(Verdict("fair", reasons)) == "fair: one; two; and 2 more reasons: see Findings (report --verbose)"
    assert str(Verdict("fair", reasons[:3])) == "fair: one; two; three"
    assert str(Verdict("fair", reasons[:1])) == "fair: one"


def test_every_rule_that_can_warn_is_noticed_or_has_a_verdict_of_its_own() -> None:
    warn = {code.partition(".")[0] for code, says in CODES.items() if says.severity == "warning"}
    noticed = {code.removesuffix(".noticed") for code in CODES if code.endswith(".noticed")}
    assert warn - noticed == {
        "finished",
        "mix_complete",
        "mix_bounded",
        "interval_known",
        "probed",
        "energy_complete",  # the score itself says which part of the machine is not metered
    }
