"""The dispatcher drives simulated devices of known rates on a fake clock."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.dispatch import Dispatcher, Pair, Planner
from harness.place import Power, place
from harness.schema import Device, Placement, Rate

SECOND = 1_000_000_000
Rates = Mapping[Pair, float]


def device(id: str) -> Device:
    kind = id.partition(":")[0]
    return Device.model_validate({"id": id, "kind": kind, "memory_pool": "host" if kind == "cpu" else id})


def solo(rates: Rates, watts: Mapping[Pair, float] | None = None) -> list[Rate]:
    return [
        Rate(
            suite=suite,
            device=device,
            adapter="acme",
            precision="bf16",
            batch=1,
            units_per_s=rate,
            watts=watts[suite, device] if watts else None,
        )
        for (suite, device), rate in rates.items()
    ]


class Machine:
    """Devices that work through their queues, each feed as long as the rate at its start says."""

    def __init__(
        self,
        mix_units: Mapping[str, float],
        rates: Rates,
        quanta: Mapping[Pair, int],
        actual: Callable[[Pair, float], float] | None = None,
        plan: Planner | None = None,
        watts: Mapping[Pair, float] | None = None,
        counts: Callable[[Pair], bool] = lambda pair: True,
        slots: int = 1,
    ) -> None:
        devices = [device(id) for id in dict.fromkeys(id for _, id in rates)]
        self.plan: Planner = plan or partial(place, devices=devices)
        self.actual = actual or (lambda pair, at_s: rates[pair])
        self.quanta, self.slots, self.counts = quanta, slots, counts
        self.queues: dict[str, list[str]] = {each.id: [] for each in devices}
        self.running: dict[str, int] = dict.fromkeys(self.queues, 0)
        self.now_ns = 0
        self.ends: list[tuple[int, int, str, str, int]] = []
        self.busy_ns = dict.fromkeys(self.queues, 0)
        placement = self.plan(mix_units, solo(rates, watts))
        self.dispatcher = Dispatcher(
            mix_units, placement, quanta, dict.fromkeys(self.queues, slots), self.plan, begin_ns=0
        )

    def lose(self, id: str) -> None:
        del self.queues[id]
        self.ends = [end for end in self.ends if end[2] != id]
        heapq.heapify(self.ends)
        self.dispatcher.lost(id, self.now_ns)

    def run(self, until_s: float) -> float:
        """Mixes per second from now to then."""
        begin_ns, before = self.now_ns, self.dispatcher.mixes
        while True:
            self._hand_out()
            if not self.ends:
                raise AssertionError("every device waits")
            if self.ends[0][0] > until_s * SECOND:
                break
            self.now_ns, _, id, suite, since_ns = heapq.heappop(self.ends)
            self.running[id] -= 1
            self.busy_ns[id] += self.now_ns - since_ns
            units = self.quanta[suite, id] if self.counts((suite, id)) else 0
            self.dispatcher.finished(id, suite, units, since_ns, self.now_ns)
        return (self.dispatcher.mixes - before) / max(1, self.now_ns - begin_ns) * SECOND

    def _hand_out(self) -> None:
        given = True
        while given:
            given = False
            for id, queue in self.queues.items():
                if suite := self.dispatcher.next(id, self.now_ns):
                    queue.append(suite)
                    given = True
                while queue and self.running[id] < self.slots:
                    self._start(id, queue.pop(0))

    def _start(self, id: str, suite: str) -> None:
        self.running[id] += 1
        took_s = self.slots * self.quanta[suite, id] / self.actual((suite, id), self.now_ns / SECOND)
        heapq.heappush(
            self.ends, (self.now_ns + max(1, round(took_s * SECOND)), len(self.ends), id, suite, self.now_ns)
        )


MIX = {"llm": 200, "diffusion": 1, "dlrm": 40_000, "resnet50": 1000}
GPU_AND_CPU: Rates = {
    ("llm", "gpu:0"): 100,
    ("llm", "cpu:0"): 10,
    ("diffusion", "gpu:0"): 0.5,
    ("diffusion", "cpu:0"): 0.01,
    ("dlrm", "gpu:0"): 20_000,
    ("dlrm", "cpu:0"): 30_000,
    ("resnet50", "gpu:0"): 2000,
    ("resnet50", "cpu:0"): 100,
}
QUANTA = {pair: {"llm": 20, "diffusion": 1, "dlrm": 2048, "resnet50": 32}[pair[0]] for pair in GPU_AND_CPU}


@pytest.mark.parametrize("slots", [1, 3])
def test_undisturbed_devices_reach_the_bound(slots: int) -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, slots=slots)
    assert machine.run(1500) == pytest.approx(machine.dispatcher.placement.bound_per_s, rel=0.01)


@pytest.mark.parametrize("hit", [*GPU_AND_CPU, "gpu:0", "cpu:0"], ids=str)
def test_it_recovers_when_a_rate_halves_in_mid_run(hit: Pair | str) -> None:
    """A single route's, or all of a device's."""

    def actual(pair: Pair, at_s: float) -> float:
        return GPU_AND_CPU[pair] * (0.5 if at_s > 600 and hit in (pair, pair[1]) else 1)

    machine = Machine(MIX, GPU_AND_CPU, QUANTA, actual)
    machine.run(630)
    later = place(MIX, solo({pair: actual(pair, math.inf) for pair in GPU_AND_CPU}), [device("gpu:0"), device("cpu:0")])
    assert machine.run(1500) == pytest.approx(later.mixes_per_s, rel=0.01)


def test_a_plan_for_efficiency_lets_devices_idle() -> None:
    watts = dict(zip(GPU_AND_CPU, (280, 170, 350, 180, 150, 190, 320, 180), strict=True))
    idle = {"gpu:0": 60.0, "cpu:0": 50.0}

    def plan(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        return place(mix_units, rates, [device(id) for id in idle], "efficiency", power=Power(idle, 120))

    machine = Machine(MIX, GPU_AND_CPU, QUANTA, plan=plan, watts=watts)
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
    assert set(machine.dispatcher.abandoned) == set(MIX)


def test_a_suite_without_a_device_is_given_up_and_the_others_go_on() -> None:
    rates = {pair: rate for pair, rate in GPU_AND_CPU.items() if pair != ("diffusion", "cpu:0")}
    machine = Machine(MIX, rates, QUANTA)
    machine.run(300)
    machine.lose("gpu:0")
    assert machine.dispatcher.abandoned == ("diffusion",)
    assert machine.run(1500) == pytest.approx(1 / (20 + 40 / 30 + 10), rel=0.02)


def test_feeds_that_count_nothing_are_made_up_for() -> None:
    """Each second feed of the GPU's diffusion breaks its limit."""
    late = itertools.cycle((True, False))
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, counts=lambda pair: pair != ("diffusion", "gpu:0") or next(late))
    machine.run(300)
    done = machine.run(1500)
    assert done == pytest.approx(0.1658, rel=0.02)  # λ* where that rate is half


