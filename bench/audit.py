"""What the audit costs: keeping answers while the clock runs, and comparing them with the reference afterwards.

Run: python -m bench.audit [TIER [SUITE:BATCH:ADAPTER …]]   (smoke, and every suite at batch 1 by onnxruntime)

Throughput, over the time that feeds are in flight and over all of the window, with answers kept over without, in
alternating blocks of the same loop; for `null`, which answers at once, only the microseconds mean something. Both copy
what is yielded, for the stamp wants it plain; that copy's share of a feed stands beside. Then the reference, opened
once for a suite, on as many feeds as the standard preset audits, over that preset's warm-up and shortest window.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness import drive, plugins, stats
from harness.audit import HOST, REFERENCE
from harness.contracts import Array, Feed, Runner
from harness.plan import PRESETS
from harness.schema import Completions, Limits

GOAL = 0.99
PAIRS = 15
BLOCK_NS = 400_000_000
LONGEST_S = 5  # a feed beside which a pair says nothing that its copy does not
STANDARD = PRESETS["standard"].limits


class Null:
    """Answers at once, with a thousand numbers for each of its units."""

    slots = 1

    def __init__(self, units: int) -> None:
        self.answer = np.zeros((units, 1000), np.float32)
        self.facts: dict[str, str] = {}

    def __call__(self, feed: Feed) -> Iterator[Array]:
        yield self.answer


def block(runner: Runner, feeds: Iterator[Feed], answers: drive.Answers | None) -> Completions:
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=BLOCK_NS, max_ns=BLOCK_NS, min_feeds=1)
    return drive.closed_loop(runner, feeds, limits, answers=answers)


def kept(runner: Runner, feeds: Iterator[Feed]) -> str:
    """Medians over pairs of blocks, and the range of the ratios."""
    rates: dict[str, list[float]] = {"in flight": [], "of the window": []}
    extra_ns: list[float] = []
    first = block(runner, feeds, None)
    if (feed_s := stats.in_flight_ns(first) / len(first) / 1e9) > LONGEST_S:
        return f"not paired, since a feed takes {feed_s:.0f} s"
    for pair in range(PAIRS):
        done = {}
        for keeping in (True, False) if pair % 2 else (False, True):
            begin = time.perf_counter_ns()
            done[keeping] = block(runner, feeds, drive.Answers() if keeping else None), time.perf_counter_ns() - begin
        (on, on_ns), (off, off_ns) = done[True], done[False]
        per_feed = [stats.in_flight_ns(each) / len(each) for each in (off, on)]
        rates["in flight"].append(per_feed[0] / per_feed[1])
        rates["of the window"].append((len(on) / on_ns) / (len(off) / off_ns))
        extra_ns.append(on_ns / len(on) - off_ns / len(off))
    texts = [f"{statistics.median(extra_ns) / 1e3:+.1f} µs a feed,"]
    for what, ratios in rates.items():
        middle = statistics.median(ratios)
        verdict = "met" if middle >= GOAL else "MISSED"
        texts.append(f"{what} {middle:.4f} [{min(ratios):.3f} to {max(ratios):.3f}] {verdict}")
    return "  ".join(texts)


def copied(answers: list[Array], took_ns: int) -> str:
    begin = time.perf_counter_ns()
    for _ in range(100):
        for answer in answers:
            answer.tobytes()
    return f"copying an answer takes {(time.perf_counter_ns() - begin) / took_ns:.4f} % of its feed"


def compared(suite: Any, batch: int, answer: Array, window_s: float) -> str:
    """As the auditor does it, but for its process and for making the feeds between those that were drawn."""
    count = max(STANDARD.audits, math.ceil(suite.gate.samples / batch))
    feeds = suite.feeds(batch, 1)
    stamps = [time.perf_counter()]
    with adapter(REFERENCE).open(HOST, suite.reference(), "fp32") as runner:
        stamps.append(time.perf_counter())
        for _ in range(2):  # the first may prepare what all feeds share
            suite.quality(answer, np.concatenate(list(runner({**next(feeds), "answer": answer}))))
            stamps.append(time.perf_counter())
    loading, first, other = np.diff(stamps)
    took = loading + first + (count - 1) * other
    return (
        f"the reference of {count} feeds: {loading:.1f} s to load + {first:.2f} s + {count - 1} × {other:.2f} s "
        f"= {took:.1f} s, of a measurement of {window_s:.0f} s: {'met' if took < window_s else 'MISSED'}"
    )


def adapter(name: str) -> Any:
    return plugins.Plugin("adapters", name, plugins.BUILT_IN["adapters"][name], "built in").load()({})


def measured(name: str, tier: str, batch: int, by: str) -> Iterator[str]:
    suite = plugins.suite(name, plugins.BUILT_IN["suites"][name], tier, {})
    with adapter(by).open(HOST, suite, "fp32") as runner:
        feeds = suite.feeds(batch, 1)
        yield f"with over without, {kept(runner, feeds)}"
        begin = time.perf_counter_ns()
        answers = list(runner(next(suite.feeds(batch, 1))))
        took_ns = time.perf_counter_ns() - begin
        yield copied(answers, took_ns)
    window_ns = STANDARD.warmup_ns + max(STANDARD.min_ns, STANDARD.min_feeds * took_ns)
    yield compared(suite, batch, np.concatenate(answers), window_ns / 1e9)


def main() -> None:
    tier, *cells = sys.argv[1:] or ["smoke"]
    cells = cells or [f"{name}:1:onnxruntime" for name in ("resnet50", "dlrm", "llm", "diffusion")]
    print(f"{tier}: {PAIRS} pairs of blocks of {BLOCK_NS / 1e9} s or a feed; goal {GOAL}", flush=True)
    for units in (1, 64):
        print(f"null, {units} × 4 kB a feed: with over without, {kept(Null(units), itertools.repeat({}))}", flush=True)
    for cell in cells:
        name, batch, by = cell.split(":")
        for text in measured(name, tier, int(batch), by):
            print(f"{name} at batch {batch} by {by}: {text}", flush=True)


if __name__ == "__main__":
    main()
