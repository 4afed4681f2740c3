"""The dispatcher drives simulated devices of known rates on a fake clock."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixmark.harness.contracts.schema import Placement, Rate
from mixmark.harness.measure.dispatch import Dispatcher, Handed, Loaded, Pair, surplus
from mixmark.harness.plan import presets
from mixmark.harness.plan.placement import Power, place
from tests.fakes.machine import AT_WORK, GPU_AND_CPU, MIX, QUANTA, SECOND, Machine, device, solo


@pytest.mark.parametrize("concurrency", [1, 3])
def test_undisturbed_devices_reach_the_bound(concurrency: int) -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, concurrency=concurrency)
    assert machine.run(1500) == pytest.approx(machine.dispatcher.placement.bound_per_s, rel=0.01)


def test_a_device_stays_with_a_suite_for_a_while_and_loses_nothing_by_it() -> None:
    """Brief feeds of two suites once took turns one by one: 2,178 changes in two minutes of edge-1 on two cores."""
    of = {"llm": (10.0, 128), "diffusion": (0.75, 1), "dlrm": (27_000.0, 1024), "resnet50": (240.0, 4)}
    machine = Machine(
        EDGE_1,
        {(suite, "cpu:0"): rate for suite, (rate, _) in of.items()},
        {(suite, "cpu:0"): units for suite, (_, units) in of.items()},
    )
    assert machine.run(300) == pytest.approx(machine.dispatcher.placement.bound_per_s, rel=0.02)
    done = sorted((*times, suite) for (suite, _), feeds in machine.done.items() for times in feeds)
    changes = sum(one[-1] != other[-1] for one, other in itertools.pairwise(done))
    assert len(done) > 5000 and changes < 400


@pytest.mark.parametrize("hit", [("llm", "gpu:0"), ("dlrm", "cpu:0"), "gpu:0", "cpu:0"], ids=str)
def test_it_recovers_when_a_rate_halves_in_mid_run(hit: Pair | str) -> None:
    """A single route's, or all of a device's."""

    def actual(pair: Pair, at_s: float) -> float:
        return GPU_AND_CPU[pair] * (0.5 if at_s > 600 and hit in (pair, pair[1]) else 1)

    machine = Machine(MIX, GPU_AND_CPU, QUANTA, actual)
    machine.run(630)
    later = place(MIX, solo({pair: actual(pair, math.inf) for pair in GPU_AND_CPU}), [device("gpu:0"), device("cpu:0")])
    assert machine.run(1200) == pytest.approx(later.mixes_per_s, rel=0.01)


def test_it_takes_another_route_where_one_falls_to_a_tenth() -> None:
    """The plan had the recommender on the CPU alone: without a new one, that would set the pace, at 0.075 mix/s."""

    def actual(pair: Pair, at_s: float) -> float:
        return GPU_AND_CPU[pair] * (0.1 if at_s > 600 and pair == ("dlrm", "cpu:0") else 1)

    machine = Machine(MIX, GPU_AND_CPU, QUANTA, actual)
    assert "gpu:0" not in machine.dispatcher.placement.fractions["dlrm"]
    machine.run(660)
    later = place(MIX, solo({pair: actual(pair, math.inf) for pair in GPU_AND_CPU}), [device("gpu:0"), device("cpu:0")])
    assert machine.run(1200) == pytest.approx(later.mixes_per_s, rel=0.02)


def test_no_stream_leads_by_more_than_2_percent_or_the_feeds_that_devices_may_hold() -> None:
    """The GPU does a tenth of what the plan believes, for ever: what the CPU did beyond that would be for nothing."""
    rates = {("slow", "gpu:0"): 10.0, ("fast", "cpu:0"): 10.0}
    units = {"slow": 1.0, "fast": 1.0}
    plan = place(units, solo(rates), [device("gpu:0"), device("cpu:0")])
    machine = Machine(
        units,
        rates,
        dict.fromkeys(rates, 1),
        lambda pair, at_s: 1.0 if pair[0] == "slow" else 10.0,
        plan=lambda *_: plan,
    )
    for seconds, lead in ((100, 4), (1000, 20)):  # two feeds each may be at either device; 2 % of 1,000
        machine.run(seconds)
        done = machine.dispatcher.units
        assert done["slow"] == pytest.approx(seconds, abs=2)
        assert done["slow"] + lead - 3 <= done["fast"] <= done["slow"] + 2 + lead  # two of the GPU's are handed out


@pytest.mark.slow
def test_a_long_feed_on_one_device_lets_no_other_wait_while_rates_wander() -> None:
    """On two halves of a CPU one once waited for 21 % of a window: its part of the plan had become a little smaller
    than the other half's, so it was to lead no stream, and the least advanced one stood still for 29 s."""
    feeds = {"llm": 128, "diffusion": 1, "dlrm": 1024, "resnet50": 8}
    rates = {
        ("llm", "cpu:0.0"): 4.36,
        ("diffusion", "cpu:0.0"): 0.382,
        ("dlrm", "cpu:0.0"): 13_500.0,
        ("dlrm", "cpu:0.1"): 13_800.0,
        ("resnet50", "cpu:0.1"): 99.0,
    }

    def actual(pair: Pair, at_s: float) -> float:
        return rates[pair] * (1 + 0.05 * math.sin(2 * math.pi * (at_s / 100 + pair[1].endswith("1") / 2)))

    machine = Machine(EDGE_1, rates, {pair: feeds[pair[0]] for pair in rates}, actual)
    bound_per_s = machine.placement.bound_per_s
    assert machine.run(1500) == pytest.approx(bound_per_s, rel=0.03)
    assert min(machine.busy_ns.values()) > 0.97 * machine.now_ns


