"""What the audit costs: keeping answers while the clock runs, and comparing them with the reference afterwards.

Run: python -m bench.audit [TIER [SUITE:BATCH:ADAPTER …]]   (smoke, and every suite at batch 1 by onnxruntime)

Time without answers kept over time with, of single feeds in turn, in flight and with what follows before the next: the
median and its 95 % interval, since a busy machine changes more from second to second than keeping costs. For `null`,
which answers at once, only the microseconds mean something; they are what a feed of any suite pays. Both copy what is
yielded, for the stamp wants it plain; that copy's share of a feed stands beside.

Then the reference, opened once for a suite, on as many feeds as the standard preset audits, over that preset's warm-up
and shortest window. Where the machine is shared, its processors' seconds tell more than its own.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness import drive, plugins
from harness.audit import CPU, REFERENCE
from harness.contracts import Array, Feed, Runner, Use
from harness.judge import stats
from harness.plan import PRESETS

GOAL = 0.99
PAIRS = 1000
LONGEST_S = 20  # for the pairs
FEWEST = 9  # pairs, of which a median has an interval
STANDARD = PRESETS["standard"].limits


class Null:
    """Answers at once, with a thousand numbers for each of its units."""

    slots = 1

    def __init__(self, units: int) -> None:
        self.answer = np.zeros((units, 1000), np.float32)
        self.facts: dict[str, str] = {}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield self.answer


def kept(runner: Runner, feeds: Iterator[Feed]) -> str:
    logs = {True: drive.Log(answers=drive.Answers()), False: drive.Log()}
    took: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    begin = time.perf_counter()
    for pair in range(PAIRS):
        for keeping in (True, False) if pair % 2 else (False, True):
            feed = next(feeds)
            issued_ns, marks, _ = logs[keeping].feed(runner, feed, time.perf_counter_ns, serial=pair)
            took[keeping].append((marks[-2] - issued_ns, time.perf_counter_ns() - issued_ns))
        if time.perf_counter() - begin > LONGEST_S:
            break
    if pair + 1 < FEWEST:
        return f"not paired: a feed takes {(time.perf_counter() - begin) / (pair + 1) / 2:.0f} s"
    on, off = (np.array(took[keeping], np.int64) for keeping in (True, False))
    extra_us = float(np.median(on[:, 1]) - np.median(off[:, 1])) / 1e3
    texts = [f"{extra_us:+.1f} µs a feed,"]
    for what, ratios in zip(("in flight", "and what follows"), (off / on).T, strict=True):
        low, high = stats.percentile_interval((ratios * 1e6).astype(np.int64), 0.5) or (0, 0)
        middle = float(np.median(ratios))
        verdict = "met" if middle >= GOAL else "not told apart from it" if high >= GOAL * 1e6 else "MISSED"
        texts.append(f"{what} {middle:.4f} [{low / 1e6:.4f} to {high / 1e6:.4f}] {verdict}")
    return "  ".join([*texts, f"({pair + 1} pairs)"])


def copied(answers: list[Array], took_ns: int) -> str:
    begin = time.perf_counter_ns()
    for _ in range(100):
        for answer in answers:
            answer.tobytes()
    return f"copying an answer takes {(time.perf_counter_ns() - begin) / took_ns:.4f} % of its feed"


def compared(suite: Any, batch: int, answer: Array, window_s: float) -> str:
    """As the auditor does it, but for its process and for making the feeds between those that were drawn."""
    count = max(STANDARD.audits, math.ceil(suite.gate("fp32").samples / batch))
    feeds = suite.feeds(batch, 1)
    stamps = [(time.perf_counter(), time.process_time())]
    with adapter(REFERENCE).open(CPU, suite.reference(), "fp32", Use.of("single-stream")) as runner:
        stamps.append((time.perf_counter(), time.process_time()))
        for _ in range(2):  # the first may prepare what all feeds share
            suite.quality(answer, np.concatenate(list(runner({**next(feeds), "answer": answer}))))
            stamps.append((time.perf_counter(), time.process_time()))
    (loading, first, other), busy = np.diff(stamps, axis=0).T
    took, worked = loading + first + (count - 1) * other, busy[0] + busy[1] + (count - 1) * busy[2]
    return (
        f"the reference of {count} feeds: {loading:.1f} s to load + {first:.2f} s + {count - 1} × {other:.2f} s "
        f"= {took:.1f} s, {worked:.1f} s of processors, of a measurement of {window_s:.0f} s: "
        f"{'met' if took < window_s else 'not told, on so busy a machine' if worked < window_s else 'MISSED'}"
    )


def adapter(name: str) -> Any:
    return plugins.Plugin("adapters", name, plugins.BUILT_IN["adapters"][name], "built in").load()({})


def measured(name: str, tier: str, batch: int, by: str) -> Iterator[str]:
    suite = plugins.suite(name, plugins.BUILT_IN["suites"][name], tier, {})
    with adapter(by).open(CPU, suite, "fp32", Use.of("single-stream")) as runner:
        feeds = suite.feeds(batch, 1)
        yield f"with over without, {kept(runner, feeds)}"
        begin = time.perf_counter_ns()
        answers = list(runner(next(suite.feeds(batch, 1))))
        took_ns = time.perf_counter_ns() - begin
        yield copied(answers, took_ns)
    whole = max(STANDARD.min_feeds, math.ceil(STANDARD.min_ns / took_ns))  # a window ends with a feed
    window_ns = STANDARD.warmup_ns + whole * took_ns
    yield compared(suite, batch, np.concatenate(answers), window_ns / 1e9)


def main() -> None:
    tier, *cells = sys.argv[1:] or ["smoke"]
    cells = cells or [f"{name}:1:onnxruntime" for name in ("resnet50", "dlrm", "llm", "diffusion")]
    print(f"{tier}: {PAIRS} pairs of feeds or {LONGEST_S} s; goal {GOAL}", flush=True)
    for units in (1, 64):
        extra, *_ = kept(Null(units), itertools.repeat({})).partition(",")
        print(f"null, {units} × 4 kB a feed: keeping answers takes {extra}", flush=True)
    for cell in cells:
        name, batch, by = cell.split(":")
        for text in measured(name, tier, int(batch), by):
            print(f"{name} at batch {batch} by {by}: {text}", flush=True)


if __name__ == "__main__":
    main()
