"""ONNX Runtime as a user runs it: the exported file with fp32 weights, a thread a core, consecutive calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import onnx

from mixmark.harness.adapters.onnxruntime import from_file
from mixmark.harness.adapters.onnxruntime.devices import CPU
from mixmark.harness.contracts.protocols import Feed, Suite
from mixmark.harness.resources.cpus import cores
from mixmark.suites.dlrm import Dlrm
from mixmark.suites.resnet50 import ResNet50

BATCHES = {"resnet50": (1, 8, 16), "dlrm": (64, 256, 1024)}
ROUND_S = 4.0


def repeated(session: Any, feed: Feed, batch: int, seconds: float) -> float:
    """Samples per second of one feed, run again and again."""
    begin, done = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        session.run(None, feed)
        done += batch
    return done / (time.monotonic() - begin)


@contextmanager
def _offline(suite: Suite, precision: str) -> Iterator[Callable[[], float]]:
    """The best of a few batches."""
    import onnxruntime

    if precision != "fp32":
        raise SystemExit(f"the exported graphs are in fp32, not in {precision}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    (graph,) = suite.graphs().values()
    session = from_file(onnx.load_from_string(graph.onnx()), suite.weights(), options, [CPU])
    feeds = {batch: dict(suite.feeds(batch, 0)(0)) for batch in BATCHES[suite.name]}
    rates = {}
    for batch, feed in feeds.items():
        repeated(session, feed, batch, 0.5)
        rates[batch] = repeated(session, feed, batch, 1.5)
    best = max(rates, key=lambda batch: rates[batch])
    yield lambda: repeated(session, feeds[best], best, ROUND_S)


@contextmanager
def resnet50(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    with _offline(ResNet50(tier, {}), precision) as work:
        yield work


@contextmanager
def dlrm(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    with _offline(Dlrm(tier, {}), precision) as work:
        yield work
