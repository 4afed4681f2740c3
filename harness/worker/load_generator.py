"""The loops that hand feeds to a runner, stamp every yield and decide when to stop. They run in the worker.

The harness owns the clock. A stamp is taken after the yielded value has become a plain numpy array on the
host, so nothing lazy passes. The next feed is made between one feed's last stamp and the next issue, where that time is
in no latency, or ahead, by a thread of its own while the device works (`made_ahead`).
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from mixmark.harness.contracts.errors import WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed, Preparer, Runner
from mixmark.harness.contracts.schema import Completions, Device, Limits, RateTrial, SearchEnd, Trial
from mixmark.harness.judge.statistics.timestamps import finished_by, steps_begin_ns
from mixmark.harness.worker.outputs import Outputs

Clock = Callable[[], int]
NextFeed = Callable[[int, bytes], Feed]
"""Makes a feed from its number and from the digest of the output before it in its chain, empty for a chain's first. The
threads of several lanes may call it at once."""
PLAIN = frozenset(np.dtype(name) for name in ("float32", "int32", "int64"))
NOTHING = "the runner yielded nothing for a feed"
STEP = 4  # from one batch size to the next: fewer shapes to compile, and rates that noise does not confuse
RISE = 1.03  # what a batch size must bring over another to beat it
CLOSE = 1.05  # a rate is found when the lowest that failed is within 5 % of the highest that did not
TRIES = 3  # in one of so many turns a larger batch must beat the best one, or the growth ends; its half needs as many
LIKELY = 0.4  # a size with less of the highest rate cannot be the best one: noise halves a rate, hardly more
TURNS = 80  # a turn takes this part of the search's time
CLEAR = 5  # a size that another one has beaten in the median of so many turns gets no more of them
LONGEST_FEED_NS = 500_000_000  # the mixes leave a batch 2 s, and a busy machine may take four times as long
LOOKS_GROW = 1.5  # each look at the precision comes so much later than the one before: every look is a chance to
# stop by luck, and at 1.1 the intervals of autocorrelated steps covered the truth too seldom
UNIT_BYTES = 64 << 20  # the largest output for one unit: five images of the largest tier


class Overloaded(Exception):
    """More feeds arrive than the device gets done."""


def plain(value: object) -> Array:
    """`value` as a numpy array of float32, int32 or int64; raises WrongOutput for anything else.

    Converting is what forces a lazy result onto the host before the stamp.
    """
    out = np.asarray(value)
    if out.dtype not in PLAIN or out.ndim == 0:
        raise WrongOutput(
            f"a runner yields arrays of float32, int32 or int64, one row a unit; got {out.dtype} {out.shape}"
        )
    return out


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is used up. Frameworks have no common error for it (torch's is a
    RuntimeError), so the words of the error count too."""
    words = f"{type(error).__name__}: {error}".lower()
    signs = ("outofmemory", "out of memory", "can't allocate memory", "failed to allocate memory")
    return isinstance(error, MemoryError) or any(sign in words for sign in signs)


