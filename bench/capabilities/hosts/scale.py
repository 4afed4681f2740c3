"""What the size of a cluster costs, in a table. From the second number of hosts on, n^x says how it grows with it.

Run: python -m bench.capabilities.hosts.scale judge [HOSTS…]    (10 100 1000)
     python -m bench.capabilities.hosts.scale plan [HOSTS…]     (10 100 1000)
     python -m bench.capabilities.hosts.scale alone [HOSTS…]    (1 2 4 8)

judge: simulated hosts with a GPU, a processor, a wall meter and solo measurements of their own, judged once.
plan: a new plan of a mix for hosts of four kinds with 11 devices, whose rates differ by 2 %, and with host threads.
alone: agents that are threads of this process, each with 4 phases of a second, until all records are kept.
"""

from __future__ import annotations

import math
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.classes import by_classes
from mixmark.harness.capabilities.hosts.executor import Cluster
from mixmark.harness.capabilities.hosts.messages import PhaseMeasured
from mixmark.harness.contracts.schema import Phase
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.plan.placement import place
from tests.capabilities.hosts.stand_ins import StandIn, StandInLauncher
from tests.capabilities.hosts.stand_ins import solo as alone
from tests.fakes.hosts import cluster
from tests.fakes.machine import MIX, device, solo

SECONDS = 60
DEVICES = (*(f"gpu:{number}" for number in range(8)), "cpu:0", "cpu:1", "npu:0")
KINDS = 4  # of hosts
APART = 0.02
PHASES = 4


Cost = tuple[float, str]
"""Seconds, and what they are."""


def judging(hosts: int) -> Cost:
    result = cluster([f"host{number}" for number in range(1, hosts + 1)], seconds=SECONDS)
    began_s = time.process_time()
    judge(result)
    used_s = time.process_time() - began_s
    return used_s, f"s of CPU, result.json {len(result.model_dump_json(indent=2)):,} bytes"


def planning(hosts: int) -> Cost:
    draw = random.Random(1)
    kinds = {
        (kind, device.partition(":")[0], suite): draw.lognormvariate(0, 1)
        for kind in range(KINDS)
        for device in DEVICES
        for suite in MIX
    }
    known = {
        (suite, f"host{host}/{id}"): kinds[host % KINDS, id.partition(":")[0], suite] * draw.lognormvariate(0, APART)
        for host in range(hosts)
        for id in DEVICES
        for suite in MIX
    }
    rates, devices = solo(known), [device(id) for id in dict.fromkeys(id for _, id in known)]
    first = [rate for rate in rates if rate.device.startswith("host0/")]
    plan = by_classes(place(MIX, first, devices[: len(DEVICES)], host_fraction=0.02), devices)
    began_s = time.process_time()
    plan(MIX, rates)
    return time.process_time() - began_s, "s of CPU"


class Working(StandIn):
    """A host whose phases last a second."""

    def measure(self, phase: Phase) -> PhaseMeasured | None:
        time.sleep(1)
        return super().measure(phase)


def measuring(hosts: int) -> Cost:
    names = [f"host{number}" for number in range(1, hosts + 1)]
    phases = [alone(f"solo{at}-{name}", f"{name}/npu:a") for name in names for at in range(PHASES)]
    with tempfile.TemporaryDirectory(prefix="mixmark-") as scratch:
        folder = Path(scratch)
        (folder / "out/raw").mkdir(parents=True)
        launcher = StandInLauncher(folder, {name: Working() for name in names})
        with Agents(launcher, launcher.hosts, folder) as agents:
            led = Cluster(agents, (), {"low": "sample"}, folder / "out", {name: [name] for name in names})
            began_s, used_s = time.monotonic(), time.process_time()
            for several in led.rounds(phases):
                requests = [PhaseRequest(phase, 0, None, ()) for phase in several]
                for facts in led.measure(requests, lambda event: None):
                    assert not [record for record in facts.records if record.error]
            used_s = time.process_time() - used_s
            return time.monotonic() - began_s, f"s, {used_s:5.2f} s of CPU, agents included"


PARTS: dict[str, tuple[Callable[[int], Cost], str]] = {
    "judge": (judging, "10 100 1000"),
    "plan": (planning, "10 100 1000"),
    "alone": (measuring, "1 2 4 8"),
}


if __name__ == "__main__":
    measured, usual = PARTS[sys.argv[1]]
    before: tuple[int, float] | None = None
    for hosts in map(int, sys.argv[2:] or usual.split()):
        seconds, words = measured(hosts)
        growth = before and f", n^{math.log(seconds / before[1]) / math.log(hosts / before[0]):.2f}"
        memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{sys.argv[1]} {hosts:>6} hosts: {seconds:7.2f} {words}, {memory_mib:,} MiB{growth or ''}", flush=True)
        before = hosts, seconds
