"""Searches of the worker before a window: for the batch size with the highest rate, and for the highest arrival rate
that keeps the latency limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np

from mixmark.harness.contracts.protocols import Feed, Preparer, Runner
from mixmark.harness.contracts.schema import Completions, Limits, RateTrial, SearchEnd, Trial
from mixmark.harness.judge.statistics.timestamps import finished_by, steps_begin_ns
from mixmark.harness.resources import clock
from mixmark.harness.worker.failures import out_of_memory
from mixmark.harness.worker.load_generator import FeedLog, closed_loop

STEP = 4  # from one batch size to the next: fewer shapes to compile, and larger differences than the noise
RISE = 1.03  # the gain in rate that a batch size must show over another one
WINS = 2  # of three pairs of turns, that a larger size needs
ROUNDS = 3  # the fewest rounds of the confirmation that may change the result
TURNS = 80  # a turn takes this part of the search's time
LONGEST_FEED_NS = 500_000_000  # the mixes leave a batch 2 s, and a busy machine may take four times as long
CLOSE = 1.05  # a rate is found when the lowest failed rate is within 5 % of the highest kept one


@dataclass(frozen=True)
class BatchFound:
    """The result of a search. trials: the fastest turn of each size. ended_by: see `Record.search_ended_by`."""

    batch: int
    trials: tuple[Trial, ...]
    ended_by: SearchEnd


@dataclass
class BatchSearch:
    """Searches the batch size with the highest rate. All comparisons are between turns that follow one another, so that
    a machine that is slow for some seconds is slow for every size in a comparison.

    The size grows by STEP until it fails to beat the best size so far in two of three pairs of turns, or exceeds the
    memory, half of the time, or the longest feed. Then the best size, its half and its double take turns for the rest
    of the time; the half or the double wins if its median rate is 3 % higher than the best size's.

    A turn is a closed loop for 1/TURNS of the time. An uncounted feed precedes it, because an engine may keep one
    compiled shape only. All turns together last at most `search_ns`. The first preparation and the first feed of a size
    do not count, so an engine that compiles each shape finds the same batch as one that does not.
    """

    runner: Runner
    feeds: Callable[[int], Iterator[Feed]]
    """Makes feeds of a batch size. The threads of the loop share the iterator."""
    search_ns: int
    free_bytes: Callable[[], int | None] = lambda: None
    """The free memory; None if unknown. A size is not tried if, by the size before, it would take more."""
    units: Callable[[int], int | None] = lambda batch: None
    """The units of a feed of a batch size; None if not checked."""
    threads: int = 1
    pool: Executor | None = None
    """The issue threads of all turns, see `closed_loop`."""
    ahead: Callable[[int], bool] = lambda batch: False
    """Whether feeds of a batch size are made ahead, see `closed_loop`."""
    on_prepare: Callable[[], None] = lambda: None
    """Called before a batch size is prepared."""
    on_search: Callable[[], None] = lambda: None
    """Called before the turns of a batch size."""
    _trials: dict[int, Trial] = field(default_factory=dict)
    _pools: dict[int, Iterator[Feed]] = field(default_factory=dict)
    _feed_ns: dict[int, int] = field(default_factory=dict)
    """The time of the fastest feed of each size."""
    _taken_bytes: dict[int, int] = field(default_factory=dict)
    """The memory that each size has taken."""
    _spent_ns: int = 0

    def run(self) -> BatchFound:
        """Raises what the runner raises. An error that means that memory is used up ends the growth, unless the first
        size raises it."""
        best = size = 1
        ended_by = self._add(size, self.search_ns)
        while not ended_by:
            size *= STEP
            ended_by = self._add(size, self.search_ns // 2)
            if not ended_by and self._beats(size, best):
                best = size
            elif not ended_by:
                ended_by = "no gain"
        near = [size for size in (best // 2, 2 * best) if size and not self._add(size, self.search_ns)]
        best = self._confirmed(best, near) if near else best
        return BatchFound(best, tuple(self._trials[size] for size in sorted(self._trials)), ended_by)

    def _add(self, size: int, until_ns: int) -> SearchEnd | None:
        """Prepares a size and gives it a turn, unless it was tried before. Returns the reason if it cannot be tried."""
        if size in self._trials:
            return None
        before = self.free_bytes()
        if below := max((tried for tried in self._trials if tried < size), default=0):
            likely_ns = self._feed_ns[below] * size // below
            if likely_ns > min(LONGEST_FEED_NS, self.search_ns // 8):
                return "long feeds"
            if self._spent_ns + 2 * likely_ns > until_ns:
                return "time"
            if before is not None and self._taken_bytes.get(below, 0) * size // below > before:
                return "memory"
        try:
            self.on_prepare()
            self._pools[size] = self.feeds(size)
            prepare(self.runner, self._pools[size])
            self._run(size, 0)
            self.on_search()
            self._turn(size)
        except Exception as error:
            if self._trials and out_of_memory(error):
                self._trials.pop(size, None)
                return "memory"
            raise
        after = self.free_bytes()
        if before is not None and after is not None:
            self._taken_bytes[size] = max(0, before - after)
        return None

    def _beats(self, size: int, best: int) -> bool:
        """Whether a size has a higher rate than the best one in two of three pairs of turns."""
        wins = losses = 0
        while wins < WINS and losses < WINS:
            if self._turn(size) >= RISE * self._turn(best):
                wins += 1
            else:
                losses += 1
        return wins == WINS

    def _confirmed(self, best: int, near: list[int]) -> int:
        """Lets the best size and those near it take turns until the time is spent, and returns the winner."""
        sizes = [best, *near]
        rounds: list[dict[int, float]] = []
        round_ns = sum(self._feed_ns[size] + max(self.search_ns // TURNS, self._feed_ns[size]) for size in sizes)
        while self._spent_ns + round_ns <= self.search_ns:
            rounds.append({size: self._turn(size) for size in sizes})
            sizes.reverse()
        if len(rounds) < ROUNDS:
            return best
        gain, winner = max((median(rates[size] / rates[best] for rates in rounds), size) for size in near)
        return winner if gain >= RISE else best

    def _turn(self, size: int) -> float:
        """Measures a size for the time of a turn. Returns its rate in units per ns."""
        begin_ns = clock.now_ns()
        self._run(size, 0)
        done = self._run(size, self.search_ns // TURNS)
        self._spent_ns += clock.now_ns() - begin_ns
        rate, units = busy_rate(done, self.threads), int(done.units.sum())
        known = self._trials.get(size)
        if known is None or rate > known.units / known.elapsed_ns:
            self._trials[size] = Trial(batch=size, units=units, elapsed_ns=max(1, round(units / rate)))
        return rate

    def _run(self, size: int, least_ns: int) -> Completions:
        """Runs feeds in each thread for that time, and one feed at least."""
        pool = self._pools[size]
        limits = Limits(warmup_ns=0, search_ns=0, min_ns=least_ns, max_ns=least_ns, min_feeds=1)
        done = closed_loop(
            self.runner,
            lambda serial, previous: next(pool),
            limits,
            self.threads,
            new_log=partial(FeedLog, self.units(size)),
            ahead=self.ahead(size),
            pool=self.pool,
        )
        fastest_ns = int((done.yielded_ns[done.ends - 1] - done.issued_ns).min())
        self._feed_ns[size] = min(fastest_ns, self._feed_ns.get(size, fastest_ns))
        return done


def busy_rate(done: Completions, threads: int) -> float:
    """Units per ns of a closed loop from when its last thread began until its first thread ended. Steps that are under
    way at these two times count in part: whole feeds would favour some sizes by the time at which they end. On a busy
    machine one thread may end before another begins; then the whole time counts."""
    ended_ns = np.sort(done.yielded_ns[done.ends - 1])
    begin_ns, end_ns = done.issued_ns[threads - 1], ended_ns[-threads]
    if end_ns <= begin_ns:
        begin_ns, end_ns = done.issued_ns[0], ended_ns[-1]
    edges = np.array([begin_ns, end_ns], np.float64)
    begins, ends = steps_begin_ns(done).astype(np.float64), done.yielded_ns.astype(np.float64)
    before, after = finished_by(edges, begins, ends, done.units)
    return float(after - before) / max(1, int(end_ns - begin_ns))


def prepare(runner: Runner, feeds: Iterator[Feed]) -> None:
    """Lets a runner that is a `Preparer` prepare the shape of the next feed."""
    if isinstance(runner, Preparer):
        runner.prepare(next(feeds))


def highest_rate(
    keeps: Callable[[float], tuple[int, bool]], start_per_s: float, until_ns: int
) -> tuple[float | None, tuple[RateTrial, ...]]:
    """The highest rate that keeps the latency limits, to 5 %: doubles or halves until one rate is kept and one is not,
    then bisects on a logarithmic scale, until `until_ns` on the clock. None if no rate was kept.

    keeps: tries a rate; returns the number of finished feeds and whether the limits were kept.
    """
    trials: list[RateTrial] = []
    rate, kept, broken = start_per_s, 0.0, math.inf
    while not trials or (broken / max(kept, 1e-9) > CLOSE and clock.now_ns() < until_ns):
        feeds, within = keeps(rate)
        trials.append(RateTrial(rate_per_s=rate, feeds=feeds, kept=within))
        if within:
            kept = rate
        else:
            broken = rate
        rate = 2 * kept if math.isinf(broken) else broken / 2 if not kept else math.sqrt(kept * broken)
    return kept or None, tuple(trials)
