"""Measures a suite alone on a device: the worker drives its own closed or open loop.

The window opens when its seed leaves the parent and closes when the worker's commitment to all outputs arrives. Each
feed follows from the seed and from an earlier output of the same issue thread: the previous one, or the one before it
if feeds are made ahead. So no worker can compute feeds outside of the window, and no feed waits for the parent.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Completions, Failure, Limits
from mixmark.harness.contracts.seeds import schedule
from mixmark.harness.judge.statistics.intervals import sample_needed
from mixmark.harness.measure.phase import SECOND, Part
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.load_generator import chains
from mixmark.harness.worker.messages import MAX_CONCURRENCY, AdapterCalls

REPORTED_NS = 4_000_000  # between the arrivals of a server whose feeds are reported: a message costs up to 1 % of this


def drive(parts: Sequence[Part]) -> None:
    """Measures the parts one after the other. Raises WorkerFailed."""
    for part in parts:
        _drive(part)


def _drive(part: Part) -> None:
    worker, limits, draft = part.worker, _limits(part), part.draft
    stamps = part.scratch / f"{part.share.key}.stamps.npz"
    longest_s = (limits.min_ns + limits.max_ns) / SECOND  # an open loop's last feed may wait as long as `max_ns`
    seed = part.begin()
    threads = 1 if part.share.scenario == "single-stream" else part.concurrency
    part.commitments.chains = threads if part.share.scenario == "server" else threads * chains(part.ahead)
    reported = part.commitments.reported = _reported(part)
    measure = worker.call(AdapterCalls.measure, part.timeout_s + longest_s, part.stage, window=part.commitments)
    part.stage("measuring")
    begin_ns = time.monotonic_ns()
    measure(key=part.share.key, seed=seed, limits=limits, report_feeds=reported, out=str(stamps))
    end_ns = part.commitments.sealed_ns
    if end_ns is None:
        raise _no_result("the worker did not close its window")
    try:
        done, serials = worker.completions(stamps)
        done = _bounded(part, done, serials.tolist(), begin_ns)
    except (ValueError, TypeError, LookupError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _no_result(f"the worker's timestamps cannot be used: {error}") from error
    draft.ended_by = _ended_by(limits, part.share.scenario == "server", end_ns - begin_ns, len(done))
    draft.completions, draft.parent_window_ns = done, (begin_ns, end_ns)
    draft.latency_limits = part.suite.latency


def _limits(part: Part) -> Limits:
    """The limits of the window. A server has at least the feeds that the percentile of its latency limits needs, if
    they arrive in time."""
    limits, rate_per_s, latency = part.share.limits, part.draft.rate_per_s, part.suite.latency
    if part.share.scenario != "server" or rate_per_s is None or latency is None:
        return limits
    needed = sample_needed(latency.percentile)
    fits = needed / rate_per_s * SECOND <= limits.max_ns
    return limits.model_copy(update={"min_feeds": max(limits.min_feeds, needed)}) if fits else limits


def _ended_by(limits: Limits, open_loop: bool, elapsed_ns: int, feeds: int) -> Literal["precision", "cap", "time"]:
    """What ended a window, on the parent's clock. Raises WorkerFailed if nothing did: a worker that chooses when to
    stop chooses its best stretch. The rule `on_schedule` says whether an open loop went on for the shortest time."""
    capped = elapsed_ns >= limits.max_ns and not open_loop
    if not capped and (feeds < limits.min_feeds or (elapsed_ns < limits.min_ns and not open_loop)):
        lasted_s, least_s = elapsed_ns / SECOND, limits.min_ns / SECOND
        finished = f"with {counted(feeds, 'feed')} of at least {limits.min_feeds}"
        raise _no_result(f"the worker ended its window after {lasted_s:.2f} s of at least {least_s:.2f} s, {finished}")
    if limits.half_width is None or open_loop:
        return "time"
    return "cap" if capped else "precision"


def _bounded(part: Part, done: Completions, serials: list[int], begin_ns: int) -> Completions:
    """The timestamps, with the parent's own ones for when a server's feeds were due and when each feed was reported.
    Raises ValueError if they cannot be of this window."""
    commitments = part.commitments
    most = len(done) + 2 * MAX_CONCURRENCY  # feeds that were made ahead have numbers too
    if len(serials) != len(done) or len(set(serials)) != len(done) or not all(0 <= each < most for each in serials):
        raise ValueError("its feeds are not numbered one by one")
    if part.share.scenario == "server":
        assert part.draft.rate_per_s is not None and part.draft.seed is not None  # the window had them
        due_ns = schedule(part.draft.rate_per_s, seeds.arrivals(part.draft.seed), max(serials) + 1)
        done = replace(done, due_ns=begin_ns + due_ns[serials])
    if commitments.reported:
        if commitments.seen_ns.keys() != set(serials):
            raise ValueError("its feeds are not those that it reported")
        done = replace(done, seen_ns=np.array([commitments.seen_ns[serial] for serial in serials], np.int64))
    return done


def _reported(part: Part) -> bool:
    """Whether the worker reports the end of each feed, which bounds the feed's timestamps: if a feed has several yields
    and thus latencies of its own, and in the server scenario unless the feeds arrive so fast that it would slow them
    down. A screening run and a probe have no latencies."""
    share = part.share
    if share.scenario == "server":
        assert part.draft.rate_per_s is not None  # given, or searched for
        return part.draft.rate_per_s * REPORTED_NS <= SECOND
    several = sum(cost.yields for cost in part.draft.costs) > 1
    return several and share.scenario != "probe" and not share.limits.screening


def _no_result(message: str) -> WorkerFailed:
    return WorkerFailed(Failure(kind="no result", message=message))
