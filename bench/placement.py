"""The time of planning on a large machine, compared with the same linear program solved by scipy's linprog alone.

Run: python -m bench.placement [DEVICES [SUITES]]   (64 and 16)

linprog alone solves the case without residency, host threads and efficiency; it gives no certificate and does not scale
the program. In that case both must agree.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mixmark.harness.contracts.schema import Device, Placement, Rate
from mixmark.harness.plan.placement import Power, place, verify

GOAL_S = 1.0
REPEATS = 5
TOLERANCE = 1e-6


def machine(devices: int, suites: int) -> tuple[Mapping[str, float], list[Rate], list[Device]]:
    """The units of a mix, rates and devices of a made-up machine: a host and accelerators of two kinds, whose rates
    scatter."""
    draw = random.Random(0)
    kinds = ["cpu", *(draw.choice(("gpu", "npu")) for _ in range(devices - 1))]
    made = [
        Device.model_validate({"id": f"{kind}:{at}", "kind": kind, "memory_pool": f"pool:{at}"})
        for at, kind in enumerate(kinds)
    ]
    usual = {kind: [10 ** draw.uniform(0, 3) for _ in range(suites)] for kind in ("cpu", "gpu", "npu")}
    rates = [
        Rate(
            suite=f"s{suite}",
            device=device.id,
            adapter="acme",
            precision="bf16",
            batch=1,
            units_per_s=usual[device.kind][suite] * draw.uniform(0.8, 1.25),
            watts=draw.uniform(100, 700),
            memory_bytes=2 << 30,
        )
        for device in made
        for suite in range(suites)
    ]
    return {f"s{suite}": 10 ** draw.uniform(0, 3) for suite in range(suites)}, rates, made


def plain(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> float:
    """The largest λ, from the linear program in its plain form."""
    from scipy.optimize import linprog

    suites, devices = list(mix_units), list(dict.fromkeys(rate.device for rate in rates))
    table = np.zeros((len(suites) + len(devices), len(rates) + 1))
    for column, rate in enumerate(rates):
        table[suites.index(rate.suite), column] = -rate.units_per_s
        table[len(suites) + devices.index(rate.device), column] = 1
    table[: len(suites), -1] = list(mix_units.values())
    ends = [0.0] * len(suites) + [1.0] * len(devices)
    found = linprog([0.0] * len(rates) + [-1.0], A_ub=table, b_ub=ends, method="highs")
    return float(found.x[-1])


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """The median time in s, and the result; the first call, which imports the solver, is not timed."""
    out, took = call(), []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        out = call()
        took.append(time.perf_counter() - begin)
    return float(np.median(took)), out


def main(devices: int, suites: int) -> int:
    mix_units, rates, made = machine(devices, suites)
    power = Power({device.id: 60.0 for device in made}, 300.0)
    pools = {device.memory_pool: (2 << 30) * max(2, suites // 3) for device in made}
    print(f"{devices} devices, {suites} suites; median of {REPEATS}, goal at most {GOAL_S:g} s")
    late = False
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("throughput", {}),
        ("… memory short", {"pool_bytes": pools}),
        ("… host threads, memory short", {"pool_bytes": pools, "host_fraction": 0.5 / devices}),
        ("efficiency", {"objective": "efficiency", "power": power}),
        ("… memory short", {"objective": "efficiency", "power": power, "pool_bytes": pools}),
        (
            "… host threads, memory short",
            {"objective": "efficiency", "power": power, "pool_bytes": pools, "host_fraction": 0.5 / devices},
        ),
    )
    for name, options in cases:
        took, plan = timed(partial(place, mix_units, rates, made, **options))
        assert isinstance(plan, Placement)
        proof = "proven" if not verify(plan, mix_units) else "NOT PROVEN"
        late |= took > GOAL_S
        print(f"  {name:<30} {took:6.3f} s   λ {plan.mixes_per_s:9.4f}   λ* {plan.bound_per_s:9.4f} {proof}")
    took, reached = timed(lambda: plain(mix_units, rates))
    bound = place(mix_units, rates, made).bound_per_s
    print(f"  {'linprog alone':<30} {took:6.3f} s   λ {reached:9.4f}")
    if abs(reached / bound - 1) > TOLERANCE:
        print("the two disagree")
        return 1
    print("goal missed" if late else "goal met")
    return int(late)


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:3] or ("64", "16"))))
