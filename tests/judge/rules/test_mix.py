"""The rules about the mix: what keeps them and what does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mixmark.harness.contracts.schema import Finding, Rate, Result, ServiceLimits
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.findings import found
from mixmark.harness.judge.rules import quality
from mixmark.harness.plan import mixes
from mixmark.harness.plan.placement import place
from tests.fakes.machine import (
    EDGE,
    GPU_AND_CPU,
    MIX,
    QUANTA,
    WATTS_AT_THE_WALL,
    Machine,
    device,
    one_run,
    recorded,
    solo,
)
from tests.fakes.machine import result as made_up
from tests.golden.sample import but
from tests.judge.found import Said, not_none, said, says


def lacking(*missing: Finding) -> Said:
    return says("score_graded.missing", "run", grade="indicative", better="ranked", missing=missing)


def test_a_mix_that_came_whole_is_only_graded() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert said(quality.mix_complete, told) == []
    assert said(quality.mix_bounded, told) == []
    assert said(quality.score_graded, told) == [lacking(found("score_graded.runs", runs=1, needed=3))]


def test_a_mix_of_ones_own_is_never_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert told.mix
    own = but(told, mix__name="mine")
    assert said(quality.mix_complete, own) == []
    newer = but(told, mix__name="edge-10")
    small = but(told.mix, name="smoke-1", tier="smoke")
    monkeypatch.setattr(mixes, "frozen", lambda: {"smoke-1": small})
    for each, code in (
        (own, "score_graded.own_mix"),
        (newer, "score_graded.unknown_mix"),
        (but(told, mix=small), "score_graded.smoke"),
    ):
        score = judge(each).score
        assert score and (score.grade, score.missing[0].code) == ("indicative", code)


@pytest.mark.parametrize(
    "change",
    [
        {"units": {**MIX, "llm": 199.0}},
        {"limits": {"dlrm": ServiceLimits(total_ns=1)}},
        {"limits": {"dlrm": ServiceLimits(total_ns=3_600_000_000_000)}},
        {"units": {suite: count for suite, count in MIX.items() if suite != "llm"}},
    ],
    ids=str,
)
def test_another_mix_under_a_published_name_has_no_score(change: dict[str, object]) -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert told.mix
    forged = but(told, mix=told.mix.model_copy(update=change))
    assert says("mix_complete.other_mix", "run", mix="edge-9") in said(quality.mix_complete, forged)
    found = judge(forged).score
    assert found and (found.mixes_per_hour, found.mixes_per_kwh) == (None, None)


def test_a_plan_has_the_rates_of_the_solo_records() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    [first, *others] = rates_of(told)
    first = but(first, units_per_s=first.units_per_s * 2)
    flattered = replanned(told, **dict(place(MIX, [first, *others], told.devices)))
    lost = but(told, records=tuple(each for each in told.records if each.key != "solo.llm.gpu-0"))
    route = {"phase": "mixed.1", "suite": "llm", "device": "gpu:0"}
    other = says("mix_complete.other_rate", "run", **route, planned_per_s=200.0, measured_per_s=100.0)
    assert said(quality.mix_complete, flattered) == [other]
    assert said(quality.mix_complete, lost) == [says("mix_complete.no_rate", "run", **route, planned_per_s=100.0)]


def sandbagged(told: Result, slower: Mapping[str, float]) -> Result:
    """A machine that was so many times slower when these suites were measured alone."""
    rates = [but(rate, units_per_s=rate.units_per_s / slower.get(rate.suite, 1.0)) for rate in rates_of(told)]
    played = [each for each in told.records if each.scenario == "mixed"]
    return made_up([(played, place(MIX, rates, told.devices))], EDGE, None, 0, ("gpu:0", "cpu:0"))


def test_a_mix_within_the_intervals_of_its_rates_is_bounded_and_kappa_is_as_unsure_as_they_are() -> None:
    """The solo records have one feed each, so their rates are unsure by 5 %, and κ with them."""
    told = sandbagged(one_run(WATTS_AT_THE_WALL), dict.fromkeys(MIX, 1.04))
    assert said(quality.mix_bounded, told) == []
    seen = judge(told).diagnoses["mixed.1"]
    assert seen.bound_per_hour.estimate == pytest.approx(seen.plan.bound_per_s * 3600)
    assert seen.bound_per_hour.half_width == pytest.approx(0.05)
    assert seen.kappa.estimate == pytest.approx(1.04, abs=5e-3)
    assert seen.kappa.low and seen.kappa.low < 1 < seen.kappa.estimate


def test_a_mix_that_does_more_than_its_bound_shows_that_the_solo_rates_are_too_low() -> None:
    told = sandbagged(one_run(WATTS_AT_THE_WALL), dict.fromkeys(MIX, 1.2))
    assert judge(told).verdict.word == "disturbed"
    [(code, _, values)] = said(quality.mix_bounded, told)
    assert (code, values["phase"], round(values["kappa"], 1)) == ("mix_bounded", "mixed.1", 1.2)
    assert 1 < values["lowest"] < values["kappa"]


def test_feeds_that_overlap_more_than_alone_prove_no_rate_too_low() -> None:
    """The device ran two feeds at a time in the mix, and one alone."""
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, concurrency=2)
    machine.run(100)
    half = place(MIX, solo({pair: rate / 2 for pair, rate in GPU_AND_CPU.items()}), [device("gpu:0"), device("cpu:0")])
    records, _ = recorded(machine)
    told = made_up([(records, half)], EDGE, None, machine.now_ns, ("gpu:0", "cpu:0"))
    seen = judge(told).diagnoses["mixed.1"]
    assert seen.bound_is_estimate and seen.kappa.estimate > 1.8
    assert said(quality.mix_bounded, told) == []


def replanned(told: Result, **changed: object) -> Result:
    """The result with another placement in its only plan."""
    [phase] = told.phases
    placement = not_none(phase.placement).model_copy(update=changed)
    return but(told, phases=(but(phase, placement=placement),))


def rates_of(told: Result) -> tuple[Rate, ...]:
    return not_none(told.phases[0].placement).rates


def test_a_plan_that_lacks_a_suite_is_not_proven_whatever_the_mix_did() -> None:
    told = sandbagged(one_run(WATTS_AT_THE_WALL), {"dlrm": 1.2})
    fewer = tuple(rate for rate in rates_of(told) if rate.suite != "llm")
    [(code, _, values)] = said(quality.mix_complete, replanned(told, rates=fewer))
    assert (code, values["phase"]) == ("mix_complete.unproven", "mixed.1")


def test_a_score_whose_bound_is_not_proven_is_none() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    honest, forged = judge(told), judge(replanned(told, bound_per_s=0.3))
    assert honest.score and honest.score.mixes_per_kwh and honest.exit_code == 0
    assert forged.score and (forged.score.mixes_per_hour, forged.score.mixes_per_kwh) == (None, None)
    assert [each.code for each in forged.score.problems] == ["mix_complete.unproven"]
    assert forged.exit_code == 1