class Log:
    """Stamps as flat machine integers. A feed's go through a list, the cheapest thing to append to while the
    device waits, and from there into the arrays in one step.

    units: how many each feed holds; None: they are not counted. outputs: takes what the runner yields.
    """

    def __init__(self, units: int | None = None, outputs: Outputs | None = None) -> None:
        self.due_ns, self.issued_ns, self.ends = array("q"), array("q"), array("q")
        self.flat = array("q")
        """A stamp and its units, by turns."""
        self.units, self.outputs = units, outputs
        self.before, self.told = -1, b""
        """The number of the feed that ran last, and the digest of its output."""

    def feed(
        self,
        runner: Runner,
        feed: Feed,
        clock: Clock,
        due_ns: int | None = None,
        serial: int = 0,
        until_ns: float = math.inf,
    ) -> tuple[int, list[int], bytes]:
        """Runs one feed, which in a closed loop is due when it is issued; returns its issue, its stamps, each
        followed by its units, and the digest of its output, empty where none is kept. A feed that goes on at `until_ns`
        is broken off behind its second stamp or a later one.

        A yield is copied before it is stamped: what an engine writes into its array later is neither timed nor
        audited. Raises WrongOutput where the runner yields nothing, or not the units that the feed holds; one that
        never ends is stopped there.
        """
        marks: list[int] = []
        parts: list[bytes] = []
        append, keep, array_type = marks.append, parts.append, np.ndarray
        checked = None  # numpy's dtypes are singletons: one identity test a unit instead of a look-up
        whole = True
        most = 2 * self.units if self.units else math.inf
        issued = clock()
        for out in runner(feed):
            if type(out) is not array_type or out.dtype is not checked:
                out = plain(out)
                checked = out.dtype
            if out.nbytes > len(out) * UNIT_BYTES:
                raise WrongOutput(f"a unit's output has {out.nbytes / max(1, len(out)) / 2**20:.0f} MiB")
            keep(out.tobytes())
            append(clock())
            append(len(out))
            if len(marks) > most:
                break
            if marks[-2] >= until_ns and len(marks) > 2:
                whole = False
                break
        if not marks:
            raise WrongOutput(NOTHING)
        if whole and self.units and sum(marks[1::2]) != self.units:
            more = "at least " if len(marks) > most else ""
            raise WrongOutput(f"the runner yielded {more}{sum(marks[1::2])} units for a feed of {self.units}")
        if self.outputs:
            self.told = self.outputs.add(serial, parts, out, self.before)
            self.before = serial
        self.flat.fromlist(marks)
        self.due_ns.append(issued if due_ns is None else due_ns)
        self.issued_ns.append(issued)
        self.ends.append(len(self.flat) // 2)
        return issued, marks, self.told


def merged(logs: Iterable[Log]) -> Completions:
    """The logs of all lanes as one table, in the order of issue. Raises ValueError where no feed finished."""
    logs = list(logs)
    due = np.concatenate([np.array(log.due_ns, np.int64) for log in logs])
    issued = np.concatenate([np.array(log.issued_ns, np.int64) for log in logs])
    counts = np.concatenate([np.diff(np.array(log.ends, np.int64), prepend=0) for log in logs])
    flat = np.concatenate([np.array(log.flat, np.int64) for log in logs])
    marks, units = flat[0::2], flat[1::2]
    order = np.argsort(issued, kind="stable")
    begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))[order]
    ends = np.cumsum(counts[order])
    rows = np.arange(len(marks)) - np.repeat(ends - counts[order] - begins, counts[order])
    return Completions(due[order], issued[order], ends, marks[rows], units[rows])


def closed_loop(
    runner: Runner,
    feeds: NextFeed,
    limits: Limits,
    clock: Clock = time.monotonic_ns,
    lanes: int = 1,
    enough: Callable[[Completions], bool] = lambda done: True,
    units: int | None = None,
    outputs: Outputs | None = None,
    ahead: bool = False,
) -> Completions:
    """Single-stream (one lane) and offline (as many lanes as the runner has slots): the next feed goes in when
    one comes out, until the window of `limits` is over. What a runner raises passes through. units, outputs: see `Log`.
    In a screening run, feeds that go on when the longest time has passed are broken off.

    ahead: each lane's next feed is made by another thread while the lane runs one. Its feeds then form two chains that
    take turns, in each of which a feed follows from the output before. A feed that is made and not needed is dropped.
    enough: asked, ever more seldom, once `min_ns` and `min_feeds` are reached, about what a lane has done so far;
    between two feeds, so that its cost is in no figure. All lanes end when one has done enough: one that went on alone
    would have the whole device and show half of its rate.
    """
    begin = clock()
    until_ns = begin + limits.max_ns if limits.screening else math.inf
    lock = threading.Lock()
    issued = done = 0
    over = False

    def make(told: bytes) -> tuple[int, Feed]:
        nonlocal issued
        with lock:
            serial = issued
            issued += 1
        return serial, feeds(serial, told)

    def lane(logs: Sequence[Log]) -> None:
        nonlocal done, over
        look_ns = limits.min_ns
        with ExitStack() as stack:
            maker = stack.enter_context(ThreadPoolExecutor(1)) if ahead else None

            def next_of(log: Log) -> Callable[[], tuple[int, Feed]]:
                return maker.submit(make, log.told).result if maker else partial(make, log.told)

            due = deque((log, next_of(log)) for log in logs)
            while True:
                log, made = due.popleft()
                serial, feed = made()
                elapsed = log.feed(runner, feed, clock, serial=serial, until_ns=until_ns)[1][-2] - begin
                done += 1
                if over or elapsed >= limits.max_ns:
                    return
                if elapsed >= look_ns and done >= limits.min_feeds:
                    if enough(merged(each for each in logs if each.ends)):
                        over = True
                        return
                    look_ns = int(elapsed * LOOKS_GROW)
                due.append((log, next_of(log)))

    return _in_lanes(lane, [[Log(units, outputs) for _ in range(chains(ahead))] for _ in range(lanes)])


