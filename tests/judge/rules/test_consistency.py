"""A folder whose parts contradict each other shows nothing: each forgery here was made in one place and forgotten in
another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Completions, Conditions, Failure, LatencyLimits, Record, Samples
from mixmark.harness.judge.rules.consistency import NS_PER_S, SuiteClaims, contradictions
from mixmark.harness.machine import suite_claims
from mixmark.suites.dlrm import Dlrm
from tests.fakes.folders import Maker
from tests.golden.sample import but, later
from tests.judge.found import not_none

RUNS = Maker().result(runs=3)
FIRST_AT = next(at for at, each in enumerate(RUNS.records) if each.scenario == "mixed")
FIRST = RUNS.records[FIRST_AT]
SOLO = RUNS.records[1]
SECTION = SOLO.model_copy(update={"route": SOLO.route.model_copy(update={"suite_options": {"plugin": "gguf-file"}})})
PLUGGED = tuple(each.model_copy(update={"precisions_by_suite": {"gguf-file": ()}}) for each in RUNS.devices)


def told(**changed: Any) -> list[str]:
    return list(contradictions(RUNS.model_copy(update=changed), SuiteClaims()))


def instead(**changed: Any) -> list[str]:
    """What is said where the first record of a mixed phase is changed."""
    return told(records=tuple(FIRST.model_copy(update=changed) if each is FIRST else each for each in RUNS.records))


def alone(**changed: Any) -> list[str]:
    """What is said where a record of a suite alone is changed."""
    return told(records=tuple(SOLO.model_copy(update=changed) if each is SOLO else each for each in RUNS.records))


def metered(**changed: Any) -> list[str]:
    first, *others = RUNS.meterings
    return told(meterings=(first.model_copy(update=changed), *others))


def without(key: str) -> list[str]:
    return told(records=tuple(each for each in RUNS.records if each.key != key))


def moved(done: Completions, by_ns: int, times: float = 1) -> Completions:
    """Stamps that begin later, or last longer."""
    columns = ((column * times).astype(np.int64) + by_ns for column in (done.due_ns, done.issued_ns, done.yielded_ns))
    due_ns, issued_ns, yielded_ns = columns
    return Completions(due_ns, issued_ns, done.ends, yielded_ns, done.units)


def only(*runs: int) -> list[str]:
    """The best mixed runs, say."""
    gone = {f"mix{run}" for run in (1, 2, 3)} - {f"mix{run}" for run in runs}
    return told(
        phases=tuple(each for each in RUNS.phases if each.name not in gone),
        records=tuple(each for each in RUNS.records if each.phase not in gone),
        meterings=tuple(each for each in RUNS.meterings if each.phase not in gone),
    )


def audit(**changed: Any) -> list[str]:
    assert FIRST.audit is not None
    return instead(audit=FIRST.audit.model_copy(update=changed))


def read(joules: float, took_ns: int = 1000, by_ns: int = 0) -> dict[str, Samples]:
    """One reading of the package, at the begin of the first metering."""
    at = np.array([RUNS.meterings[0].begin_ns + by_ns])
    return {RUNS.domains[0].id: Samples(at, at + took_ns, np.array([joules]))}


def test_what_was_measured_does_not_contradict_itself() -> None:
    assert told() == []
    failed = but(FIRST, completions=None, audit=None, error=Failure(kind="hung", message="…"))
    assert told(records=tuple(failed if each is FIRST else each for each in RUNS.records)) == []
    assert without(FIRST.key) == []  # a share of a mix that never got a turn
    assert told(finished=False, records=RUNS.records[:4]) == []
    later = told(records=(*RUNS.records[:5], *(again(each) for each in RUNS.records[5:])), meterings=(), resumed=(5,))
    assert later == []  # the machine was restarted, and its clock with it


def again(record: Record) -> Record:
    """A record of a machine whose clock began anew."""
    return later(record, -60 * NS_PER_S)


def late(blocks: Sequence[Conditions]) -> tuple[Conditions, ...]:
    """A watch that begins in the last nanosecond of its first block."""
    first = next(at for at, block in enumerate(blocks) if not block.canary_ns)
    begun = but(blocks[first], begin_ns=blocks[first].end_ns - 1)
    return (*blocks[:first], begun, *blocks[first + 1 :])


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        (told(tier="edge"), "a run of the edge tier holds something of the smoke tier"),
        (told(domains=()), "in .* a meter read .*, which is not among the domains"),
        (told(devices=RUNS.devices[:1]), r"ran on gpu:GPU-0, which is not among the devices"),
        (told(devices=RUNS.devices * 2), "two of the devices have the same name"),
        (told(domains=RUNS.domains * 2), "two of the domains have the same name"),
        (told(phases=(*RUNS.phases, RUNS.phases[0])), "two of the phases have the same name"),
        (told(meterings=RUNS.meterings * 2), "two of the meterings have the same name"),
        (only(2, 3), "the mixed runs are numbered 2, 3: some were left out"),
        (only(1, 3), "the mixed runs are numbered 1, 3: some were left out"),
        (told(records=(*RUNS.records, but(FIRST, key="again"))), "again was not planned so in mix1"),
        (instead(phase="mix2"), "was not planned so in mix2"),
        (instead(parent_window_ns=None), r"has timestamps and no parent_window_ns"),
        (instead(feed_units=None), r"has timestamps and no feed_units"),
        (instead(stamped=False), r"has timestamps and no times of the parent"),
        (instead(parent_window_ns=(0, 1)), r"was watched for .* s longer than it was measured|did not begin and end"),
        (instead(batch=64), "was not planned"),
        (instead(route=but(FIRST.route, precision="int8")), "in int8, which .* does not offer"),
        (told(devices=PLUGGED, records=(SECTION, *RUNS.records[1:])), "in fp32, which cpu:0 does not offer"),
        (alone(scenario="server"), "was not planned"),
        (alone(run=2), "was not planned"),
        (without(SOLO.key), "was planned, and has neither timestamps nor an error"),
        (without(RUNS.records[0].key), "probe.* was planned, and has neither timestamps nor an error"),
        (told(finished=False, records=RUNS.records[1:3], meterings=()), "000.probe.* was left out"),
        (told(records=RUNS.records[::-1]), "was measured before its turn"),
        (alone(conditions=SOLO.conditions[::-1]), "do not follow each other"),
        (alone(conditions=RUNS.records[2].conditions), "was watched at another time than it was measured"),
        (alone(conditions=late(SOLO.conditions)), "was watched at another time than it was measured"),
        (metered(begin_ns=RUNS.meterings[0].end_ns), "was metered at another time than it was measured"),
        (metered(idle_ns=((RUNS.meterings[0].begin_ns, RUNS.meterings[0].end_ns),)), "the machine was not at rest"),
        (metered(samples=read(1e15)), "are impossible: their meter would have been given up"),
        (metered(samples=read(5, took_ns=2 * NS_PER_S + 1)), "are impossible: their meter would have been given up"),
        (metered(samples=read(5, by_ns=-9 * NS_PER_S)), "was read at another time than it was metered"),
        (
            told(records=(*RUNS.records[:-2], *map(again, RUNS.records[-2:])), meterings=()),
            "mix3 began before mix2 was",
        ),
        (told(resumed=(99,)), "it was resumed after more records than there are"),
    ],
)
def test_what_is_changed_in_one_place_only_is_found(forged: list[str], said: str) -> None:
    assert any(re.search(said, each) for each in forged), forged[:3]


def test_a_part_that_is_planned_twice_would_count_twice() -> None:
    twin = but(FIRST, key="twin")
    planned = next(each for each in RUNS.phases if each.name == FIRST.phase)
    tasks = tuple(
        but(task, shares=(*task.shares, but(share, key="twin")))
        if (share := next((each for each in task.shares if each.key == FIRST.key), None))
        else task
        for task in planned.tasks
    )
    phases = tuple(but(each, tasks=tasks) if each is planned else each for each in RUNS.phases)
    records = (*RUNS.records[: FIRST_AT + 1], twin, *RUNS.records[FIRST_AT + 1 :])
    first, *_ = told(phases=phases, records=records)
    assert re.fullmatch(r"\w+ ran twice at once on .* in mix1", first)


def test_a_mix_is_as_long_as_it_was_planned() -> None:
    assert FIRST.parent_window_ns is not None and FIRST.completions is not None
    begin_ns, end_ns = FIRST.parent_window_ns
    short = (begin_ns, begin_ns + (end_ns - begin_ns) // 3)

    def lasted(**changed: Any) -> list[str]:
        changed["parent_window_ns"] = short
        records = (each.model_copy(update=changed) if each.phase == "mix1" else each for each in RUNS.records)
        return [each for each in told(records=tuple(records)) if "lasted" in each]

    assert lasted() == ["mix1 lasted 4.0 s, which is shorter than planned"]
    assert lasted(cut_short=Failure(kind="hung", message="…")) == []
    assert any("did not begin and end with mix1" in each for each in instead(parent_window_ns=short))


def test_the_parts_of_a_mix_wait_for_the_last_feed() -> None:
    """A slow feed of one part runs on after the phase was over, and the watch with it."""
    by_ns = 20 * NS_PER_S
    parts = [each for each in RUNS.records if each.phase == "mix3"]
    slow, *others = parts
    canary = slow.conditions[-1]
    moved_canary = but(canary, begin_ns=canary.begin_ns + by_ns, end_ns=canary.end_ns + by_ns)
    block = but(slow.conditions[-2], end_ns=slow.conditions[-2].end_ns + by_ns)
    conditions = (*slow.conditions[:-2], block, moved_canary)
    done = not_none(slow.completions)
    yielded_ns = done.yielded_ns.copy()
    yielded_ns[-1] += by_ns
    late = Completions(done.due_ns, done.issued_ns, done.ends, yielded_ns, done.units)
    watched = [but(each, conditions=conditions) for each in others]
    before = tuple(each for each in RUNS.records if each.phase != "mix3")
    waited = but(slow, conditions=conditions, completions=late)
    assert told(records=(*before, waited, *watched), meterings=()) == []
    idle = but(slow, conditions=conditions)
    assert "longer than it was measured" in told(records=(*before, idle, *watched), meterings=())[0]


def test_a_copy_of_a_run_is_found_wherever_it_was_moved_to() -> None:
    second = next(each for each in RUNS.records if each.key == FIRST.key.replace("mix1", "mix2"))
    assert FIRST.completions is not None and second.completions is not None
    by_ns = int(second.completions.issued_ns[0] - FIRST.completions.issued_ns[0])
    copy = but(second, completions=moved(FIRST.completions, by_ns))
    [said] = told(records=tuple(copy if each is second else each for each in RUNS.records))
    assert said == f"{second.key} has the timestamps of {FIRST.key}"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"unit": "token"}, "counts 'token', and its suite counts sample"),
        ({"feed_units": 8}, "has feeds of 8 units, and its suite makes feeds of 4"),
        ({"costs": ()}, "has other costs than its suite"),
        ({"latency_limits": LatencyLimits(percentile=0.5, source="mine")}, "has other latency limits than its suite"),
    ],
)
def test_a_record_is_compared_with_the_code_of_its_suite(changed: dict[str, Any], said: str) -> None:
    forged = SOLO.model_copy(update=changed)
    claims = suite_claims.claims(RUNS)
    assert claims.unknown == {}
    assert list(contradictions(RUNS, claims)) == []
    records = tuple(forged if each is SOLO else each for each in RUNS.records)
    assert list(contradictions(but(RUNS, records=records), claims)) == [f"{SOLO.key} {said}"]


def test_a_suite_that_is_not_here_is_not_compared() -> None:
    foreign = but(SOLO, route__suite_version="9")
    told = but(RUNS, records=(foreign,))
    unknown = {SOLO.key: f"it ran version 9 of dlrm, and version {Dlrm.version} is installed"}
    assert suite_claims.claims(told) == SuiteClaims({}, unknown)
    stranger = but(SOLO, route__suite="acme")
    assert suite_claims.claims(but(RUNS, records=(stranger,))).unknown == {SOLO.key: "the suite acme is not installed"}
    broken = but(SOLO, route__suite_options={"rows": "full"})
    [why] = suite_claims.claims(but(RUNS, records=(broken,))).unknown.values()
    assert why.startswith("the suite dlrm does not build: ")


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        (audit(values=(0.1,) * 3), "has 3 values of 2 audited feeds"),
        (audit(values=(0.1,)), "has 1 value of 2 audited feeds"),
        (audit(feeds=(0, 0)), "audited twice"),
        (audit(finished=1), "drawn from 1"),
        (audit(finished=2), "its audit was drawn from 2"),
        (audit(finished=10**6), "finished .* feeds, and its audit was drawn from 1000000"),
        (audit(feeds=(-1, 0)), "its audit was drawn from"),
        (audit(feeds=(0, 10**6)), "its audit was drawn from"),
    ],
)
def test_an_audit_is_of_feeds_that_were_finished(forged: list[str], said: str) -> None:
    assert len(forged) == 1 and re.search(said, forged[0])


def test_an_audit_that_is_drawn_and_not_done_yet_is_no_contradiction() -> None:
    assert audit(values=()) == []
