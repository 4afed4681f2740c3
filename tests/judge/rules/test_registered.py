"""The registry of rules: any module registers one, and the case `unranked` costs the rank wherever the rule stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from mixmark.harness.contracts.schema import Failure, Finding, Result
from mixmark.harness.judge import findings
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.evidence import Evidence, Measurement
from mixmark.harness.judge.findings import cause, declare, found, is_much, note, voided, warning, words
from mixmark.harness.judge.rules import registered
from mixmark.harness.judge.rules.registered import Room
from tests.judge.found import not_none, scored
from tests.judge.test_score import five


@pytest.fixture(autouse=True)
def _of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares and registers is gone after it."""
    monkeypatch.setattr(findings, "CODES", {**findings.CODES})
    monkeypatch.setattr(registered, "RULES", {**registered.RULES})


def records(**changed: object) -> Result:
    told = five()
    return told.model_copy(update={"records": tuple(each.model_copy(update=changed) for each in told.records)})


ROOMS: dict[str, Callable[[], Result]] = {
    "closed_cleanly": partial(records, close_failure=Failure(kind="raised", message="it was shut")),
    "no_orphans": partial(records, helper_processes=("acmed",)),
    "too_good": five,
}
"""A rule of each room, and of a module outside of the judge, with an official result that it has something to say
about."""


@pytest.mark.parametrize("name", ROOMS)
def test_a_rule_of_any_room_costs_the_rank_if_it_says_so(name: str) -> None:
    @Room(1).rule(warning("{score:.0f} mixes an hour are too good"))
    def too_good(evidence: Evidence) -> Iterator[Finding]:
        assert evidence.score and evidence.score.mixes_per_hour
        yield found("too_good", score=evidence.score.mixes_per_hour.estimate)

    told = ROOMS[name]()
    assert name in {finding.rule for finding in judge(told).findings}
    assert scored(told).grade == "official"
    declare(name, unranked=warning("no rank for it"))
    assert {words(each) for each in scored(told).unranked} == {"no rank for it"}
    assert scored(told).grade == "indicative"
    assert judge(told).findings[-1].code == "too_good", "the lightest rule"


def test_what_a_rule_of_any_room_finds_much_of_disturbs() -> None:
    @Room(1).record_rule(much=cause("{degrees:.0f} °C{share:share}"))
    def cool(measured: Measurement) -> Iterator[Finding]:
        if measured.record.route.suite == "llm":
            yield found("cool.much", measured.key, degrees=60 + measured.record.run)

    judged = judge(five())
    assert (judged.verdict.word, [words(each) for each in judged.verdict.reasons]) == (
        "disturbed",
        ["65 °C (5 of 20 measurements)"],
    )
    assert "cool.much" in {each.code for each in not_none(judged.score).unranked}
    assert not {each for each in judged.findings if is_much(each)}


def test_a_finding_is_about_what_it_voids() -> None:
    assert voided([found("audited.pending", "a"), found("consistency", "b"), found("seed_random", "c")]) == {"a", "b"}


def test_a_code_is_declared_once() -> None:
    with pytest.raises(ValueError, match=r"declared twice: steady\.unknown"):
        declare("steady", unknown=note("who knows"), often=note("many"))
    assert "steady.often" not in findings.CODES
