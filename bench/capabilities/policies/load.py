"""The cost of serving: a device's throughput with each policy over its throughput with the plan, and arrival delays.
Greedy is also run in a process of its own, as a policy of another package is.

Run: python -m bench.capabilities.policies.load [BLOCKS]    (3)

The throughput is measured with the onnxruntime adapter and resnet50 at the smoke tier, batch 1, in alternating phases;
the goal is at least 0.99. The delay is the 99th percentile of the time from a request's due time until the harness
handled its arrival, at 50 requests per second on a machine whose devices only sleep, so that a core is idle; the goal
is at most 1 ms. It also prints the CPU time of the parent and the sleeping workers, and the time of one decision over
the border of two processes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.capabilities.policies.gain import COMPARED
from bench.dispatch import SECONDS, rate_per_s, stand
from mixmark.harness.capabilities.policies import policies
from mixmark.harness.capabilities.serving.contract import BY_PLAN, DeviceLoad, Policy, Request
from mixmark.harness.capabilities.serving.process import PolicyProcess
from mixmark.harness.capabilities.serving.request_queue import RequestQueue, Table
from mixmark.harness.contracts import seeds
from mixmark.harness.measure import mixed
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement as place
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import registry
from tests.measure.test_mixed import MIX, Stage

CHOICES = 2000
PER_S = 25
"""The arriving requests per second of each of two suites."""


def throughputs(blocks: int, folder: Path, elsewhere: PolicyProcess) -> None:
    """Prints the throughput with each policy over the throughput with the plan."""
    made = stand()
    by_plan: list[float] = []
    compared: dict[str, Callable[[Table, Table], Policy]] = {**COMPARED, "greedy, apart": elsewhere}
    others: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(blocks):
        for name in (BY_PLAN, *compared):
            by = partial(RequestQueue, policy=compared[name], limits={}) if name in compared else None
            drive = mixed.local_driver(made.mix, made.together, made.plan, source=by)
            [record] = attend(made.together, made.equipment, folder, drive, on_ready=drive.on_ready)
            others.get(name, by_plan).append(rate_per_s(record))
    for name, rates in others.items():
        ratio = statistics.median(rate / planned for rate, planned in zip(rates, by_plan, strict=True))
        print(f"{name:<15} {ratio:.4f} of the throughput by the plan, median of {blocks}  (goal ≥ 0.99)")


def decisions(elsewhere: PolicyProcess) -> None:
    """Prints the time of a decision in a process of its own, with few and with many requests waiting."""
    requests = [Request(number=number, suite="a", due_ns=number, limit_ns=None) for number in range(CHOICES + 500)]
    loads = tuple(DeviceLoad(id, 0.1, has_room=True) for id in ("gpu:0", "cpu:0"))
    for waiting in (4, 500):
        policy = elsewhere({"a": {"gpu:0": 0.1, "cpu:0": 0.2}}, {})
        took_ns = []
        for first in range(CHOICES):
            begin_ns = time.monotonic_ns()
            policy.choose(requests[first : first + waiting], loads, begin_ns)
            took_ns.append(time.monotonic_ns() - begin_ns)
        mean_us, p99_us = statistics.mean(took_ns) / 1e3, statistics.quantiles(took_ns, n=100)[98] / 1e3
        print(f"a decision apart, {waiting} requests waiting: mean {mean_us:.0f} µs, p99 {p99_us:.0f} µs")


def delay(folder: Path, name: str, policy: Callable[[Table, Table], Policy]) -> None:
    """Prints the arrival delay and the CPU time of waiting."""
    even = {"low": 0.002, "high": 0.002}
    stage = Stage(folder, {"a": even, "b": even}, {})
    phase = stage.phase(SECONDS)
    due_ns = {
        suite: seeds.arrivals_within(round(SECONDS * SECOND), round(PER_S * SECONDS), seeds.derived(1, suite))
        for suite in MIX.units
    }
    plan = partial(place.place, devices=stage.devices())
    units = dict.fromkeys(MIX.units, 2)
    source = partial(RequestQueue, policy=policy, limits=MIX.limits, due_ns=due_ns, units=units)
    drive = mixed.local_driver(MIX, phase, plan, source=source)
    before = os.times()
    records = attend(phase, stage.equipment(), folder, drive, on_ready=drive.on_ready)
    after = os.times()
    delays_ns = [record.arrival_delay_ns for record in records if record.arrival_delay_ns is not None]
    spent_s = sum(after[:4]) - sum(before[:4])
    print(f"arrivals, {name}: p99 {max(delays_ns) / 1e6:.3f} ms late  (goal ≤ 1 ms)")
    print(f"waiting, {name}: {spent_s:.2f} s of CPU time in a phase of {SECONDS:.0f} s, start of two workers included")


def main() -> None:
    blocks = int(sys.argv[1]) if sys.argv[1:] else 3
    elsewhere = PolicyProcess(registry.find("policies")["greedy"])
    decisions(elsewhere)
    for name, policy in (("greedy", policies.Greedy), ("greedy, apart", elsewhere)):
        with tempfile.TemporaryDirectory() as folder:
            delay(Path(folder), name, policy)
    with tempfile.TemporaryDirectory() as folder:
        throughputs(blocks, Path(folder), elsewhere)


if __name__ == "__main__":
    main()