def test_a_plan_for_efficiency_lets_devices_idle() -> None:
    idle = {"gpu:0": 60.0, "cpu:0": 50.0}

    def plan(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        return place(mix_units, rates, [device(id) for id in idle], "efficiency", power=Power(idle, 120))

    machine = Machine(MIX, GPU_AND_CPU, QUANTA, plan=plan, watts=AT_WORK)
    assert machine.run(1800) == pytest.approx(0.22222, rel=0.01)  # of method.md, part E
    busy = {id: ns / machine.now_ns for id, ns in machine.busy_ns.items()}
    assert busy == {"gpu:0": pytest.approx(1, abs=0.01), "cpu:0": pytest.approx(0.296, abs=0.01)}


def test_a_device_that_dies_is_dropped_and_the_rest_goes_on() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA)
    machine.run(300)
    machine.lose("cpu:0")
    assert machine.run(1500) == pytest.approx(1 / 6.5, rel=0.01)  # 2 + 2 + 2 + 0.5 s a mix on the GPU alone
    machine.lose("gpu:0")
    assert machine.dispatcher.next("gpu:0", machine.now_ns) is None


def test_a_suite_without_a_device_is_given_up_and_the_others_go_on() -> None:
    rates = {pair: rate for pair, rate in GPU_AND_CPU.items() if pair != ("diffusion", "cpu:0")}
    machine = Machine(MIX, rates, QUANTA)
    machine.run(300)
    machine.lose("gpu:0")
    assert machine.run(1500) == pytest.approx(1 / (20 + 40 / 30 + 10), rel=0.02)


