"""The classes of entries with their reasons, the score over several results, and the level of an energy measurement."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Domain, Environment, Metering, Record, Result, Samples
from mixmark.harness.judge import score as scoring
from mixmark.harness.judge.judgement import judge
from mixmark.harness.plan import mixes
from mixmark.submissions.conclude import Contribution, contribution_of, entry, total, whole
from mixmark.submissions.entry import Entry, Signed
from tests.fakes.folders import SECOND, Maker
from tests.submissions.made import DECLARED, ITEM

RESULT = Maker().result(runs=2)
BUILT_IN = Environment(
    origin="built in", spec="mixmark.harness.adapters.torch:Torch", python="CPython 3.12.3", mixmark="0.1.0"
)


def seen(result: Result = RESULT, number: int = 1) -> Contribution:
    return contribution_of(number, judge(result), "0" * 64)


def concluded(*results: Contribution) -> Entry:
    return entry(DECLARED, results, Signed(state="none"))


def published(told: Contribution) -> Contribution:
    """The same, as if the mix were a published one."""
    assert told.score is not None
    return replace(told, score=replace(told.score, mix=mixes.frozen()["smoke-1"], unranked=()))


CLOSED = published(seen())


def with_routes(**changes: Any) -> Result:
    """The result with other facts in the routes of the mixed records of dlrm."""

    def one(record: Record) -> Record:
        if record.scenario != "mixed" or record.route.suite != "dlrm":
            return record
        return record.model_copy(update={"route": record.route.model_copy(update=changes)})

    return RESULT.model_copy(update={"records": tuple(map(one, RESULT.records))})


def test_the_same_work_for_everybody_is_closed() -> None:
    found = concluded(CLOSED)
    assert (found.claim.division, found.reasons["division"]) == ("closed", ())


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (seen(), "two is none of the published mixes"),
        (replace(CLOSED, weights=frozenset({"llama.safetensors"})), "its weights are llama.safetensors"),
        (replace(CLOSED, suite_options=("dlrm",)), "the suite dlrm has options"),
        (replace(CLOSED, seed_given=True), "its seed was given"),
    ],
)
def test_other_work_is_open_and_says_why(told: Contribution, why: str) -> None:
    found = concluded(told)
    assert (found.claim.division, found.reasons["division"]) == ("open", (why,))


def test_what_a_result_tells_of_its_routes_reaches_the_classes() -> None:
    assert seen(with_routes(weights="x.safetensors")).weights == {"x.safetensors"}
    assert seen(with_routes(suite_options={"rows": "full"})).suite_options == ("dlrm",)
    assert seen(with_routes(options={"threads": "1"})).settings == ()  # each suite is on a device of its own
    assert seen(RESULT.model_copy(update={"seed": 7})).seed_given


@pytest.mark.parametrize(
    ("environment", "tuning"),
    [
        (BUILT_IN, "base"),
        (BUILT_IN.model_copy(update={"spec": "acme:Torch"}), "peak"),
        (BUILT_IN.model_copy(update={"origin": "acme 1.0"}), "peak"),
        (None, "peak"),
    ],
)
def test_only_built_in_adapters_are_base(environment: Environment | None, tuning: str) -> None:
    environments = {} if environment is None else {"torch": environment}
    found = concluded(seen(RESULT.model_copy(update={"environments": environments})))
    assert found.claim.tuning == tuning
    assert found.reasons["tuning"] == (() if tuning == "base" else ("the adapter torch is not a built-in one",))


def test_one_setting_for_all_suites_is_base_and_several_are_peak() -> None:
    told = replace(seen(), foreign=())
    assert concluded(told).claim.tuning == "base"
    found = concluded(replace(told, settings=("torch on cpu:0",)))
    assert (
        found.claim.tuning == "peak" and "torch on cpu:0 has other options for some suites" in found.reasons["tuning"]
    )


def test_an_entry_is_ranked_only_if_nothing_speaks_against_it() -> None:
    assert concluded(CLOSED).claim.ranked
    assert CLOSED.score is not None
    indicative = replace(CLOSED, score=replace(CLOSED.score, grade="indicative"))
    disturbed = replace(CLOSED, disturbed="disturbed: others ran")
    unproven = replace(CLOSED, score=replace(CLOSED.score, unranked=("it exceeds a ceiling",)))
    for told, why in (
        (indicative, "an indicative score has no place among others"),
        (disturbed, "result 1 is disturbed: others ran"),
        (unproven, "it exceeds a ceiling"),
    ):
        found = concluded(told)
        assert not found.claim.ranked and found.reasons["ranked"] == (why,)


# Several results


def test_the_score_of_several_results_is_that_of_all_their_runs() -> None:
    one, two = seen(), seen(Maker(2).result(), number=2)
    assert one.score is not None and two.score is not None
    runs = [*one.score.runs, *two.score.runs]
    found = whole((one, two))
    expected = math.exp(sum(math.log(run.mixes_per_s.estimate) for run in runs) / 3)
    assert found.mixes_per_s is not None and found.mixes_per_s.estimate == pytest.approx(expected, rel=1e-12)
    assert [run.phase for run in found.runs] == ["1/mix1", "1/mix2", "2/mix1"]
    assert "3 of 5 runs" in found.missing
    assert whole((one,)) is one.score


def test_a_system_has_an_entry_for_each_weight_class_of_a_mix() -> None:
    told = seen()
    assert told.score is not None
    four = replace(told, score=replace(told.score, weight_class=4))
    assert [entry(DECLARED, (each,), Signed(state="none")).path for each in (told, four)] == [
        "acme-sohne/acme-one/two-16-bit",
        "acme-sohne/acme-one/two-4-bit",
    ]


def test_the_worst_of_several_results_counts() -> None:
    one = seen()
    assert one.score is not None
    narrow = replace(one.score, weight_class=4, unranked=("slow",))
    found = scoring.joined([one.score, narrow], seed_given=True)
    assert (found.weight_class, found.grade) == (4, "indicative")
    assert "its seed was given" in found.missing
    assert set(found.unranked) == {*one.score.unranked, "slow"}


def test_results_with_other_boundaries_have_no_common_efficiency() -> None:
    one = seen()
    assert one.score is not None
    runs = tuple(replace(run, total=replace(run.total, boundary="wall")) for run in one.score.runs)
    found = scoring.joined([one.score, replace(one.score, runs=runs)], seed_given=False)
    assert found.mixes_per_kj is None and "different boundaries" in (found.unmeasured or "")
    assert found.mixes_per_s is not None


# Levels


def metered(domain: Domain, period_ns: int = SECOND // 20) -> Result:
    """The result with this domain as its only energy source."""

    def one(metering: Metering) -> Metering:
        at = np.arange(metering.begin_ns, metering.end_ns, period_ns)
        values = 300 + np.random.default_rng(1).random(len(at))
        if domain.quantity == "energy":
            values = np.cumsum(values) * period_ns / SECOND
        return metering.model_copy(update={"samples": {domain.id: Samples(at, at + 1000, values)}})

    return RESULT.model_copy(update={"domains": (domain,), "meterings": tuple(map(one, RESULT.meterings))})


def wall(**changes: Any) -> Domain:
    told = {"id": "wall", "meter": "external", "covers": ("node",), "boundary": "wall", "quantity": "power"}
    return Domain.model_validate({**told, "method": "external", "source": "a test", "accuracy": 0.01, **changes})


@pytest.mark.parametrize(
    ("domain", "levels"),
    [
        (wall(quantity="energy"), (3, 3, 3, 3)),
        (wall(), (2, 3, 3, 3)),
        (wall(accuracy=0.02), (2, 3, 3, 2)),
        (wall(accuracy=0.05), (2, 3, 3, 1)),
        (wall(accuracy=0.1), (2, 3, 3, 0)),
        (wall(accuracy=None), (2, 3, 3, 0)),
        (wall(boundary="node", method="integrated"), (2, 3, 3, 0)),
    ],
)
def test_the_level_is_the_lowest_of_four_aspects(domain: Domain, levels: tuple[int, ...]) -> None:
    found = concluded(seen(metered(domain)))
    assert found.claim.boundary == domain.boundary, found.unmeasured
    assert [each.name for each in found.aspects] == ["granularity", "fraction", "subsystems", "point"]
    assert tuple(each.level for each in found.aspects) == levels
    assert found.claim.level == min(levels)


def test_devices_alone_are_below_level_1() -> None:
    found = concluded(seen())
    assert found.claim.boundary == "devices" and found.claim.level == 0
    assert [each.level for each in found.aspects] == [3, 3, 1, 0]


def test_without_energy_there_is_no_level() -> None:
    found = concluded(seen(RESULT.model_copy(update={"domains": (), "meterings": ()})))
    assert found.claim.level is None and found.aspects == () and found.claim.watts is None
    assert found.unmeasured == "mix1: no meter was read; mix2: no meter was read"


# Prices


def test_a_price_is_the_sum_of_its_items_to_the_last_digit() -> None:
    cents = ITEM.model_copy(update={"quantity": 3, "unit_price": "0.10"})
    found = total((ITEM, cents))
    assert found is not None and (found.amount, found.currency) == ("2599.30", "EUR")
    assert total(()) is None
    assert total((ITEM, ITEM.model_copy(update={"currency": "USD"}))) is None
