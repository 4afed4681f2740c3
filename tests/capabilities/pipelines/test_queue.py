"""Pipelines on simulated devices and a fake clock: the order of their stages, and what a lost device costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.capabilities.pipelines.facts import PipelineWork
from mixmark.harness.capabilities.pipelines.figures import out_of_turn, steps_of
from mixmark.harness.capabilities.pipelines.queue import PipelineQueue
from mixmark.harness.contracts.schema import Placement
from mixmark.harness.measure.dispatch import Loaded, Pair
from mixmark.harness.plan.placement import place
from tests.capabilities.pipelines.chains import ROW, UNITS, WORK, machine, records
from tests.fakes.machine import Machine, Rates, device, solo


def ends_s(made: Machine, suite: str = "b") -> list[float]:
    """When the pipelines ended, by their last stage."""
    return sorted(end / 1e9 for (name, _), spans in made.done.items() if name == suite for _, end in spans)


def test_one_pipeline_at_a_time_takes_the_critical_path() -> None:
    made = machine(1)
    made.run(5.55)
    assert ends_s(made) == pytest.approx([1.1, 2.2, 3.3, 4.4, 5.5])
    assert made.dispatcher.mixes == 5


def test_stages_of_several_pipelines_overlap() -> None:
    """The CPU is never idle after its first 0.1 s."""
    made = machine(2)
    made.run(5.15)
    assert ends_s(made) == pytest.approx([1.1, 2.1, 3.1, 4.1, 5.1])
    assert made.busy_ns["cpu:0"] == pytest.approx(5e9)


@given(st.integers(1, 6), st.lists(st.floats(0.5, 20), min_size=6, max_size=6), st.integers(1, 3))
def test_no_stage_begins_before_the_stage_before_has_ended(
    in_flight: int, rates: Sequence[float], concurrency: int
) -> None:
    pairs = [(suite, id) for suite in ("a", "b", "c") for id in ("gpu:0", "cpu:0")]
    units = {"a": 1, "b": 2, "c": 3}
    work = PipelineWork(suites=("c", "a", "b"), units=(3, 1, 2), in_flight=in_flight, deadline_ns=1)
    made = Machine(
        units,
        dict(zip(pairs, rates, strict=True)),
        {pair: units[pair[0]] for pair in pairs},
        concurrency=concurrency,
        source=partial(PipelineQueue, work=work),
    )
    made.run(30)
    assert out_of_turn(work, records(made)) == 0
    under_way = made.begun - sum(map(len, made.done.values()))
    assert under_way <= in_flight


def test_the_devices_of_a_stage_take_turns_by_their_part_of_the_plan() -> None:
    """`b` takes 1 s on either device, and `a` 0.5 s on the GPU: 0.5 + x = 1 − x, so a quarter of `b` is for the GPU."""
    made = machine(3, {("a", "gpu:0"): 20, ("b", "gpu:0"): 20, ("b", "cpu:0"): 20})
    assert made.placement.fractions["b"] == pytest.approx({"gpu:0": 1 / 3, "cpu:0": 1.0})
    made.run(300)
    counts = {id: len(made.done["b", id]) for id in ("gpu:0", "cpu:0")}
    assert counts["gpu:0"] / counts["cpu:0"] == pytest.approx(1 / 3, abs=0.02)


def test_a_device_takes_its_oldest_pipeline_first() -> None:
    """Alone it takes 0.5 s for `a` and 1 s for `b`."""
    rates: Rates = {(suite, "gpu:0"): 20 for suite in UNITS}
    made = machine(2, rates)
    made.run(3.05)
    assert made.done == {("a", "gpu:0"): seconds((0, 0.5), (1.5, 2)), ("b", "gpu:0"): seconds((0.5, 1.5), (2, 3))}


def seconds(*spans: tuple[float, float]) -> list[tuple[int, int]]:
    return [(round(begin * 1e9), round(end * 1e9)) for begin, end in spans]


def test_the_window_is_over_when_a_pipeline_has_ended() -> None:
    made = machine(1)
    assert made.step(10)
    assert made.dispatcher.surplus(made.now_ns) == 1, "only its first stage is finished"
    assert made.step(10)
    assert made.dispatcher.surplus(made.now_ns) == 0


def test_a_lost_device_loses_the_pipelines_that_it_held_and_the_others_go_on() -> None:
    """The CPU is slower than planned. So it holds one stage, and more wait for it: the GPU runs these."""
    rates: Rates = {("a", "gpu:0"): 100, ("b", "gpu:0"): 20, ("b", "cpu:0"): 20}
    made = machine(8, rates, actual=lambda pair, at_s: rates[pair] / (4 if pair[1] == "cpu:0" else 1))
    made.run(9)
    lost_ns, ended = made.now_ns, made.dispatcher.mixes
    made.lose("cpu:0")
    made.run(30)
    assert made.dispatcher.mixes > ended + 15
    assert out_of_turn(WORK, records(made)) == 0
    chains = steps_of(WORK, records(made))
    assert sum(due_ns < lost_ns and len(steps) < 2 for due_ns, steps in chains.items()) == 1


def test_another_pipeline_begins_in_the_place_of_a_lost_one() -> None:
    """The CPU is lost at 0.1 s, when it begins `b`. The GPU takes 0.1 s and 2 s."""
    made = machine(1, {("a", "gpu:0"): 100, ("b", "gpu:0"): 10, ("b", "cpu:0"): 20})
    made.run(0.5)
    assert made.running["cpu:0"] and made.dispatcher.mixes == 0
    made.lose("cpu:0")
    made.run(5)
    assert ends_s(made) == pytest.approx([2.2, 4.3])


def test_without_a_device_for_a_stage_the_phase_ends() -> None:
    made = machine(2, may_wait=True)
    made.run(3)
    made.lose("cpu:0")
    made.run(10)
    assert made.dispatcher.surplus(made.now_ns) == 0
    assert made.dispatcher.next("gpu:0", made.now_ns) is None


def placed(rates: Rates) -> Placement:
    return place(UNITS, solo(rates), [device("gpu:0"), device("cpu:0")])


def units_of(rates: Rates) -> dict[Pair, int]:
    return {pair: UNITS[pair[0]] for pair in rates}


def queued(rates: Rates, **facts: object) -> PipelineQueue:
    """The queue of a phase that has begun."""
    work = WORK.model_copy(update=facts)
    queue = PipelineQueue(Loaded(UNITS, placed(rates), units_of(rates), dict.fromkeys(rates, 1)), work)
    queue.begin(0)
    return queue


def test_a_feed_of_another_size_is_no_stage() -> None:
    with pytest.raises(ValueError, match="no feed of a stage: b on cpu:0"):
        quanta = {("a", "gpu:0"): 10, ("b", "cpu:0"): 40}
        PipelineQueue(Loaded(UNITS, placed(ROW), quanta, dict.fromkeys(ROW, 1)), WORK)


def test_what_the_next_stage_continues_is_given_and_taken() -> None:
    queue = queued(ROW, carried=("b",))
    first = queue.next("gpu:0", 0)
    assert first is not None and (first.takes, first.gives, first.last) == (False, True, False)
    queue.finished("gpu:0", first, 0, 1, 10)
    second = queue.next("cpu:0", 1)
    assert second is not None and (second.takes, second.gives, second.last) == (True, False, True)
