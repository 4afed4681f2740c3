"""What the size of a cluster costs.

Run: python -m bench.capabilities.hosts.scale judge [HOSTS…]    (10 40 100)

judge: simulated hosts with a GPU, a processor, a wall meter and solo measurements of their own, judged once.
"""

from __future__ import annotations

import resource
import sys
import time

from mixmark.harness.judge.assessment import judge
from tests.fakes.hosts import cluster

SECONDS = 60


def judging(hosts: int) -> None:
    result = cluster([f"host{number}" for number in range(1, hosts + 1)], seconds=SECONDS)
    began_s = time.process_time()
    word = judge(result).verdict.word
    used_s = time.process_time() - began_s
    print(f"{hosts:6} hosts: {used_s:7.2f} s of CPU, {_memory_mib():6,} MiB, {word}", flush=True)


def _memory_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    for count in sys.argv[2:] or ("10", "40", "100"):
        judging(int(count))
