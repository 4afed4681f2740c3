"""The cost of serving: a device's throughput with each policy over its throughput with the plan, and arrival delays.

Run: python -m bench.load [BLOCKS]    (3)

The throughput is measured with the onnxruntime adapter and resnet50 at the smoke tier, batch 1, in alternating phases;
the goal is at least 0.99. The delay is the 99th percentile of the time from a request's due time until the harness
handled its arrival, at 50 requests per second on a machine whose devices only sleep, so that a core is idle; the goal
is at most 1 ms. It also prints the CPU time of the parent and the sleeping workers.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.dispatch import SECONDS, rate_per_s, stand
from bench.policies import COMPARED
from mixmark.harness.contracts.schema import BY_PLAN, Load
from mixmark.harness.measure import mixed
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement as place
from mixmark.harness.plan import policies
from mixmark.harness.plan.presets import SECOND
from tests.measure.test_mixed import MIX, Stage

PER_S = 25
"""The arriving requests per second of each of two suites."""


def throughputs(blocks: int, folder: Path) -> None:
    """Prints the throughput with each policy over the throughput with the plan."""
    made = stand()
    by_plan: list[float] = []
    others: dict[str, list[float]] = {name: [] for name in COMPARED}
    for _ in range(blocks):
        for name in (BY_PLAN, *COMPARED):
            drive = mixed.local_driver(made.mix, made.together, made.plan, policy=COMPARED.get(name))
            [record] = attend(made.together, made.equipment, folder, drive, on_ready=drive.on_ready)
            others.get(name, by_plan).append(rate_per_s(record))
    for name, rates in others.items():
        ratio = statistics.median(rate / planned for rate, planned in zip(rates, by_plan, strict=True))
        print(f"{name:<15} {ratio:.4f} of the throughput by the plan, median of {blocks}  (goal ≥ 0.99)")


def delay(folder: Path) -> None:
    """Prints the arrival delay and the CPU time of waiting."""
    even = {"low": 0.002, "high": 0.002}
    stage = Stage(folder, {"a": even, "b": even}, {})
    phase = stage.phase(SECONDS)
    load = Load(
        level=0.5,
        mixes_per_s=1,
        length_ns=round(SECONDS * SECOND),
        requests=dict.fromkeys(MIX.units, round(PER_S * SECONDS)),
        request_units=dict.fromkeys(MIX.units, 2),
        seed=1,
    )
    phase = phase.model_copy(update={"purpose": "load", "load": load})
    plan = partial(place.place, devices=stage.devices())
    drive = mixed.local_driver(MIX, phase, plan, policy=policies.Greedy)
    before = os.times()
    records = attend(phase, stage.equipment(), folder, drive, on_ready=drive.on_ready)
    after = os.times()
    delays_ns = [record.arrival_delay_ns for record in records if record.arrival_delay_ns is not None]
    spent_s = sum(after[:4]) - sum(before[:4])
    print(f"arrivals: p99 {max(delays_ns) / 1e6:.3f} ms late  (goal ≤ 1 ms)")
    print(f"waiting: {spent_s:.2f} s of CPU time in a phase of {SECONDS:.0f} s, start of two workers included")


def main() -> None:
    blocks = int(sys.argv[1]) if sys.argv[1:] else 3
    with tempfile.TemporaryDirectory() as folder:
        delay(Path(folder))
        throughputs(blocks, Path(folder))


if __name__ == "__main__":
    main()