def test_a_feed_that_has_the_device_to_itself_has_its_pace_beside_suites_that_run_two_at_a_time() -> None:
    rates = {("llm", "cpu:0"): 10.0, ("dlrm", "cpu:0"): 10.0}
    concurrency = {("llm", "cpu:0"): 1, ("dlrm", "cpu:0"): 2}
    plan = place({"llm": 1.0, "dlrm": 1.0}, solo(rates), [device("cpu:0")])
    dispatcher = Dispatcher(
        Loaded({"llm": 1.0, "dlrm": 1.0}, plan, dict.fromkeys(rates, 10), concurrency), lambda *_: plan
    )
    given = Counter(dispatcher.next("cpu:0", 0) for _ in range(3))
    assert given[Handed("llm")] and given[Handed("dlrm")]
    dispatcher.finished("cpu:0", Handed("llm"), 0, SECOND, 10)  # at its solo rate
    dispatcher.finished("cpu:0", Handed("dlrm"), SECOND, 3 * SECOND, 10)  # two of them in two seconds: at its solo rate
    assert {pair: dispatcher._pace(pair) for pair in rates} == pytest.approx(dict.fromkeys(rates, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["diffusion", "resnet50"])  # of a mix the first is 1 unit, the second 1,000
def test_feeds_that_count_nothing_are_made_up_for(suite: str) -> None:
    """Each second feed of the suite on the GPU breaks its limit."""
    late = itertools.cycle((True, False))
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, counts=lambda pair: pair != (suite, "gpu:0") or next(late))
    machine.run(300)
    half = {**GPU_AND_CPU, (suite, "gpu:0"): GPU_AND_CPU[suite, "gpu:0"] / 2}
    bound_per_s = place(MIX, solo(half), [device("gpu:0"), device("cpu:0")]).bound_per_s
    assert machine.run(1500) == pytest.approx(bound_per_s, rel=0.02)


def test_work_under_way_counts_from_when_an_idle_device_got_it() -> None:
    plan = place({"llm": 1.0}, solo({("llm", "cpu:0"): 10.0}), [device("cpu:0")])
    one = {("llm", "cpu:0"): 1}
    dispatcher = Dispatcher(Loaded({"llm": 1.0}, plan, one, one), lambda *_: plan)
    assert [dispatcher.next("cpu:0", at_s * SECOND) for at_s in (5, 8)] == [Handed("llm")] * 2
    assert dispatcher._unfinished_s(20 * SECOND) == {"cpu:0": 15}, "not from the begin, nor from the second feed"


def test_what_is_planned_must_be_loaded() -> None:
    with pytest.raises(ValueError, match="llm on cpu:0"):
        Machine(MIX, GPU_AND_CPU, {pair: units for pair, units in QUANTA.items() if pair != ("llm", "cpu:0")})


def test_no_device_holds_more_than_its_slots_and_one() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, concurrency=2)
    given = 0
    while machine.dispatcher.next("gpu:0", 0):
        given += 1
    assert given == 3


EDGE_1 = {"llm": 50.2, "diffusion": 5.53, "dlrm": 234_000.0, "resnet50": 917.0}
FEEDS = {"llm": 128, "diffusion": 1, "dlrm": 1024, "resnet50": 4}
CPU = {"llm": 5.0, "diffusion": 0.2, "dlrm": 9_000.0, "resnet50": 80.0}
GPU = {"llm": 60.0, "diffusion": 3.0, "dlrm": 200_000.0, "resnet50": 2_500.0}
QUICK = presets.PRESETS["quick"].mix


