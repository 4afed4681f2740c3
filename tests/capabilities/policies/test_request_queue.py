"""Requests that a policy assigns to simulated devices on a fake clock."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.capabilities.policies.gain import COMPARED, by
from mixmark.harness.capabilities.policies import policies
from mixmark.harness.capabilities.serving.contract import DeviceLoad, Request
from mixmark.harness.capabilities.serving.policies import Planned
from mixmark.harness.capabilities.serving.request_queue import STUCK_NS, PolicyFailed, RequestQueue, request_units
from mixmark.harness.contracts import seeds
from mixmark.harness.measure.dispatch import Pair
from tests.fakes.machine import GPU_AND_CPU, MIX, QUANTA, SECOND, Machine, Rates

DUO: Rates = {("a", "gpu:0"): 10.0, ("a", "cpu:0"): 5.0, ("b", "cpu:0"): 10.0}
ONE_EACH = dict.fromkeys(DUO, 1)
ALL: list[Any] = [Planned, *COMPARED.values()]


class Load:
    """Requests that arrive for a while."""

    def __init__(
        self, requests: Mapping[str, int], length_s: float, units: Mapping[str, int] | None = None, seed: int = 1
    ) -> None:
        self.requests, self.request_units = requests, units or dict.fromkeys(requests, 1)
        self.due_ns = {
            suite: seeds.arrivals_within(round(length_s * SECOND), count, seeds.derived(seed, suite))
            for suite, count in requests.items()
        }


def served(
    load: Load | None,
    policy: Any = policies.Greedy,
    rates: Rates = DUO,
    quanta: Mapping[Pair, int] = ONE_EACH,
    actual: Callable[[Pair, float], float] | None = None,
    **more: Any,
) -> Machine:
    mix_units = {suite: 1.0 for suite, _ in rates}
    arriving: dict[str, Any] = {"due_ns": load.due_ns, "units": load.request_units} if load else {}
    source = partial(RequestQueue, policy=policy, limits={}, **arriving)
    return Machine(mix_units, rates, quanta, actual, source=source, may_wait=load is not None, **more)


@pytest.mark.parametrize("busy", [pytest.param(0.3, marks=pytest.mark.exhaustive), 0.6])
@pytest.mark.slow
def test_one_device_is_the_queue_of_pollaczek_and_khinchine(busy: float) -> None:
    """Three services of 0.05 s to one of 0.25 s: E[S] = 0.1 s, E[S²] = 0.0175 s²; W = λ E[S²] / 2 (1 − ρ) + E[S]."""
    count, chance = 100_000, random.Random(2)
    load = Load({"a": count}, count * 0.1 / busy)
    machine = served(
        load, rates={("a", "cpu:0"): 10.0}, quanta={("a", "cpu:0"): 1}, actual=lambda *_: chance.choice((20, 20, 20, 4))
    )
    machine.run(1e9)
    assert len(machine.responses_ns) == count
    response_s = statistics.mean(ends[-1] for ends in machine.responses_ns.values()) / 1e9
    assert response_s == pytest.approx(0.1 + busy / 0.1 * 0.0175 / 2 / (1 - busy), rel=0.02)


def test_a_request_is_the_same_work_everywhere_and_is_done_with_its_last_feed() -> None:
    quanta = {("a", "gpu:0"): 4, ("a", "cpu:0"): 6, ("b", "cpu:0"): 1}
    assert request_units(quanta) == {"a": 12, "b": 1}
    machine = served(Load({"a": 1, "b": 1}, 1, {"a": 12, "b": 1}), policies.FastestDevice, quanta=quanta)
    machine.run(100)
    assert [len(spans) for spans in machine.done.values()] == [3, 0, 1]
    ((_, first),) = [(key, ends) for key, ends in machine.responses_ns.items() if key[0] == "a"]
    assert first == pytest.approx([0.4e9, 0.8e9, 1.2e9], rel=1e-6)


def test_a_load_is_taken_up_when_it_is_due_and_the_phase_is_over_when_all_is_done() -> None:
    load = Load({"a": 20, "b": 10}, 10)
    machine = served(load)
    machine.run(3)
    assert machine.dispatcher.surplus(machine.now_ns) == 1
    machine.run(100)
    assert machine.dispatcher.surplus(machine.now_ns) == 0
    assert machine.dispatcher.arrival_delay_ns() == 0
    assert machine.dispatcher.next_arrival_ns() is None
    drawn = {suite: [int(at) for at in times] for suite, times in load.due_ns.items()}
    begun = {
        suite: sorted(begin for pair, spans in machine.done.items() if pair[0] == suite for begin, _ in spans)
        for suite in drawn
    }
    assert all(begin >= due for suite in drawn for begin, due in zip(begun[suite], drawn[suite], strict=True))
    assert drawn["a"] == sorted(drawn["a"])
    assert drawn["a"][:10] != drawn["b"], "each suite has arrivals of its own"


def test_who_gets_what() -> None:
    """`a` takes 0.1 s on the GPU and 0.2 s on the CPU; the GPU is busy for 0.15 s, so the CPU would finish later."""
    seconds = {"a": {"gpu:0": 0.1, "cpu:0": 0.2}, "b": {"cpu:0": 0.1}}
    plan = {"a": {"cpu:0": 0.5}, "b": {"cpu:0": 0.5}}
    waiting = [
        Request(number=0, suite="a", due_ns=0, limit_ns=None),
        Request(number=1, suite="b", due_ns=5, limit_ns=10**10),
        Request(number=2, suite="b", due_ns=9, limit_ns=10**9),
    ]
    loads = [DeviceLoad("gpu:0", 0.15, has_room=False), DeviceLoad("cpu:0", 0.0, has_room=True)]

    def chosen(policy: Any, loads: Sequence[DeviceLoad] = loads) -> list[tuple[int, str] | None]:
        own = policy(seconds, plan)
        choices = [own.choose(waiting, loads, 10) for _ in range(2)]
        return [choice and (choice[0].number, choice[1]) for choice in choices]

    assert chosen(policies.RoundRobin) == [(0, "gpu:0"), (0, "cpu:0")]
    assert chosen(policies.FastestDevice)[0] == (0, "gpu:0")
    assert chosen(policies.Greedy)[0] == (0, "cpu:0")
    assert chosen(Planned)[0] == (0, "cpu:0")
    assert chosen(Planned, loads[:1])[0] == (0, "gpu:0"), "its planned device is gone"
    assert chosen(policies.RoundRobin, loads[1:]) == [(0, "cpu:0"), (0, "cpu:0")]


@pytest.mark.parametrize("policy", ALL)
def test_a_device_that_dies_loses_what_it_had_begun_and_the_others_serve_the_rest(policy: Any) -> None:
    machine = served(Load({"a": 50, "b": 20}, 8), policy)
    machine.run(2)
    machine.lose("gpu:0")
    machine.run(100)
    answered = len(machine.responses_ns)
    assert 67 <= answered <= 70
    assert machine.dispatcher.surplus(machine.now_ns) == 0


def test_what_only_the_dead_device_could_do_is_lost_and_the_phase_still_ends() -> None:
    machine = served(Load({"a": 50, "b": 20}, 8))
    machine.run(2)
    machine.lose("cpu:0")
    machine.run(100)
    assert machine.dispatcher.surplus(machine.now_ns) == 0
    assert sum(suite == "a" for suite, _ in machine.responses_ns) >= 48
    assert sum(suite == "b" for suite, _ in machine.responses_ns) < 10


class _Chooses:
    """A policy whose choice a test gives."""

    def __init__(self, choice: Callable[[Sequence[Request]], Any]) -> None:
        self.choice = choice

    def __call__(self, seconds: Any, plan: Any) -> _Chooses:
        return self

    def choose(self, waiting: Sequence[Request], devices: Any, now_ns: int) -> Any:
        return self.choice(waiting)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (lambda waiting: (waiting[0], "tpu:7"), "gave 'tpu:7' a request of"),
        (lambda waiting: (next(each for each in waiting if each.suite == "b"), "gpu:0"), "request of b, which it does"),
        (lambda waiting: "cpu:0", "chose 'cpu:0', and not a request and a device"),
        (lambda waiting: (waiting[0].__class__(99, "a", 0, None), "cpu:0"), "request 99, which does not wait"),
        (lambda waiting: 1 / 0, "failed: ZeroDivisionError"),
        (lambda waiting: sys.exit(3), "failed: SystemExit"),
    ],
)
def test_a_policy_that_chooses_what_cannot_be_is_named(choice: Any, says: str) -> None:
    with pytest.raises(PolicyFailed, match=says):
        served(None, _Chooses(choice)).run(10)


def test_a_policy_that_lets_all_wait_for_ever_is_named() -> None:
    machine = served(None, _Chooses(lambda waiting: None))
    queue = machine.dispatcher
    assert queue.next("cpu:0", 5) is None
    assert queue.next("cpu:0", STUCK_NS) is None
    with pytest.raises(PolicyFailed, match="waiting, and no device has anything to do"):
        queue.next("cpu:0", STUCK_NS + 6)


def test_a_closed_run_by_the_fastest_device_is_bound_by_the_device_with_most_work() -> None:
    """The GPU is faster at all but dlrm, so it does 2 + 2 + 0.5 s of a mix; the CPU 1.33 s."""
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, source=by(policies.FastestDevice))
    machine.run(300)
    assert machine.run(1500) == pytest.approx(1 / 4.5, rel=0.02)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Load, Rates, Mapping[Pair, int], Any, int]:
    suites = [f"s{index}" for index in range(draw(st.integers(1, 3)))]
    devices = [f"npu:{index}" for index in range(draw(st.integers(1, 3)))]
    pairs = [(s, d) for s in suites for d in devices if d == devices[0] or draw(st.booleans())]
    rates = {pair: draw(st.floats(0.5, 50)) for pair in pairs}
    quanta = {pair: draw(st.sampled_from([1, 2, 4])) for pair in pairs}
    units = request_units(quanta)
    requests = {suite: draw(st.integers(1, 30)) for suite in suites}
    load = Load(requests, draw(st.floats(0.1, 60)), units, draw(st.integers(0, 9)))
    return load, rates, quanta, draw(st.sampled_from(ALL)), draw(st.integers(1, 3))


@given(loads())
@settings(max_examples=60, deadline=None)
def test_no_request_is_lost_or_answered_twice_or_before_it_is_due(drawn: Any) -> None:
    load, rates, quanta, policy, concurrency = drawn
    machine = served(load, policy, rates, quanta, concurrency=concurrency)
    machine.run(1e6)
    answered = dict.fromkeys(load.requests, 0)
    for (suite, _), ends in machine.responses_ns.items():
        answered[suite] += 1
        assert min(ends) > 0
    assert answered == load.requests
    for suite, count in load.requests.items():
        units = sum(len(spans) * quanta[pair] for pair, spans in machine.done.items() if pair[0] == suite)
        assert units == count * load.request_units[suite]
    assert machine.dispatcher.surplus(machine.now_ns) == 0
