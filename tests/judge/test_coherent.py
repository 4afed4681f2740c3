"""A folder whose parts contradict each other shows nothing: each forgery here was made in one place and forgotten in
another."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness.judge.coherent import contradictions
from harness.schema import Failure
from tests.fakes.machine import one_run

RUNS = one_run(600.0, runs=3)
FIRST = RUNS.records[0]


def told(**changed: Any) -> list[str]:
    return list(contradictions(RUNS.model_copy(update=changed)))


def instead(**changed: Any) -> list[str]:
    """Of the first record."""
    return told(records=(FIRST.model_copy(update=changed), *RUNS.records[1:]))


def only(*runs: int) -> list[str]:
    """The best ones, say."""
    kept = {f"mixed.{run}" for run in runs}
    return told(
        phases=tuple(each for each in RUNS.phases if each.name in kept),
        records=tuple(each for each in RUNS.records if each.phase in kept),
    )


def audit(**changed: Any) -> list[str]:
    assert FIRST.audit is not None
    return instead(audit=FIRST.audit.model_copy(update=changed))


def test_what_was_measured_does_not_contradict_itself() -> None:
    assert told() == []
    failed = FIRST.model_copy(update={"completions": None, "audit": None, "error": Failure(kind="hung", message="…")})
    assert told(records=(failed, *RUNS.records[1:])) == []


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        (told(tier="smoke"), "a run of the smoke tier holds something of the edge tier"),
        (told(domains=()), "in mixed.1 a meter read wall, which is not among the domains"),
        (told(devices=RUNS.devices[:1]), r"mixed\.1\..*cpu-0 ran on cpu:0, which is not among the devices"),
        (told(devices=RUNS.devices * 2), "two of the devices have the same name"),
        (told(domains=RUNS.domains * 2), "two of the domains have the same name"),
        (told(phases=(*RUNS.phases, RUNS.phases[0])), "two of the phases have the same name"),
        (told(meterings=RUNS.meterings * 2), "two of the meterings have the same name"),
        (only(2, 3), "the mixed runs are numbered 2, 3: some were left out"),
        (only(1, 3), "the mixed runs are numbered 1, 3: some were left out"),
        (told(records=(*RUNS.records, FIRST.model_copy(update={"key": "again"}))), "again was not planned in mixed.1"),
        (instead(phase="mixed.2"), "was not planned in mixed.2"),
        (instead(bracket_ns=None), r"has stamps and no bracket_ns"),
        (instead(feed_units=None), r"has stamps and no feed_units"),
        (instead(skew_ns=None), r"has stamps and no skew_ns"),
        (instead(bracket_ns=(0, 1)), r"did not begin and end with mixed.1"),
        (instead(batch=64), "was not planned"),
        (instead(route=FIRST.route.model_copy(update={"precision": "int8"})), "was not planned"),
    ],
    ids=str,
)
def test_what_is_changed_in_one_place_only_is_found(forged: list[str], said: str) -> None:
    assert forged and re.search(said, forged[0])


def test_a_part_that_is_planned_twice_would_count_twice() -> None:
    twin = FIRST.model_copy(update={"key": "twin"})
    first, *others = RUNS.phases
    tasks = tuple(
        task.model_copy(update={"shares": (*task.shares, share.model_copy(update={"key": "twin"}))})
        if (share := next((each for each in task.shares if each.key == FIRST.key), None))
        else task
        for task in first.tasks
    )
    phases = (first.model_copy(update={"tasks": tasks}), *others)
    [said] = told(phases=phases, records=(*RUNS.records, twin))
    assert re.fullmatch(r"\w+ ran twice at once on .* in mixed\.1", said)


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        (audit(values=(0.1,) * 41), "has 41 values of 40 audited feeds"),
        (audit(values=(0.1,) * 39), "has 39 values of 40 audited feeds"),
        (audit(feeds=(0,) * 40), "drawn from"),
        (audit(finished=39), "drawn from 39"),
        (audit(finished=10**6), "finished .* feeds, and others are said to be audited"),
        (audit(feeds=(-1, *range(39))), "others are said to be audited"),
        (audit(feeds=(*range(39), 10**6)), "others are said to be audited"),
    ],
    ids=str,
)
def test_an_audit_is_of_feeds_that_were_finished(forged: list[str], said: str) -> None:
    assert len(forged) == 1 and re.search(said, forged[0])


def test_an_audit_that_is_drawn_and_not_done_yet_is_no_contradiction() -> None:
    assert audit(values=()) == []
