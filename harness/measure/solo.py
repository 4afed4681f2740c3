"""Measures a suite alone on a device: the worker drives its own closed or open loop.

The worker gets the window's seed when the window begins. Each feed follows from the seed and from an earlier output of
the same issue thread: the previous one, or the one before it if feeds are made ahead. So no worker can compute feeds
before their turn, and no feed waits for the parent.
"""

from __future__ import annotations

from collections.abc import Sequence

from mixmark.harness.contracts.schema import Failure
from mixmark.harness.measure.phase import SECOND, Part
from mixmark.harness.worker import messages
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.load_generator import chains


def drive(parts: Sequence[Part]) -> None:
    """Measures the parts one after the other. Raises WorkerFailed."""
    for part in parts:
        _drive(part)


def _drive(part: Part) -> None:
    worker, limits = part.worker, part.share.limits
    stamps = part.scratch / f"{part.share.key}.stamps.npz"
    longest_s = (limits.min_ns + limits.max_ns) / SECOND  # an open loop's last feed may wait as long as `max_ns`
    part.begin(send_seed=True)
    threads = 1 if part.share.scenario == "single-stream" else part.concurrency
    part.commitments.chains = threads if part.share.scenario == "server" else threads * chains(part.ahead)
    request = messages.Measure(key=part.share.key, limits=limits, out=str(stamps))
    measured = worker.call(request, part.timeout_s + longest_s, part.stage, sampling_key=part.sampling_key)
    try:
        done = worker.completions(stamps)
    except (ValueError, TypeError, OSError, EOFError) as error:
        message = f"the worker's stamps cannot be used: {error}"
        raise WorkerFailed(Failure(kind="no result", message=message)) from error
    part.commitments.window = worker.commitment or ""
    draft = part.draft
    draft.completions, draft.ended_by = done, measured.ended_by
    draft.parent_window_ns = worker.stages_ns["measuring"], worker.stages_ns["measured"]
    draft.latency_limits = part.suite.latency