def machine_of(devices: Mapping[str, Mapping[str, float]], speed: float, in_mix: float = 1.0) -> Machine:
    """A machine on the mix of edge-1. speed: times the rates above. in_mix: what a device keeps of them in the mix."""
    rates = {(suite, id): rate * speed for id, own in devices.items() for suite, rate in own.items()}
    quanta = {pair: FEEDS[pair[0]] for pair in rates}
    return Machine(EDGE_1, rates, quanta, lambda pair, at_s: rates[pair] * in_mix, marks={"llm": FEEDS["llm"]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "speed"),
    [
        *(({"cpu:0": CPU}, speed) for speed in (0.4, 0.7, 1, 1.7, 4, 30)),
        *(({"gpu:0": GPU, "cpu:0": CPU}, speed) for speed in (0.25, 0.4, 1)),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
def test_a_window_shows_the_rate_of_the_machine_whatever_its_speed(
    devices: Mapping[str, Mapping[str, float]], speed: float
) -> None:
    """One feed of the LLM is 2.55 mixes, which this CPU does in 200 s. A window of 120 s once showed 0.80 of the rate
    at half the speed."""
    machine, long = (machine_of(devices, speed, in_mix=0.9) for _ in range(2))
    mixes_ns = round(60 / long.placement.bound_per_s * SECOND)
    long_per_s = long.window(QUICK.model_copy(update={"min_ns": mixes_ns, "max_ns": 10 * mixes_ns}))
    assert machine.window(QUICK) == pytest.approx(long_per_s, rel=0.02)
    assert QUICK.min_ns <= machine.now_ns < QUICK.max_ns


def test_a_window_that_is_too_short_for_the_machine_ends_with_a_surplus() -> None:
    """At a fifth of the speed one feed of the LLM is a thousand seconds' worth of mixes."""
    machine = machine_of({"cpu:0": CPU}, 0.2)
    machine.window(QUICK)
    assert machine.now_ns == QUICK.max_ns
    assert machine.dispatcher.surplus(machine.now_ns) > 0.05


def test_a_device_that_gets_slower_by_half_is_measured_with_its_whole_window() -> None:
    rates = {(suite, "cpu:0"): 4 * rate for suite, rate in CPU.items()}
    quanta = {pair: FEEDS[pair[0]] for pair in rates}
    machine = Machine(EDGE_1, rates, quanta, lambda pair, at_s: rates[pair] * (1 if at_s < 60 else 0.5))
    seen_per_s = machine.window(QUICK)
    after_s = machine.now_ns / SECOND - 60
    assert seen_per_s == pytest.approx(machine.placement.bound_per_s * (60 + after_s / 2) / (60 + after_s), rel=0.02)


def test_a_suite_that_finishes_nothing_is_all_surplus() -> None:
    machine = machine_of({"cpu:0": CPU}, 4)
    machine.counts = lambda pair: pair[0] != "llm"
    machine.window(QUICK)
    assert (machine.now_ns, machine.dispatcher.surplus(machine.now_ns)) == (QUICK.max_ns, 1.0)


def test_work_beyond_the_least_advanced_suite_and_work_under_way_is_surplus() -> None:
    """A mix takes 10 s of either suite, so a unit of each is worth half of a tenth of a mix, and a second 0.05."""
    rates = {("coarse", "cpu:0"): 10.0, ("fine", "cpu:0"): 10.0}
    units = {"coarse": 100.0, "fine": 100.0}
    plan = place(units, solo(rates), [device("cpu:0")])
    assert surplus(plan, units, {"coarse": 200.0, "fine": 100.0}, {}) == pytest.approx(1 / 3)
    assert surplus(plan, units, {"coarse": 100.0, "fine": 100.0}, {}) == pytest.approx(0)
    assert surplus(plan, units, {"coarse": 100.0, "fine": 100.0}, {"cpu:0": 5.0}) == pytest.approx(0.2)
    assert surplus(plan, units, {"coarse": 100.0, "fine": 0.0}, {}) == 1


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    devices = [f"{draw(st.sampled_from(['cpu', 'gpu']))}:{index}" for index in range(draw(st.integers(1, 4)))]
    suites = [f"s{index}" for index in range(draw(st.integers(1, 4)))]
    pace = st.floats(0.1, 1000)
    rates = {
        (suite, device): draw(pace)
        for suite in suites
        for device in devices
        if device == devices[0] or draw(st.booleans())
    }
    mix_units = {suite: draw(st.floats(0.1, 100)) for suite in suites}
    quanta = {pair: draw(st.integers(1, 500)) for pair in rates}
    wrong = {pair: draw(st.sampled_from([0.3, 1, 1, 2])) for pair in rates}

    def actual(pair: Pair, at_s: float) -> float:
        return rates[pair] * wrong[pair]

    return Machine(mix_units, rates, quanta, actual, concurrency=draw(st.integers(1, 3)))


@settings(max_examples=25, deadline=None)
@given(machines(), st.data())
def test_never_does_everybody_wait(machine: Machine, data: st.DataObject) -> None:
    """`run` fails where nothing is in flight and no device is given anything, however wrong the rates were."""
    for _ in range(40):
        machine.hand_out()
        assert machine.ends or not machine.queues
        if not machine.ends:
            return
        machine.run(machine.ends[0][0] / SECOND)
        if len(machine.queues) > 1 and data.draw(st.integers(0, 20)) == 0:
            machine.lose(next(iter(machine.queues)))
