"""Measures a suite alone on a device: the worker drives its own closed or open loop.

The window opens when its seed leaves the parent and closes when the worker's commitment to all outputs arrives. A feed
follows from the seed and from the output before it in its chain, so no worker can compute feeds outside of the window.
A server's feeds and those of a closed loop that are not brief also follow from secrets, which leave the parent when
their turn comes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Literal

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Completion, Completions, Failure, Limits
from mixmark.harness.contracts.seeds import SLOT_NS, poisson, schedule
from mixmark.harness.judge.statistics.intervals import sample_needed
from mixmark.harness.measure.phase import SECOND, Part, stamped
from mixmark.harness.resources import clock
from mixmark.harness.resources.files import DAMAGE
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.load_generator import chains
from mixmark.harness.worker.messages import MAX_CONCURRENCY, AdapterCalls, LoopChoice

TURN_NS = 20_000_000  # a closed loop of longer feeds waits for the turn of each: the round trip takes up to 1 % of this


def drive(parts: Sequence[Part], loop: LoopChoice | None = None) -> None:
    """Measures the parts one after the other. loop: issues the feeds in place of the worker's own. Raises
    WorkerFailed."""
    for part in parts:
        _drive(part, loop)


def _drive(part: Part, loop: LoopChoice | None) -> None:
    worker, limits, draft = part.worker, _limits(part), part.draft
    stamps = part.scratch / f"{part.name}.stamps.npz"
    longest_s = (limits.min_ns + limits.max_ns) / SECOND  # an open loop's last feed may wait as long as `max_ns`
    part.begin(loop)
    threads = _threads(part)
    part.commitments.chains = threads if part.share.scenario == "server" else threads * chains(part.ahead)
    draft.stamped = part.commitments.reported = not loop and _reported(part)
    measure = worker.call(AdapterCalls.measure, part.timeout_s + longest_s, part.stage, window=part.commitments)
    part.stage("measuring")
    begin_ns = clock.now_ns()
    with _revealing(part, begin_ns) as loop_seed:
        measure(key=part.name, seed=loop_seed, limits=limits, report_feeds=draft.stamped, out=str(stamps))
    end_ns = part.commitments.sealed_ns
    if end_ns is None:
        raise _no_result("the worker did not close its window")
    try:
        done, serials = worker.completions(stamps)
        done = _checked(part, done, serials.tolist(), begin_ns)
    except (*DAMAGE, TypeError) as error:
        raise _no_result(f"the worker's timestamps cannot be used: {error}") from error
    draft.ended_by = _ended_by(limits, part.share.scenario == "server", end_ns - begin_ns, len(done))
    draft.completions, draft.parent_window_ns = done, (begin_ns, end_ns)
    draft.latency_limits = part.suite.latency


@contextmanager
def _revealing(part: Part, begin_ns: int) -> Iterator[int]:
    """Yields the seed that opens the window. Within the block, secrets leave when their turns come: of a server when
    their first feed is due, of a closed loop that is reported when the output arrives that makes room for a feed."""
    seed, commitments = part.draft.seed, part.commitments
    assert seed is not None  # `Part.begin` drew it

    def reveal(turn: int) -> None:
        part.worker.send(AdapterCalls.reveal, key=part.name, turn=turn, secret=seeds.secret(seed, turn))

    if part.share.scenario == "server":
        with _by_time(part, seed, begin_ns, reveal):
            yield seeds.arrivals(seed)
        return
    if commitments.reported:
        room = commitments.chains or 1
        for turn in range(room):
            reveal(turn)
        commitments.on_output = lambda outputs: reveal(outputs + room - 1)
    yield seed


@contextmanager
def _by_time(part: Part, seed: int, begin_ns: int, reveal: Callable[[int], None]) -> Iterator[None]:
    """Reveals the turns of a server within the block, as long as its worker lives."""
    assert part.draft.rate_per_s is not None  # given, or searched for
    due = poisson(part.draft.rate_per_s, seeds.arrivals(seed))
    over = threading.Event()

    def run() -> None:
        with suppress(WorkerFailed):  # the other thread finds it gone
            for turn, of_turn in itertools.groupby(due, lambda due_ns: due_ns // SLOT_NS):
                if clock.wait(over, max(0, begin_ns + next(of_turn) - clock.now_ns()) / SECOND):
                    return
                reveal(turn)

    thread = threading.Thread(target=run, name="arrivals")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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


def _checked(part: Part, done: Completions, serials: list[int], begin_ns: int) -> Completions:
    """The timestamps of the window, by the parent's clock where it took the times. Raises ValueError if they cannot be
    of this window."""
    commitments = part.commitments
    most = len(done) + 2 * MAX_CONCURRENCY  # feeds that were made ahead have numbers too
    if len(serials) != len(done) or len(set(serials)) != len(done) or not all(0 <= each < most for each in serials):
        raise ValueError("its feeds are not numbered one by one")
    if part.share.scenario == "server":
        assert part.draft.rate_per_s is not None and part.draft.seed is not None  # the window had them
        due_ns = schedule(part.draft.rate_per_s, seeds.arrivals(part.draft.seed), max(serials) + 1)
        done = replace(done, due_ns=begin_ns + due_ns[serials])
    if commitments.reported:
        if commitments.ended_ns.keys() != set(serials):
            raise ValueError("its feeds are not those that it reported")
        done = Completions.of(_by_parent(part, done, serials, begin_ns))
    return done


def _by_parent(part: Part, done: Completions, serials: Sequence[int], begin_ns: int) -> Iterator[Completion]:
    """The feeds by the parent's clock.

    As many feeds as there are issue threads could be known when the window began, and one more with each output that
    arrived. So the turn of a closed loop's feed comes when the output arrives that makes room for it. A server's feed
    is due when it arrives; when it began is self-reported, which no latency depends on.
    """
    commitments = part.commitments
    room_ns = [begin_ns] * _threads(part) + sorted(commitments.ended_ns.values())
    for serial, feed, turn_ns in zip(serials, done, room_ns, strict=False):
        first_ns, ended_ns = commitments.first_ns.get(serial), commitments.ended_ns[serial]
        begun_ns = due_ns = turn_ns
        if part.share.scenario == "server":
            due_ns = feed.due_ns
            begun_ns = max(due_ns, turn_ns, min(feed.issued_ns, ended_ns if first_ns is None else first_ns))
        yield stamped(due_ns, begun_ns, [each for pair in feed.yields for each in pair], first_ns, ended_ns)


def _threads(part: Part) -> int:
    return 1 if part.share.scenario == "single-stream" else part.concurrency


def _reported(part: Part) -> bool:
    """Whether the parent takes the times of each feed, because the worker reports its first yield and its end, and no
    feed of a closed loop is known before its turn: unless feeds are so brief that the messages would slow them down. A
    screening run and a probe have no latencies."""
    share = part.share
    if share.scenario == "probe" or share.limits.screening:
        return False
    if share.scenario == "server":
        assert part.draft.rate_per_s is not None  # given, or searched for
        return part.draft.rate_per_s * SLOT_NS <= SECOND
    return part.feed_ns >= TURN_NS * _threads(part)


def _no_result(message: str) -> WorkerFailed:
    return WorkerFailed(Failure(kind="no result", message=message))
