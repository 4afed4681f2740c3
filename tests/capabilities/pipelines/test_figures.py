"""What ended in time, how long it took and where the time went, to the digit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from mixmark.harness.capabilities.pipelines.facts import Pipeline, PipelineWork
from mixmark.harness.capabilities.pipelines.figures import PipelineFigures, PipelineTurn, figures, out_of_turn
from mixmark.harness.capabilities.pipelines.queue import PipelineQueue
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Absent, Completions, Metering, Record, Result, Samples
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.reporters import report
from tests.capabilities.pipelines.chains import CHAIN, WORK, machine, records
from tests.fakes import machine as machines
from tests.fakes.machine import WALL, Machine, Rates, Turn, device
from tests.golden.sample import result as bare
from tests.judge.found import not_none

WATTS = 600.0
GPU: Rates = {("a", "gpu:0"): 100.0, ("b", "gpu:0"): 40.0}


def turn(made: Machine, in_flight: int, name: str, on: str | None = None, **facts: object) -> Turn:
    work = WORK.model_copy(update={"in_flight": in_flight, "device": on, **facts})
    return machines.turn("pipeline", work, records(made, name), made.placement)


def metering(name: str, end_ns: int) -> Metering:
    """Read often enough for a window of seconds."""
    at = np.arange(-(10**9), end_ns + 10**9, 10**7)
    samples = {WALL.id: Samples(at, at, WATTS + 1e-3 * np.resize((0, 1), len(at)))}
    return Metering(phase=name, begin_ns=int(at[0]), end_ns=int(at[-1]), cpu_ns=0, samples=samples)


def result(*turns: Turn, chain: Pipeline = CHAIN, metered: bool = True) -> Result:
    ends = {each.name: found[0].parent_window_ns[1] for each, found in turns if found[0].parent_window_ns}
    return bare(*(record for _, found in turns for record in found)).model_copy(
        update={
            "devices": (device("gpu:0"), device("cpu:0")),
            "phases": tuple(each for each, _ in turns),
            "experiments": {"pipeline": chain.model_dump(mode="json")},
            "domains": (WALL,) if metered else (),
            "meterings": tuple(metering(name, end) for name, end in ends.items()) if metered else (),
        }
    )


def both() -> tuple[Turn, Turn]:
    """Two in flight on both devices for 5.1 s, and one on the GPU for 6 s."""
    row, alone = machine(2), machine(1, GPU)
    row.run(5.15)
    alone.run(6.05)
    return turn(row, 2, "pipeline1"), turn(alone, 1, "pipeline1-alone", "gpu:0")


def found(*turns: Turn, chain: Pipeline = CHAIN) -> PipelineFigures:
    return figures(result(*turns, chain=chain), ())


def test_a_late_pipeline_is_no_work_and_its_joules_stay() -> None:
    """The second of five waits for the first, and takes 2.1 s of 2.05 s."""
    first = found(both()[0]).turns[0]
    assert (first.ended, first.in_time) == (5, 4)
    assert first.per_hour == pytest.approx(4 * 3600 / 5.1)
    assert first.per_kwh == pytest.approx(4 * 3.6e6 / (WATTS * 5.1), rel=1e-3)
    assert first.problems == ()
    blind = figures(result(both()[0], metered=False), ())
    assert (blind.per_hour is None, blind.turns[0].per_kwh, blind.per_kwh) == (False, None, None)
    slow = found(both()[0], chain=CHAIN.model_copy(update={"deadline_ns": 10**9}))
    assert slow.per_hour is not None and slow.per_hour.estimate == 0


def times_ns(made: PipelineTurn) -> tuple[float | None, ...]:
    return made.feeds_ns, made.waiting_ns, made.handover_ns


def test_where_the_time_went() -> None:
    """`b` waits 0.9 s for the CPU but for the first time, and `a` once 0.1 s for the GPU."""
    (made,) = found(both()[0]).turns
    assert times_ns(made) == pytest.approx((1.1e9, 2e7 + 4 * 9e8 / 5, 1), abs=5)
    assert made.took_ns == pytest.approx(1.84e9, abs=5)


def test_what_one_stage_hands_to_the_next_is_a_part_of_the_feeds() -> None:
    whole, (first, second) = both()[0]
    (made,) = found((whole, [first, second.model_copy(update={"carried_ns": 7 * 10**6})])).turns
    assert made.carried_ns == 7 * 10**6
    assert made.feeds_ns == pytest.approx(1.1e9, abs=5)


def test_handing_over_is_the_time_in_which_the_device_was_idle() -> None:
    made = machine(1)
    made.run(5.55)
    whole, (first, second) = turn(made, 1, "pipeline1")
    done = not_none(second.completions)
    later = Completions(done.due_ns, done.issued_ns + 10**6, done.ends, done.yielded_ns, done.units)
    (late,) = found((whole, [first, second.model_copy(update={"completions": later})])).turns
    assert times_ns(late) == pytest.approx((1.099e9, 0, 1e6), abs=5)


def test_the_gain() -> None:
    """The CPU does one pipeline a second. The GPU alone does one in 0.6 s."""
    made = found(*both())
    assert [each.device for each in made.turns] == [None, "gpu:0"]
    assert made.gain is not None
    assert made.gain.estimate == pytest.approx((4 / 5.1) / (1 / 0.6))
    assert made.reason is None


def test_a_turn_that_is_slow_alone_raises_no_gain() -> None:
    """On the GPU a tenth as fast as alone. Two devices may do 1 a second and the GPU 1 in 0.6 s: a gain of 0.6 at one
    speed."""
    slow = machine(1, GPU, lambda pair, at_s: GPU[pair] / 10)
    slow.run(60.5)
    alone = turn(slow, 1, "pipeline1-alone", "gpu:0")
    chain = CHAIN.model_copy(update={"deadline_ns": 7 * 10**9})
    made = found(both()[0], alone, chain=chain)
    assert made.gain is not None and made.gain.estimate == pytest.approx(5 / 5.1 * 6, rel=1e-3)
    assert made.turns[0].per_hour / made.turns[1].per_hour == pytest.approx(5 / 5.1 * 6, rel=1e-3)
    assert made.held == ("pipeline1-alone",)
    assert made.finding == (
        "All devices served 5.88 times as many pipelines as gpu:0 alone, and 0.600 times had the devices been as fast "
        "in both turns: no difference is shown."
    )
    assert found(*both()).held == ()


def test_whether_it_pays_is_said_first() -> None:
    made = found(*both())
    assert made.finding == "All devices served 0.471 times as many pipelines as gpu:0 alone: it does not pay here."
    for gain, pays in (
        (Estimate(1.04), "no difference is shown"),
        (Estimate(1.06), "it pays here"),
        (Estimate(1.04, 1.01, 1.07), "it pays here"),
        (Estimate(0.97, 0.94, 1.01), "no difference is shown"),
        (Estimate(0.97, 0.95, 0.99), "it does not pay here"),
    ):
        assert not_none(replace(made, gain=gain).finding).endswith(f": {pays}.")
    split = found(both()[0], whole_turn(), chain=CHAIN.model_copy(update={"whole": "c"}))
    assert split.finding == "Splitting served 0.392 times as many requests: it does not pay here."
    assert replace(made, gain=None).finding is None


def whole_turn() -> Turn:
    """The work of both stages in one feed of `c`, which takes the GPU 0.5 s: 10 in 5 s."""
    work, pair = PipelineWork(suites=("c",), units=(30,), in_flight=1, deadline_ns=1), ("c", "gpu:0")
    made = Machine({"c": 30}, {pair: 60.0}, {pair: 30}, source=partial(PipelineQueue, work=work))
    made.run(5.05)
    return machines.turn("pipeline", work, records(made, "pipeline1-whole"), made.placement)


def test_the_gain_over_whole_requests() -> None:
    chain = CHAIN.model_copy(update={"whole": "c"})
    made = found(both()[0], whole_turn(), chain=chain)
    assert [(each.whole, each.device, each.in_time) for each in made.turns] == [(False, None, 4), (True, None, 10)]
    assert made.gain_over_whole is not None
    assert made.gain_over_whole.estimate == pytest.approx((4 / 5.1) / 2)
    assert made.per_hour is not None and made.per_hour.estimate == pytest.approx(4 * 3600 / 5.1)
    assert found(*both()).gain_over_whole is None
    known = "pipeline1-whole runs other stages than the pipeline of the run"
    assert known not in list(contradictions(result(both()[0], whole_turn(), chain=chain), SuiteClaims()))
    assert known in list(contradictions(result(both()[0], whole_turn()), SuiteClaims()))


def test_why_there_is_no_gain() -> None:
    whole, alone = both()
    assert found(whole).reason == "no single device runs every stage"
    nothing = figures(result().model_copy(update={"finished": False}), ())
    assert (nothing.reason, nothing.per_hour) == ("the run ended before it", None)
    absent = Absent(kind="experiment", name="pipeline mine", reason="no device has a solo rate of b")
    assert figures(result().model_copy(update={"absent": (absent,)}), ()).reason == absent.reason
    late = found(whole, alone, chain=CHAIN.model_copy(update={"deadline_ns": 1}))
    assert (late.gain, late.reason) == (None, "a turn does not count, or none of its pipelines was in time")


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (lambda first, second: [first, unaudited(second)], "unaudited"),
        (lambda first, second: [first], "no_feed"),
        (lambda first, second: [], "unfinished"),
    ],
)
def test_a_stage_that_served_nothing_voids_the_turn(kept: Callable[..., list[Record]], problem: str) -> None:
    whole, both_stages = both()[0]
    made = result((whole, both_stages)).model_copy(update={"records": tuple(kept(*both_stages))})
    void = figures(made, ())
    assert [each.code for each in void.turns[0].problems] == [f"mix_complete.{problem}"]
    assert (void.per_hour, void.reason) == (None, "a turn does not count, or none of its pipelines was in time")


def unaudited(record: Record) -> Record:
    return record.model_copy(update={"audit": None, "unaudited": "it was lost"})


def test_a_window_in_which_no_pipeline_ended_does_not_count() -> None:
    whole, kept = both()[0]
    cut = [record.model_copy(update={"parent_window_ns": (0, 10**9 + 50)}) for record in kept]
    (only,) = found((whole, cut)).turns
    assert "mix_complete.no_unit" in [each.code for each in only.problems]


def moved(record: Record, by_ns: int) -> Record:
    done = not_none(record.completions)
    issued_ns = np.maximum(done.issued_ns - by_ns, done.due_ns)
    early = Completions(done.due_ns, issued_ns, done.ends, done.yielded_ns, done.units)
    return record.model_copy(update={"completions": early})


def test_a_stage_that_began_too_early_is_a_contradiction() -> None:
    whole, (first, second) = both()[0]
    fine = result((whole, [first, second]))
    wrong = result((whole, [first, moved(second, 10**9)]))
    assert out_of_turn(WORK, [first, second]) == 0
    assert out_of_turn(WORK, [first, moved(second, 10**9)]) == 5
    assert out_of_turn(WORK, [second]) == 5, "without the stage before"
    said = "5 pipelines of pipeline1 began a stage before the stage before was finished"
    assert said not in list(contradictions(fine, SuiteClaims()))
    assert said in list(contradictions(wrong, SuiteClaims()))


def test_a_phase_of_other_stages_is_a_contradiction() -> None:
    other = CHAIN.model_copy(update={"stages": CHAIN.stages[::-1]})
    said = "pipeline1 runs other stages than the pipeline of the run"
    assert said not in list(contradictions(result(both()[0]), SuiteClaims()))
    assert said in list(contradictions(result(both()[0], chain=other), SuiteClaims()))


def test_a_report_says_which_stage_voids_a_turn() -> None:
    whole, (first, second) = both()[0]
    text = report.full(judge(result((whole, [first, unaudited(second)]))))
    assert f"not count: {second.route.label}" in " ".join(text.split())
    assert "pipeline mine" not in report.full(judge(result(*both()).model_copy(update={"experiments": {}})))
