"""Images a second under a CPU quota, with the threads that an engine is given and with each number of threads.

Run as root: python -m bench.quota [ROUNDS [CPUS …]]   (3 rounds of 0.5, 1 and 1.5 CPUs)

Makes a control group (version 2, else 1) and runs resnet50 at the smoke tier in it, each measurement in a process of
its own with the environment of a worker. Numbers of threads alternate.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.protocols import Use
from mixmark.harness.contracts.schema import Limits
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.plugins import registry
from mixmark.harness.resources import cpus
from mixmark.harness.worker.load_generator import closed_loop

GOAL = 0.95
QUOTAS = (0.5, 1.0, 1.5)
ADAPTERS = ("torch", "onnxruntime", "openvino")
BATCH, PERIOD_US, SECOND = 8, 100_000, 1_000_000_000
GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def limited(quota: float) -> Iterator[Path]:
    """A control group with this quota. Returns the file that a process's id is written to."""
    version_2 = (GROUPS / "cpu.max").exists() or "cpu" in _text(GROUPS / "cgroup.subtree_control").split()
    group = (GROUPS if version_2 else GROUPS / "cpu") / f"mixmark-bench-{os.getpid()}"
    group.mkdir()
    try:
        quota_us = round(quota * PERIOD_US)
        if version_2:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_quota_us").write_text(f"{quota_us}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def rate(adapter: str, threads: int | None, group: Path) -> float:
    """Images a second in a fresh process of the group. threads: None for what the adapter takes."""
    words = [sys.executable, "-m", "bench.quota", "--measure", adapter, str(threads or ""), str(group)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-1])


def measure(adapter_name: str, threads: str, group: str) -> None:
    Path(group).write_text("0")  # this process
    os.environ.update(cpus.thread_variables())
    suite: Any = registry.find("suites")["resnet50"].load()("smoke", {})
    adapter: Any = registry.find("adapters")[adapter_name].load()({"threads": threads} if threads else {})
    device = next(each for each in adapter.discover() if each.kind == "cpu")
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=2 * SECOND, max_ns=10 * SECOND, min_feeds=5)
    with adapter.open(device, suite, "fp32", Use.of("single-stream")) as runner:
        feeds = map(suite.feeds(BATCH, 0), itertools.count())
        list(runner(next(feeds)))  # this warms up
        print(timestamps.throughput_per_s(closed_loop(runner, lambda *_: next(feeds), limits)))


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:])
        return
    rounds, *quotas = [*map(float, sys.argv[1:])] or [3.0]
    counts = (None, *range(1, len(cpus.usable()) + 1))
    print(f"resnet50, batch {BATCH}, images/s; goal: at least {GOAL} of the best number of threads")
    print(f"{'CPUs':>5} {'adapter':12} {'given':>8} " + " ".join(f"{each:>8}" for each in counts[1:]) + "  ratio  goal")
    for quota, adapter in itertools.product(quotas or QUOTAS, ADAPTERS):
        rates: dict[int | None, list[float]] = defaultdict(list)
        with limited(quota) as group:
            for turn in range(int(rounds)):
                for threads in counts[:: -1 if turn % 2 else 1]:
                    rates[threads].append(rate(adapter, threads, group))
        medians = {threads: statistics.median(rates[threads]) for threads in counts}
        best = max(counts[1:], key=lambda threads: medians[threads])
        ratio = statistics.median(given / of_best for given, of_best in zip(rates[None], rates[best], strict=True))
        row = " ".join(f"{medians[threads]:8.1f}" for threads in counts)
        print(f"{quota:5.1f} {adapter:12} {row}  {ratio:5.3f}  {'ok' if ratio >= GOAL else 'missed'}", flush=True)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    main()
