"""The mixed phase: every device at once, fed in the proportion of the mix until the time is over.

The parent asks the dispatcher what each device does next, and sends one feed ahead of a brief one that runs, so that
no device waits for the parent. Stamps come back with each feed: a worker that dies takes with it what it was doing,
and what it had done is kept.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness import wire
from harness.dispatch import Dispatcher, Planner
from harness.errors import MixmarkError
from harness.failures import WorkerFailed, failure_of
from harness.judge.score import keeps
from harness.run import Equipment, drawn
from harness.schema import Absent, Completions, Conditions, Failure, Mix, Phase, Record, ServiceLimits, Share
from harness.watch.canary import canary
from harness.watch.sampling import Watch
from harness.worker import Worker

BRIEF_NS = 1_000_000_000  # a feed that takes less has the next one queued behind it; else the wait is no part of it
TICK_S = 0.25  # the display's pace, and how long a device that has to wait sleeps at most


@dataclass(frozen=True)
class Snapshot:
    """The phase as it is now, for whoever watches."""

    elapsed_ns: int
    longest_ns: int
    mixes: float
    planned_per_s: float
    """Mixes, by the plan that the phase began with."""
    running: Mapping[str, str]
    """Suite by device; empty where it waits."""
    units: Mapping[str, float]
    """Finished, by suite."""
    mix_units: Mapping[str, float]


@dataclass
class _Part:
    """A share of a device's work: a suite, loaded in a worker."""

    share: Share
    worker: Worker
    units: int = 0
    slots: int = 1
    outcome: dict[str, Any] = field(default_factory=dict)
    done: list[tuple[int, list[int]]] = field(default_factory=list)
    """Of each feed, its issue and its marks, (stamp in ns, units) in turn."""
    digests: set[bytes] = field(default_factory=set)
    """Of their answers, as they were told one by one."""
    posted_ns: deque[int] = field(default_factory=deque)
    """When the feeds that are at the worker were sent."""
    skew_ns: int | None = None
    failure: Failure | None = None

    def may_have_behind(self, held: int) -> bool:
        """Whether, with so many feeds at a worker, one more may be sent behind this suite's."""
        brief = bool(self.done) and self.done[-1][1][-2] - self.done[-1][0] < BRIEF_NS
        return held < self.slots or (brief and held == self.slots)