def test_what_is_planned_must_be_loaded() -> None:
    with pytest.raises(ValueError, match="llm on cpu:0"):
        Machine(MIX, GPU_AND_CPU, {pair: units for pair, units in QUANTA.items() if pair != ("llm", "cpu:0")})


def test_a_feed_that_was_never_given_cannot_finish() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA)
    with pytest.raises(ValueError, match=r"cpu:0 was given no feed of llm"):
        machine.dispatcher.finished("cpu:0", "llm", 20, 0, 1)


def test_no_device_holds_more_than_its_slots_and_one() -> None:
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, slots=2)
    given = 0
    while machine.dispatcher.next("gpu:0", 0):
        given += 1
    assert given == 3


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

    return Machine(mix_units, rates, quanta, actual, slots=draw(st.integers(1, 3)))


@settings(max_examples=25, deadline=None)
@given(machines(), st.data())
def test_never_does_everybody_wait(machine: Machine, data: st.DataObject) -> None:
    """`run` fails where nothing is in flight and no device is given anything, however wrong the rates were."""
    for _ in range(40):
        machine._hand_out()
        assert machine.ends or not machine.queues
        if not machine.ends:
            return
        machine.run(machine.ends[0][0] / SECOND)
        if len(machine.queues) > 1 and data.draw(st.integers(0, 20)) == 0:
            machine.lose(next(iter(machine.queues)))