def open_loop(
    runner: Runner,
    feeds: NextFeed,
    arrivals_ns: Iterator[int],
    limits: Limits,
    clock: Clock = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
    lanes: int = 1,
    units: int | None = None,
    outputs: Outputs | None = None,
) -> Completions:
    """Server: feeds arrive on their own schedule, whatever the device does with those before, and wait their turn.

    arrivals_ns: when the feeds are due, counted from the start. The schedule is over once `min_ns` has passed and
    `min_feeds` have arrived; all that arrived are run to their end. A lane that waits sleeps: it burns no core that the
    device needs. Raises Overloaded where a feed would be issued later than `max_ns` after it was due.
    """
    begin = clock()
    lock = threading.Lock()
    arrived = 0

    def lane(logs: Sequence[Log]) -> None:
        nonlocal arrived
        (log,) = logs
        while True:
            with lock:
                due = next(arrivals_ns)
                if due >= limits.min_ns and arrived >= limits.min_feeds:
                    return
                serial = arrived
                arrived += 1
            feed = feeds(serial, log.told)
            while (late := clock() - begin - due) < 0:
                sleep(-late / 1e9)
            if late > limits.max_ns:
                raise Overloaded(f"feed {serial} waited {late / 1e9:.3g} s for its turn: the queue grows")
            log.feed(runner, feed, clock, begin + due, serial)

    return _in_lanes(lane, [[Log(units, outputs)] for _ in range(lanes)])


def made_ahead(device: Device, batch: int) -> bool:
    """Whether the next feed is made while the device works on one: only where the device leaves a processor's cores
    free, and only for batches. A feed of one sample is tiny, and who knew it early could run two samples at once where
    the scenario says one; a batch is as large as pays anyway."""
    return device.kind != "cpu" and batch > 1


def chains(ahead: bool) -> int:
    """In how many chains the feeds of a lane follow from the outputs for earlier ones."""
    return 2 if ahead else 1


def one_by_one(feeds: Iterator[Feed]) -> NextFeed:
    """Feeds that depend on no output."""
    lock = threading.Lock()

    def feed(serial: int, before: bytes) -> Feed:
        with lock:
            return next(feeds)

    return feed


def _in_lanes(lane: Callable[[Sequence[Log]], None], lanes: Sequence[Sequence[Log]]) -> Completions:
    """Runs the lanes, each with logs of its own and in a thread, the only one in this thread; raises the first error of
    any."""
    done = (log for logs in lanes for log in logs if log.ends)
    if len(lanes) == 1:
        lane(lanes[0])
        return merged(done)
    errors: list[BaseException] = []

    def guarded(logs: Sequence[Log]) -> None:
        try:
            lane(logs)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(logs,)) for logs in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return merged(done)


def warm_up(runner: Runner, feeds: Iterator[Feed], limits: Limits, clock: Clock = time.monotonic_ns) -> None:
    """Runs feeds for `warmup_ns`; the last one is dropped half-way (a generator can be closed), at least one
    yield is waited for. Raises WrongOutput where the runner yields nothing."""
    begin = clock()
    while True:
        out = None
        for out in runner(next(feeds)):
            plain(out)
            if clock() - begin >= limits.warmup_ns:
                return
        if out is None:
            raise WrongOutput(NOTHING)


@dataclass(frozen=True)
class Search:
    """What a search for the best batch found. ended_by: see `Record.search_ended_by`."""

    batch: int
    trials: tuple[Trial, ...]
    ended_by: SearchEnd