def perform(
    phase: Phase,
    mix: Mix,
    planner: Planner,
    equipment: Equipment,
    folder: Path,
    watching: Callable[[Snapshot], None] = lambda snapshot: None,
    on_stage: Callable[[Share, str], None] = lambda share, stage: None,
) -> list[Record]:
    """A record for each share that did something; what goes wrong with one becomes its error, or cuts it short.

    planner: plans anew from observed rates. Raises KeyboardInterrupt as it comes, the workers gone and no record made.
    """
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    seen = [canary()]
    unwatched: tuple[Absent, ...] = ()
    try:
        with contextlib.ExitStack() as stack:
            parts = _opened(phase, equipment, folder, scratch, stack, on_stage)
            ready = [part for part in parts if part.failure is None]
            bracket = None
            if phase.placement is not None and ready:
                watch = Watch(tuple({part.worker.pid for part in ready})).start()
                try:
                    concert = _Concert(phase, mix, planner, ready, equipment.timeout_s, watching)
                    bracket = concert.run()
                except (ValueError, MixmarkError) as error:
                    _all_failed(ready, Failure(kind="no result", message=f"the plan cannot be run: {error}"))
                finally:
                    watched = watch.stop()
                    seen += watched.blocks
                    unwatched = watched.absent
            for part in ready:
                _hand_over(part, equipment, folder, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    seen.append(canary())
    return [
        _record(part, phase, equipment, bracket, tuple(seen), unwatched)
        for part in parts
        if part.done or part.failure is not None
    ]


def _opened(
    phase: Phase,
    equipment: Equipment,
    folder: Path,
    scratch: Path,
    stack: contextlib.ExitStack,
    on_stage: Callable[[Share, str], None],
) -> list[_Part]:
    """One worker for each way onto a device, with all of its suites loaded and warm, one after the other."""
    workers: dict[tuple[str, str], Worker] = {}
    parts = []
    for share in (share for task in phase.tasks for share in task.shares):
        route = share.route
        way = route.device, route.adapter
        if way not in workers:
            log = folder / "logs" / f"{phase.name}.{route.device}.{route.adapter}.log".replace(":", "-")
            workers[way] = stack.enter_context(equipment.worker(route, scratch, log))
        part = _Part(share, workers[way])
        parts.append(part)

        def staged(stage: str, share: Share = share) -> None:
            on_stage(share, stage)

        try:
            suite = equipment.suite(route)
            assert share.batch is not None  # a mixed share runs the batch that its rate was measured with
            opened = equipment.open(part.worker, share, staged)
            request = wire.Prepare(
                key=share.key,
                batch=share.batch,
                seed=equipment.feed_seed(route, share.scenario, share.run),
                limits=share.limits,
            )
            prepared = part.worker.call(request, equipment.timeout_s + share.limits.warmup_ns / 1e9, staged)
            part.units, part.slots = suite.units(share.batch), opened.slots
            part.outcome = {
                "facts": prepared.facts,
                "load_ns": opened.load_ns,
                "slots": opened.slots,
                "costs": tuple(suite.costs(route.precision, share.batch)),
                "feed_units": part.units,
            }
        except Exception as error:  # the worker's failure, or what a suite's own code raised in this process
            part.failure = failure_of(error)
    return parts


class _Concert:
    """The devices while they play together: a thread for each, and what they share."""

    def __init__(
        self,
        phase: Phase,
        mix: Mix,
        planner: Planner,
        parts: Sequence[_Part],
        timeout_s: float,
        watching: Callable[[Snapshot], None],
    ) -> None:
        """Raises ValueError or MixmarkError where what is loaded does not do."""
        assert phase.placement is not None  # a mixed phase has one
        self.mix, self.timeout_s, self.watching = mix, timeout_s, watching
        self.parts = {(part.share.route.suite, part.share.route.device): part for part in parts}
        self.by_key = {part.share.key: part for part in parts}
        self.limits = parts[0].share.limits
        self.feeds = dict.fromkeys(mix.units, 0)
        self.running = dict.fromkeys(dict.fromkeys(device for _, device in self.parts), "")
        self.changed = threading.Condition()
        self.stopping = False
        loaded = [rate for rate in phase.placement.rates if (rate.suite, rate.device) in self.parts]
        used = {(suite, device) for suite, of in phase.placement.shares.items() for device, part in of.items() if part}
        placement = phase.placement if used <= self.parts.keys() else planner(mix.units, loaded)
        self.planned_per_s = placement.mixes_per_s
        slots = {device: 1 for device in self.running}
        for (_, device), part in self.parts.items():
            slots[device] = max(slots[device], part.slots)
        self.begin_ns = time.monotonic_ns()
        self.dispatcher = Dispatcher(
            mix.units, placement, {pair: part.units for pair, part in self.parts.items()}, slots, planner, self.begin_ns
        )

    def run(self) -> tuple[int, int]:
        """When dispatching began and when it stopped, on this process's clock."""
        lanes = [threading.Thread(target=self._lane, args=(device,), name=device) for device in self.running]
        stop_ns = self.begin_ns
        try:
            for lane in lanes:
                lane.start()
            while not self.stopping:
                with self.changed:
                    stop_ns = time.monotonic_ns()
                    if self._over(stop_ns) or not any(lane.is_alive() for lane in lanes):
                        self.stopping = True
                        self.changed.notify_all()
                        break
                self.watching(self._snapshot())
                time.sleep(TICK_S)  # and not until something changes: who looks on takes no core from a device
        except BaseException:
            self.stopping = True
            for part in self.parts.values():
                part.worker.kill()
            raise
        finally:
            for lane in lanes:
                if lane.ident:
                    lane.join()
        return self.begin_ns, stop_ns

    def _over(self, now_ns: int) -> bool:
        elapsed_ns = now_ns - self.begin_ns
        left = [count for suite, count in self.feeds.items() if suite not in self.dispatcher.abandoned]
        enough = elapsed_ns >= self.limits.min_ns and min(left, default=0) >= self.limits.min_feeds
        return enough or elapsed_ns >= self.limits.max_ns

    def _snapshot(self) -> Snapshot:
        elapsed_ns = time.monotonic_ns() - self.begin_ns
        with self.changed:
            done = dict(self.dispatcher.units)
            return Snapshot(
                elapsed_ns=elapsed_ns,
                longest_ns=self.limits.max_ns,
                mixes=self.dispatcher.mixes,
                planned_per_s=self.planned_per_s,
                running=dict(self.running),
                units=done,
                mix_units=self.mix.units,
            )

    def _lane(self, device: str) -> None:
        """Keeps one device busy, all of it on one worker at a time."""
        held: deque[_Part] = deque()
        chosen: _Part | None = None
        try:
            while True:
                with self.changed:
                    if self.stopping:
                        chosen = None
                    elif chosen is None and (not held or held[-1].may_have_behind(len(held))):
                        suite = self.dispatcher.next(device, time.monotonic_ns())
                        chosen = self.parts[suite, device] if suite else None
                    if chosen and (not held or held[0].worker is chosen.worker):
                        chosen.posted_ns.append(time.monotonic_ns())
                        chosen.worker.post(wire.Feed(key=chosen.share.key))
                        held.append(chosen)
                        chosen = None
                        continue
                    self.running[device] = held[0].share.route.suite if held else ""
                    if not held:
                        if self.stopping:
                            return
                        self.changed.wait(TICK_S)
                        continue
                answer = held[0].worker.answer(wire.Fed, self.timeout_s)
                held.remove(part := self.by_key[answer.key])
                part.digests.add(bytes.fromhex(answer.digest))
                self._finished(part, answer.issued_ns, answer.marks)
        except Exception as error:  # whatever it is, the other devices go on
            failure = failure_of(error)
            for (_, where), part in self.parts.items():
                if where == device:
                    part.failure = failure
                    part.worker.kill()
            with self.changed:
                self.running[device] = ""
                self.dispatcher.lost(device, time.monotonic_ns())
                self.changed.notify_all()

    def _finished(self, part: _Part, issued_ns: int, marks: list[int]) -> None:
        """Raises ValueError, TypeError or OverflowError where the stamps are none, before they are kept."""
        suite, device = part.share.route.suite, part.share.route.device
        stamps, units = array("q", [issued_ns, *marks[0::2]]), array("q", marks[1::2])
        if list(stamps) != sorted(stamps):
            raise ValueError("time runs backwards inside a feed")
        if len(units) != len(stamps) - 1 or min(units) <= 0:
            raise ValueError("a mark without units")
        skew_ns = max(part.posted_ns.popleft() - issued_ns, stamps[-1] - time.monotonic_ns())
        part.skew_ns = skew_ns if part.skew_ns is None else max(part.skew_ns, skew_ns)
        part.done.append((issued_ns, marks))
        limits = self.mix.limits.get(suite, ServiceLimits())
        kept = keeps(limits, stamps[1] - issued_ns, stamps[-1] - issued_ns, sum(units[1:]))
        with self.changed:
            self.feeds[suite] += 1
            self.dispatcher.finished(device, suite, sum(units) if kept else 0, issued_ns, stamps[-1])
            self.changed.notify_all()


def _hand_over(part: _Part, equipment: Equipment, folder: Path, scratch: Path) -> None:
    """Draws the audit of what a part yielded; a worker that is gone has taken the answers with it."""
    share = part.share
    if not part.done:
        return
    answers = scratch / f"{share.key}.npz"
    try:
        if part.failure:
            raise WorkerFailed(part.failure)
        part.worker.call(wire.HandOver(key=share.key, answers=str(answers)), equipment.timeout_s)
        gate, batch = equipment.suite(share.route).gate(share.route.precision), share.batch or 1
        part.outcome |= drawn(gate, share, batch, len(part.done), part.digests.issuperset, answers, folder)
    except Exception as error:
        part.outcome["unaudited"] = f"the worker was gone before it handed over its answers: {error}"


def _all_failed(parts: Sequence[_Part], failure: Failure) -> None:
    for part in parts:
        part.failure = part.failure or failure


def _record(
    part: _Part,
    phase: Phase,
    equipment: Equipment,
    bracket_ns: tuple[int, int] | None,
    seen: tuple[Conditions, ...],
    unwatched: tuple[Absent, ...],
) -> Record:
    share = part.share
    outcome: dict[str, Any] = dict(part.outcome)
    if part.done:
        outcome |= {"completions": _columns(part.done), "bracket_ns": bracket_ns, "skew_ns": part.skew_ns}
        outcome["cut_short"] = part.failure
    else:
        outcome["error"] = part.failure
    return Record.model_validate(
        {
            "key": share.key,
            "phase": phase.name,
            "route": share.route,
            "scenario": share.scenario,
            "run": share.run,
            "unit": equipment.units[share.route.suite],
            "batch": share.batch,
            "peak_pss_bytes": part.worker.peak_pss_bytes or None,
            "ended_by": "time" if part.done else None,
            "conditions": seen,
            "unwatched": unwatched,
            **outcome,
        }
    )


def _columns(done: Sequence[tuple[int, list[int]]]) -> Completions:
    ordered = sorted(done, key=lambda each: each[0])
    issued = np.array([issued_ns for issued_ns, _ in ordered], np.int64)
    flat = np.concatenate([np.array(marks, np.int64) for _, marks in ordered])
    ends = np.cumsum([len(marks) // 2 for _, marks in ordered])
    return Completions(issued, issued, ends, flat[0::2], flat[1::2])
