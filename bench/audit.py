"""The cost of the audit: keeping outputs while the clock runs, and comparing them with the reference afterwards.

Run: python -m bench.audit [TIER [SUITE:BATCH:ADAPTER …]]   (smoke, and every suite at batch 1 by onnxruntime)

First, feeds alternate between keeping and not keeping the outputs. The ratio is the time of a feed without keeping over
the time with it, both in flight and including the work until the next feed can start. It is printed as a median with
its 95 % interval, since a busy machine varies more from second to second than keeping outputs costs. For `null`, which
replies at once, only the microseconds are meaningful: they are the cost for a feed of every suite. Both kinds of feed
copy each yield into plain memory before the timestamp; the fraction of a feed that this copy takes is printed too.

Second, the reference of each suite is opened once and run on as many feeds as the standard preset audits. Its time is
compared with the warm-up and the shortest window of that preset. On a shared machine the CPU time is more reliable than
the wall time.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from mixmark.harness.contracts.protocols import Array, Feed, Runner, Use
from mixmark.harness.judge.statistics import intervals
from mixmark.harness.measure.audit import CPU, REFERENCE
from mixmark.harness.plan.presets import PRESETS
from mixmark.harness.plugins import registry
from mixmark.harness.worker import load_generator
from mixmark.harness.worker.outputs import Outputs

GOAL = 0.99
KEY = 1  # the sampling key, which a run draws at random
PAIRS = 1000
LONGEST_S = 20  # limit for all pairs of a suite
FEWEST = 9  # minimum number of pairs for an interval of the median
STANDARD = PRESETS["standard"].limits


class Null:
    """A runner that yields at once, with a thousand numbers for each unit."""

    concurrency = 1

    def __init__(self, units: int) -> None:
        self.output = np.zeros((units, 1000), np.float32)
        self.facts: dict[str, str] = {}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield self.output


def kept(runner: Runner, feeds: Iterator[Feed]) -> str:
    logs = {
        True: load_generator.FeedLog(outputs=Outputs(lambda done, commitment: KEY)),
        False: load_generator.FeedLog(),
    }
    took: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    begin = time.perf_counter()
    for pair in range(PAIRS):
        for keeping in (True, False) if pair % 2 else (False, True):
            feed = next(feeds)
            issued_ns = time.perf_counter_ns()
            marks, _ = logs[keeping].run(runner, feed, time.perf_counter_ns, serial=pair)
            took[keeping].append((marks[-2] - issued_ns, time.perf_counter_ns() - issued_ns))
        if time.perf_counter() - begin > LONGEST_S:
            break
    if pair + 1 < FEWEST:
        return f"not paired: a feed takes {(time.perf_counter() - begin) / (pair + 1) / 2:.0f} s"
    on, off = (np.array(took[keeping], np.int64) for keeping in (True, False))
    extra_us = float(np.median(on[:, 1]) - np.median(off[:, 1])) / 1e3
    texts = [f"{extra_us:+.1f} µs a feed,"]
    for what, ratios in zip(("in flight", "and what follows"), (off / on).T, strict=True):
        half = float(intervals.student_t(pair, 0.95)) * ratios.std(ddof=1) / math.sqrt(pair + 1)
        middle = float(ratios.mean())
        verdict = "met" if middle >= GOAL else "not distinguishable" if middle + half >= GOAL else "MISSED"
        texts.append(f"{what} {middle:.4f} [{middle - half:.4f} to {middle + half:.4f}] {verdict}")
    return "  ".join([*texts, f"({pair + 1} pairs)"])


def copied(outputs: list[Array], took_ns: int) -> str:
    begin = time.perf_counter_ns()
    for _ in range(100):
        for output in outputs:
            output.tobytes()
    return f"copying an output takes {(time.perf_counter_ns() - begin) / took_ns:.4f} % of its feed"


def compared(suite: Any, batch: int, output: Array, window_s: float) -> str:
    """Compares feeds like the auditor, but without its process and without making the feeds that are not audited."""
    count = max(STANDARD.audits, math.ceil(suite.gate("fp32").samples / batch))
    feeds = map(suite.feeds(batch, 1), itertools.count())
    marks = [(time.perf_counter(), time.process_time())]
    with adapter(REFERENCE).open(CPU, suite.reference(), "fp32", Use.of("single-stream")) as runner:
        marks.append((time.perf_counter(), time.process_time()))
        for _ in range(2):  # the first may include work that all feeds share
            suite.quality(output, np.concatenate(list(runner({**next(feeds), "output": output}))))
            marks.append((time.perf_counter(), time.process_time()))
    (loading, first, other), busy = np.diff(marks, axis=0).T
    took, worked = loading + first + (count - 1) * other, busy[0] + busy[1] + (count - 1) * busy[2]
    return (
        f"the reference of {count} feeds: {loading:.1f} s to load + {first:.2f} s + {count - 1} × {other:.2f} s "
        f"= {took:.1f} s, {worked:.1f} s of CPU time, against a measurement of {window_s:.0f} s: "
        f"{'met' if took < window_s else 'unclear, the machine was busy' if worked < window_s else 'MISSED'}"
    )


def adapter(name: str) -> Any:
    return registry.Plugin("adapters", name, registry.BUILT_IN["adapters"][name], "built in").load()({})


def measured(name: str, tier: str, batch: int, by: str) -> Iterator[str]:
    suite = registry.build_suite(name, registry.BUILT_IN["suites"][name], tier, {})
    with adapter(by).open(CPU, suite, "fp32", Use.of("single-stream")) as runner:
        feeds = map(suite.feeds(batch, 1), itertools.count())
        yield f"time without keeping over time with, {kept(runner, feeds)}"
        begin = time.perf_counter_ns()
        outputs = list(runner(suite.feeds(batch, 1)(0)))
        took_ns = time.perf_counter_ns() - begin
        yield copied(outputs, took_ns)
    whole = max(STANDARD.min_feeds, math.ceil(STANDARD.min_ns / took_ns))  # a window ends at the end of a feed
    window_ns = STANDARD.warmup_ns + whole * took_ns
    yield compared(suite, batch, np.concatenate(outputs), window_ns / 1e9)


def main() -> None:
    tier, *measurements = sys.argv[1:] or ["smoke"]
    measurements = measurements or [f"{name}:1:onnxruntime" for name in ("resnet50", "dlrm", "llm", "diffusion")]
    print(f"{tier}: {PAIRS} pairs of feeds or {LONGEST_S} s; goal {GOAL}", flush=True)
    for units in (1, 64):
        extra, *_ = kept(Null(units), itertools.repeat({})).partition(",")
        print(f"null, {units} × 4 kB a feed: keeping outputs takes {extra}", flush=True)
    for measurement in measurements:
        name, batch, by = measurement.split(":")
        for text in measured(name, tier, int(batch), by):
            print(f"{name} at batch {batch} by {by}: {text}", flush=True)


if __name__ == "__main__":
    main()
