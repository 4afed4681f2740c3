"""The rules about the mix: what keeps them and what does not."""

from __future__ import annotations

import pytest

from harness import mixes
from harness.judge import mix
from harness.judge.judgement import judge
from harness.place import place
from harness.schema import (
    ServiceLimits,
)
from tests.fakes.machine import EDGE, MIX, WATTS_AT_THE_WALL, one_run
from tests.fakes.machine import result as made_up
from tests.judge.told import said


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})


def test_a_mix_that_came_whole_is_only_graded() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert said(mix.mix_complete, told) == []
    assert said(mix.mix_bounded, told) == []
    assert said(mix.mix_graded, told) == [("note", "run", "the score is provisional, not official: 1 of 5 runs")]


def test_a_mix_that_is_not_whole_has_no_score() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    lacking = told.model_copy(update={"records": tuple(each for each in told.records if each.route.suite != "dlrm")})
    assert said(mix.mix_complete, lacking) == [("invalid", "run", "no score: dlrm: no feed finished")]
    assert said(mix.mix_graded, lacking) == []


def test_a_mix_of_ones_own_is_never_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert told.mix
    own = told.model_copy(update={"mix": told.mix.model_copy(update={"name": "mine"})})
    assert said(mix.mix_graded, own)[-1][2] == "the score is not ranked: mine is a mix of one's own"
    assert said(mix.mix_complete, own) == []
    newer = told.model_copy(update={"mix": told.mix.model_copy(update={"name": "edge-10"})})
    unknown = "the score is not ranked: edge-10 is none of the mixes that this version knows"
    assert said(mix.mix_graded, newer)[-1][2] == unknown
    small = told.mix.model_copy(update={"name": "smoke-1", "tier": "smoke"})
    monkeypatch.setattr(mixes, "frozen", lambda: {"smoke-1": small})
    smoke = told.model_copy(update={"mix": small})
    assert said(mix.mix_graded, smoke)[-1][2].startswith("the score is not ranked: the smoke tier")


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
    forged = told.model_copy(update={"mix": told.mix.model_copy(update=change)})
    false = ("invalid", "run", "no score: this is not the mix that was published as edge-9")
    assert false in said(mix.mix_complete, forged)
    found = judge(forged).score
    assert found and (found.mixes_per_s, found.mixes_per_kj) == (None, None)


def test_a_plan_has_the_rates_of_the_solo_records() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    [phase] = told.phases
    assert phase.placement
    [first, *others] = phase.placement.rates
    first = first.model_copy(update={"units_per_s": first.units_per_s * 2})
    forged = place(MIX, [first, *others], told.devices)
    flattered = told.model_copy(update={"phases": (phase.model_copy(update={"placement": forged}),)})
    [(severity, _, message)] = said(mix.mix_complete, flattered)
    assert (severity, message) == (
        "invalid",
        "no score: mixed.1: λ* is not proven: "
        "the plan has llm on gpu:0 at 200 units/s, and its solo record 100 units/s",
    )
    lost = told.model_copy(update={"records": tuple(each for each in told.records if each.key != "solo.llm.gpu-0")})
    [(severity, _, message)] = said(mix.mix_complete, lost)
    assert (severity, message) == (
        "invalid",
        "no score: mixed.1: λ* is not proven: the plan has llm on gpu:0 at 100 units/s, and no solo record that passed",
    )


def test_more_than_the_bound_means_that_the_solo_rates_are_too_low() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    [phase] = told.phases
    assert phase.placement
    plan, devices = phase.placement, told.devices
    low = [rate.model_copy(update={"units_per_s": rate.units_per_s / 1.2}) for rate in plan.rates]
    played = [each for each in told.records if each.scenario == "mixed"]
    sandbagged = made_up([(played, place(MIX, low, devices))], EDGE, None, 0, ("gpu:0", "cpu:0"))
    [(severity, about, message)] = said(mix.mix_bounded, sandbagged)
    assert (severity, about) == ("warning", "run")
    assert message.startswith("mixed.1: κ is 1.20, at least 1.1")
    false = phase.model_copy(update={"placement": plan.model_copy(update={"bound_per_s": 0.3})})
    unproven = told.model_copy(update={"phases": (false,)})
    [(severity, _, message)] = said(mix.mix_complete, unproven)
    assert severity == "invalid"
    assert "is not proven" in message


def test_a_score_whose_bound_is_not_proven_is_none() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    [phase] = told.phases
    assert phase.placement
    false = phase.model_copy(update={"placement": phase.placement.model_copy(update={"bound_per_s": 0.3})})
    honest, forged = judge(told), judge(told.model_copy(update={"phases": (false,)}))
    assert honest.score and honest.score.mixes_per_kj and honest.exit_code == 0
    assert forged.score and (forged.score.mixes_per_s, forged.score.mixes_per_kj) == (None, None)
    assert forged.score.headline.startswith("NO SCORE: mixed.1: λ* is not proven")
    assert forged.exit_code == 1
