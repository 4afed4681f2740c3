"""One mix over many simulated hosts: how near it comes to the bound, and what the coordinator's work grows with.

Run: python -m bench.cluster [HOSTS] [DEVICES] [SUITES] [SECONDS]    (1000 8 4 60)

Devices of random rates on a fake clock, with links of 1 ms and of 50 ms. The goals: at least 0.99 of the bound, and a
coordinator whose work grows with the hosts and not with the feeds. Then the plan alone: 8,000 devices and 16 suites
within 60 s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from unittest import mock

from mixmark.harness.measure.dispatch import Grant
from mixmark.harness.plan.placement import place, verify
from tests.fakes.cluster import drawn, many
from tests.fakes.machine import device, solo


class Timed:
    """The coordinator's work for an exchange with all hosts, timed."""

    def __init__(self, grants: Callable[[float], Mapping[str, Grant]]) -> None:
        self._grants, self.spent_s, self.calls = grants, 0.0, 0

    def __call__(self, now_s: float) -> Mapping[str, Grant]:
        begin = time.perf_counter()
        found = self._grants(now_s)
        self.spent_s += time.perf_counter() - begin
        self.calls += 1
        return found


def main() -> None:
    hosts, devices, suites, seconds = map(int, [*sys.argv[1:], *("1000", "8", "4", "60")[len(sys.argv) - 1 :]])
    for count, link_s in ((hosts // 10, 0.001), (hosts, 0.001), (hosts, 0.05)):
        cluster = many(count, devices, suites, seed=1, link_s=link_s)
        timed = Timed(cluster.coordinator.grants)
        with mock.patch.object(cluster.coordinator, "grants", timed):
            cluster.run(10)
            share = cluster.run(10 + seconds) / cluster.placement.bound_per_s
        feeds = sum(sum(machine.dispatcher.units.values()) for machine in cluster.hosts.values())
        print(
            f"{count} hosts of {devices} devices, links of {link_s * 1000:g} ms:"
            f" {share:.4f} of the bound (goal ≥ 0.99);"
            f" {timed.spent_s / timed.calls * 1000:.1f} ms of the coordinator for each of {timed.calls} exchanges;"
            f" {feeds:,.0f} feeds, {cluster.messages:,} messages",
            flush=True,
        )
    rates = drawn(1000, 8, 16, 1)
    machines = [device(id) for id in dict.fromkeys(id for _, id in rates)]
    mix_units = {f"s{suite}": 1000.0 for suite in range(16)}
    begin = time.perf_counter()
    plan = place(mix_units, solo(rates), machines)
    print(f"8,000 devices, 16 suites: planned in {time.perf_counter() - begin:.1f} s (goal ≤ 60)")
    print(f"  its proof: {', '.join(verify(plan, mix_units)) or 'holds'}")


if __name__ == "__main__":
    main()