def best_batch(
    runner: Runner,
    feeds: Callable[[int], Iterator[Feed]],
    search_ns: int,
    room: Callable[[], int | None] = lambda: None,
    clock: Clock = time.monotonic_ns,
    units: Callable[[int], int | None] = lambda batch: None,
    lanes: int = 1,
    ahead: Callable[[int], bool] = lambda batch: False,
    preparing: Callable[[], None] = lambda: None,
    searching: Callable[[], None] = lambda: None,
) -> Search:
    """The batch size with the highest rate, by trials that take turns, so that a machine that is slow for some seconds
    is slow for all sizes that are compared. One size beats another in a turn where it brings 3 % more.

    The size grows by a factor of four until a size has beaten the best one in none of three turns, or does not fit into
    memory, into time, or into the longest feed. Then all that may be the best one take turns again, and the smallest
    one wins that no larger one beats in the median of their turns. At last the winner takes turns with its half and its
    double, which replace it where they beat it in the median of three turns or more.

    A turn is a brief window: each lane gets one feed after the other for an eightieth of the search, after one that
    does not count, since an engine may keep one shape only and compile it when it comes back. All turns together may
    last `search_ns`. Each size is first prepared by the runner, where it is a `Preparer`, and by a feed a lane, which
    take none of that time: an engine that compiles each shape once finds the same batch as one that does not.

    feeds: for a batch size, an iterator that the threads of several lanes may ask at once. room: bytes of memory left,
    or None where that is not known. A size is not tried where the one before took so much that this one would take more
    than there is. units: how many units a feed of so many samples holds; None: they are not counted. ahead: whether
    feeds of so many samples are made ahead, see `closed_loop`. preparing, searching: told when a batch size is
    prepared, and when its turns begin.
    """
    tried = _Tried(runner, feeds, search_ns, room, clock, units, lanes, ahead, preparing, searching)
    best = size = 1
    ended_by = tried.add(1, search_ns)
    while not ended_by:
        size *= STEP
        ended_by = tried.add(size, search_ns // 2)
        if not ended_by:
            if not any(tried.beats(size, best) for _ in range(TRIES)):
                ended_by = "no gain"
            else:
                best = size
    likely = tried.likely()
    tried.turns(likely, search_ns // 2)
    best = likely[0]
    for each in likely[1:]:
        best = each if tried.gain(each, best) >= RISE else best
    near = [each for each in (best // 2, 2 * best) if each and not tried.add(each, search_ns)]
    tried.turns([best, *near], search_ns)
    gains = {tried.gain(each, best, TRIES): each for each in near}
    if gains and max(gains) >= RISE:
        best = gains[max(gains)]
    return Search(best, tuple(tried.trials[each] for each in sorted(tried.trials)), ended_by)


class _Tried:
    """The batch sizes that a search has tried, and the time that it has spent. The arguments are those of
    `best_batch`."""

    def __init__(
        self,
        runner: Runner,
        feeds: Callable[[int], Iterator[Feed]],
        search_ns: int,
        room: Callable[[], int | None],
        clock: Clock,
        units: Callable[[int], int | None],
        lanes: int,
        ahead: Callable[[int], bool],
        preparing: Callable[[], None],
        searching: Callable[[], None],
    ) -> None:
        self.trials: dict[int, Trial] = {}
        """The fastest turn of each size."""
        self.rates: list[Mapping[int, float]] = []
        """What the sizes did that took turns with one another, a round of turns each."""
        self._runner, self._feeds, self._search_ns, self._room, self._clock = runner, feeds, search_ns, room, clock
        self._units, self._lanes, self._ahead = units, lanes, ahead
        self._preparing, self._searching = preparing, searching
        self._pools: dict[int, Iterator[Feed]] = {}
        self._feed_ns: dict[int, int] = {}
        """The fastest feed of each size."""
        self._took_bytes: dict[int, int] = {}
        """What was less of the memory after a size than before it."""
        self._spent_ns = 0

    def add(self, size: int, until_ns: int) -> SearchEnd | None:
        """Prepares a size and gives it a turn; returns why it could not be tried. Raises what the runner raises, but
        for errors that mean that memory is used up, unless it is the first size."""
        if size in self.trials:
            return None
        before = self._room()
        if below := max((each for each in self.trials if each < size), default=0):
            likely_ns = self._feed_ns[below] * size // below
            if likely_ns > min(LONGEST_FEED_NS, self._search_ns // 8):
                return "long feeds"
            if self._spent_ns + 2 * likely_ns > until_ns:
                return "time"
            if before is not None and self._took_bytes.get(below, 0) * size // below > before:
                return "memory"
        try:
            self._preparing()
            self._pools[size] = self._feeds(size)
            prepare(self._runner, self._pools[size])
            self._run(size, 0)
            self._searching()
            self._turn(size)
        except Exception as error:
            if self.trials and out_of_memory(error):
                self.trials.pop(size, None)
                return "memory"
            raise
        after = self._room()
        if before is not None and after is not None:
            self._took_bytes[size] = max(0, before - after)
        return None

    def beats(self, size: int, other: int) -> bool:
        """Lets two sizes take a turn each; whether the first one beats the second."""
        self.rates.append({size: self._turn(size), other: self._turn(other)})
        return self.rates[-1][size] >= RISE * self.rates[-1][other]

    def gain(self, a: int, b: int, least: int = 1) -> float:
        """How many times the rate of size `b` size `a` did, the median over their rounds; 0 where these are fewer than
        `least`."""
        gains = [rates[a] / rates[b] for rates in self.rates if a in rates and b in rates]
        return median(gains) if len(gains) >= least else 0.0

    def likely(self) -> list[int]:
        """The sizes that may be the best one, the smallest first: noise may have halved a rate."""
        rates = {size: trial.units / trial.elapsed_ns for size, trial in sorted(self.trials.items())}
        return [size for size, rate in rates.items() if rate >= LIKELY * max(rates.values())]

    def turns(self, sizes: Sequence[int], until_ns: int) -> None:
        """Lets sizes take turns until `until_ns` of the search are spent. Every other time they go in reverse order. A
        size that another one has beaten in the median of five turns gets no more of them."""
        left = list(sizes)
        while len(left) > 1:
            needed_ns = sum(self._feed_ns[each] + max(self._search_ns // TURNS, self._feed_ns[each]) for each in left)
            if self._spent_ns + needed_ns > until_ns:
                break
            order = left if len(self.rates) % 2 else left[::-1]
            self.rates.append({each: self._turn(each) for each in order})
            left = [each for each in left if all(self.gain(other, each, CLEAR) < RISE for other in left)]

    def _turn(self, size: int) -> float:
        """Lets a size work for a turn's time; returns its rate in units per ns."""
        begin_ns = self._clock()
        self._run(size, 0)
        done = self._run(size, self._search_ns // TURNS)
        self._spent_ns += self._clock() - begin_ns
        rate, units = busy_rate(done, self._lanes), int(done.units.sum())
        known = self.trials.get(size)
        if known is None or rate > known.units / known.elapsed_ns:
            self.trials[size] = Trial(batch=size, units=units, elapsed_ns=max(1, round(units / rate)))
        return rate

    def _run(self, size: int, least_ns: int) -> Completions:
        """Runs feeds in each lane until one has ended that late, and one at least."""
        pool, units, ahead = self._pools[size], self._units(size), self._ahead(size)
        limits = Limits(warmup_ns=0, search_ns=0, min_ns=least_ns, max_ns=least_ns, min_feeds=1)
        done = closed_loop(
            self._runner, lambda serial, before: next(pool), limits, self._clock, self._lanes, units=units, ahead=ahead
        )
        fastest_ns = int((done.marks_ns[done.ends - 1] - done.issued_ns).min())
        self._feed_ns[size] = min(fastest_ns, self._feed_ns.get(size, fastest_ns))
        return done


def busy_rate(done: Completions, lanes: int) -> float:
    """Units per ns of a closed loop while each of its lanes was busy: from when the last one began until the first one
    ended. Steps that are under way then count in part: whole feeds would favour a size by where they happen to end."""
    begin_ns, end_ns = done.issued_ns[lanes - 1], np.sort(done.marks_ns[done.ends - 1])[-lanes]
    begins, ends, at = (
        each.astype(np.float64) for each in (steps_begin_ns(done), done.marks_ns, np.array([begin_ns, end_ns]))
    )
    before, after = finished_by(at, begins, ends, done.units)
    return float(after - before) / max(1, int(end_ns - begin_ns))


def prepare(runner: Runner, feeds: Iterator[Feed]) -> None:
    """Lets a runner that is a `Preparer` prepare the shape of these feeds, by the first of them."""
    if isinstance(runner, Preparer):
        runner.prepare(next(feeds))


def highest_rate(
    keeps: Callable[[float], tuple[int, bool]], start_per_s: float, until_ns: int, clock: Clock = time.monotonic_ns
) -> tuple[float | None, tuple[RateTrial, ...]]:
    """The highest rate that keeps the latency limits, to 5 %: doubled or halved until one is kept and one is not,
    then halved on a logarithmic scale, until `until_ns` on the clock. None where none was kept.

    keeps: tries a rate; returns how many feeds finished and whether the limits were kept.
    """
    trials: list[RateTrial] = []
    rate, kept, broken = start_per_s, 0.0, math.inf
    while not trials or (broken / max(kept, 1e-9) > CLOSE and clock() < until_ns):
        feeds, did = keeps(rate)
        trials.append(RateTrial(rate_per_s=rate, feeds=feeds, kept=did))
        if did:
            kept = rate
        else:
            broken = rate
        rate = 2 * kept if math.isinf(broken) else broken / 2 if not kept else math.sqrt(kept * broken)
    return kept or None, tuple(trials)
