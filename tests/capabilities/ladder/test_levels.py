"""The ladder of a made-up machine, to the digit."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

from mixmark.harness.capabilities.ladder.levels import LARGEST_DELAY, Ladder
from mixmark.harness.capabilities.ladder.load import Load, due_ns, load_at
from mixmark.harness.capabilities.serving import policies
from mixmark.harness.capabilities.serving.request_queue import RequestQueue, request_units
from mixmark.harness.capabilities.serving.responses import requests_ns
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.schema import Absent, Completions, LatencyLimits, Metering, Record, Result, Samples
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.harness.plan.presets import PRESETS
from mixmark.reporters import report
from tests.fakes import machine
from tests.fakes.machine import record
from tests.golden.sample import altered
from tests.judge.found import facts, not_none, says

LEVELS = (0.75, 0.5, 0.25)
IDLE_W, FULL_W = 100.0, 600.0
LIMIT = LatencyLimits(percentile=0.9, total_ns=60 * machine.SECOND, source="a story")


def watts_at(level: float) -> float:
    """A machine that draws more than its share in between: 100 W idle, 600 W full, and 60 W above the line."""
    return IDLE_W + (FULL_W - IDLE_W) * level + 60 * (level < 1)


def metering(name: str, watts: float, end_ns: int) -> Metering:
    """Bare idle at 80 W, then ready idle, then the phase, each read 20 times a second."""
    at = np.arange(-20 * machine.SECOND, end_ns + 12 * machine.SECOND, machine.SECOND // 20)
    values = np.where(at < -11 * machine.SECOND, 80.0, np.where(at < 0, IDLE_W, np.where(at <= end_ns, watts, 80.0)))
    values = values + 1e-4 * np.resize((0, 1), len(at))
    rests = ((-19 * machine.SECOND, -12 * machine.SECOND), (end_ns + machine.SECOND, end_ns + 11 * machine.SECOND))
    return Metering(
        phase=name,
        begin_ns=int(at[0]),
        end_ns=int(at[-1]),
        cpu_ns=0,
        idle_ns=rests,
        ready_ns=(-10 * machine.SECOND, -machine.SECOND),
        samples={machine.WALL.id: Samples(at, at, values)},
    )


def level_of(result: Result, level: float) -> machine.Turn:
    """A level as simulated devices serve it."""
    placement = not_none(result.phases[0].placement)
    rate_per_s = placement.mixes_per_s
    limits = PRESETS["quick"].mix.model_copy(update={"max_ns": 10**13})
    load = load_at(level, rate_per_s, machine.MIX, request_units(machine.QUANTA), limits, seed=7)
    source = partial(RequestQueue, policy=policies.Planned, limits={}, due_ns=due_ns(load), units=load.request_units)
    name = f"load{round(level * 100)}"
    records, _ = machine.recorded(machine.example(until_s=1e6, source=source, may_wait=True), name, {}, load.length_ns)
    kept = {"arrival_delay_ns": 1000, "latency_limits": LIMIT}
    served = [each.model_copy(update=kept) for each in records]
    return machine.turn("ladder", load, served, placement)


def with_ladder(base: Result, *levels: machine.Turn) -> Result:
    names = [each.name for each in base.phases]
    ends = {
        each.phase: each.parent_window_ns[1]
        for each in (*base.records, *(record for _, records in levels for record in records))
        if each.parent_window_ns
    }
    powers = dict.fromkeys(names, watts_at(1)) | {each.name: watts_at(each.told(Load).level) for each, _ in levels}
    kept = [each for each in base.meterings if each.phase not in powers]
    read = (*kept, *(metering(name, watts, ends[name]) for name, watts in powers.items()))
    asked = {"ladder": {"levels": list(LEVELS)}}
    return machine.with_turns(base, asked, *levels, meterings=read)


@pytest.fixture(scope="module")
def base() -> Result:
    return machine.one_run(600.0)


@pytest.fixture(scope="module")
def ladder_result(base: Result) -> Result:
    return with_ladder(base, *(level_of(base, level) for level in LEVELS))


def ladder_of(judged: Assessment) -> Ladder:
    found = judged.experiments["ladder"]
    assert isinstance(found, Ladder)
    return found


def test_the_arithmetic_of_the_ladder(ladder_result: Result) -> None:
    found = ladder_of(judge(ladder_result))
    assert [level.target for level in found.levels] == list(LEVELS)
    assert found.ready_watts == pytest.approx(IDLE_W, rel=1e-4)
    assert found.bare_watts == pytest.approx(80, rel=1e-4)
    assert found.watts == pytest.approx(FULL_W, rel=1e-3)
    watts = [level.run.total.watts or 0.0 for level in found.levels]
    assert watts == pytest.approx([watts_at(level) for level in LEVELS], rel=1e-3)
    rates = [level.run.mixes_per_hour.estimate for level in found.levels]
    assert rates == pytest.approx([level * found.mixes_per_hour.estimate for level in LEVELS], rel=0.03)
    kilowatts = (FULL_W + sum(watts) + IDLE_W) / 1000
    assert found.mixes_per_kwh == pytest.approx((found.mixes_per_hour.estimate + sum(rates)) / kilowatts, rel=1e-3)
    assert found.idle_over_full == pytest.approx(1 / 6, rel=1e-3)


def test_the_goodput_is_the_highest_level_that_keeps_its_limits(ladder_result: Result) -> None:
    def at(total_s: float) -> float | None:
        limits = LIMIT.model_copy(update={"total_ns": round(total_s * machine.SECOND)})
        limited = altered(ladder_result, lambda each: each.latency_limits is not None, latency_limits=limits)
        return ladder_of(judge(limited)).goodput

    slowest = [
        max(each.p90_ns or 0 for each in level.responses) / machine.SECOND
        for level in ladder_of(judge(ladder_result)).levels
    ]
    assert slowest == sorted(slowest, reverse=True), "the more arrives, the longer they wait"
    assert at(10 * slowest[0]) == 0.75
    assert at(0.01) is None
    assert at(slowest[1] * 1.3) in (0.5, 0.75)


def test_what_was_not_answered_or_taken_up_late_makes_a_level_void(base: Result) -> None:
    served, records = level_of(base, 0.5)
    lazy = [each.model_copy(update={"arrival_delay_ns": machine.SECOND}) for each in records]
    [late] = ladder_of(judge(with_ladder(base, (served, lazy)))).levels
    delayed = says(
        "mix_complete.delayed", "run", delay_ns=machine.SECOND, limit=LARGEST_DELAY, shortest_ns=60 * machine.SECOND
    )
    assert list(map(facts, late.problems)) == [delayed]
    half = []
    for each in records:
        done = not_none(each.completions)
        count = max(1, len(done) // 2)
        cut = Completions(
            done.due_ns[:count], done.issued_ns[:count], done.ends[:count], done.yielded_ns[:count], done.units[:count]
        )
        half.append(each.model_copy(update={"completions": cut}))
    [over] = ladder_of(judge(with_ladder(base, (served, half)))).levels
    assert "mix_complete.overloaded" in [each.code for each in over.problems]
    assert over.keeps_limits is False
    assert ladder_of(judge(with_ladder(base, (served, half)))).mixes_per_kwh is None


def test_a_feed_that_answers_what_never_arrived_contradicts_the_result(base: Result) -> None:
    served, records = level_of(base, 0.5)
    done = not_none(records[0].completions)
    moved = Completions(done.due_ns - 1, done.issued_ns, done.ends, done.yielded_ns, done.units)
    forged = [records[0].model_copy(update={"completions": moved}), *records[1:]]

    def about_load(levels: list[Record]) -> list[str]:
        told = contradictions(with_ladder(base, (served, levels)), SuiteClaims())
        return [each for each in told if "answered no request" in each]

    assert about_load(records) == []
    assert about_load(forged) == [f"{len(done)} feeds of load50 answered no request that arrived"]


def test_a_level_that_was_not_served_says_why(ladder_result: Result) -> None:
    why = Absent(kind="mix", name="edge-9 at 10 %", reason="one request takes longer")
    asked = {"ladder": {"levels": [*LEVELS, 0.1]}}
    judged = judge(ladder_result.model_copy(update={"absent": (why,), "experiments": asked}))
    assert judged.score is not None and not judged.score.problems, "the score does not depend on the ladder"
    text = report.console(judged)
    assert "not served: edge-9 at 10 %" in text
    assert "one request takes longer" in text


def test_a_request_of_several_feeds_lasts_from_when_it_was_due_until_the_last_is_done() -> None:
    due = np.array([0, 0, 5])
    done = Completions(due, np.array([1, 2, 6]), np.array([2, 4, 6]), np.array([3, 4, 7, 9, 8, 12]), np.array([1] * 6))
    made = record("load50", ("llm", "gpu:0"), done, (0, 20))
    first, total, per_unit = requests_ns([made], 4)
    assert (first.tolist(), total.tolist(), per_unit.tolist()) == ([3], [9], [3]), "the second lacks two units"


def test_what_was_asked_for_beside_the_mix_stands_before_its_picture() -> None:
    base = machine.one_run(600.0)
    text = report.html(judge(with_ladder(base, *(level_of(base, level) for level in LEVELS))))
    assert text.index("all latency limits are kept up to") < text.index('<figure class="timeline')


@pytest.mark.parametrize(("given", "words"), [("95", "nearer to it the queue"), ("half", "is not a list of levels")])
def test_levels_that_cannot_be_offered_are_misuse(given: str, words: str) -> None:
    done = CliRunner().invoke(main, ["run", "--ladder", given])
    assert (done.exit_code, words in done.stderr) == (2, True), done.stderr
