"""The load generator: hands feeds to a runner, takes a timestamp of every yield, and decides when to stop.

It runs in the worker, and it owns the clock. A timestamp is taken after the yielded value has become a numpy array on
the host, so a lazy value is computed first. The next feed is made after the last timestamp of a feed and before the
next issue, where it adds to no latency, or ahead by another thread while the device works (`made_ahead`).
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt

from mixmark.harness.contracts.errors import WrongOutput
from mixmark.harness.contracts.numbers import counted, duration
from mixmark.harness.contracts.protocols import Array, Feed, Runner
from mixmark.harness.contracts.schema import Completions, Device, Limits
from mixmark.harness.resources import clock
from mixmark.harness.worker.failures import Overloaded
from mixmark.harness.worker.messages import BrokenOff
from mixmark.harness.worker.outputs import Outputs, digest

Clock = Callable[[], int]
NextFeed = Callable[[int, bytes], Feed]
"""Makes a feed from its number and from the digest of the previous output in its chain; the digest is empty for the
first feed of a chain. Several issue threads may call it at once."""
OnFinished = Callable[[int, bytes], None]
"""Gets the number of a finished feed and the digest of its output."""
OnOutput = Callable[[Array], None]
"""Gets the joined yields of a feed, [units, …]."""
OnFirst = Callable[[int, int, bytes], None]
"""Gets the number of a feed with several yields, the units of its first yield, and the digest of that."""
HOST_DTYPES = frozenset(np.dtype(name) for name in ("float32", "int32", "int64"))
NO_OUTPUT = "the runner yielded nothing for a feed"
LOOK_GROWTH = 1.5  # between two looks at the precision. Each look inflates the chance of a false stop: at 1.1 the
# intervals of autocorrelated steps covered the truth too seldom in simulation
UNIT_BYTES = 64 << 20  # the largest output for one unit: five images of the largest tier


def host_array(value: object) -> Array:
    """`value` as a numpy array of float32, int32 or int64; raises WrongOutput for anything else.

    The conversion forces a lazy result onto the host before the timestamp.
    """
    out = np.asarray(value)
    if out.dtype not in HOST_DTYPES or out.ndim == 0:
        raise WrongOutput(
            f"a runner yields arrays of float32, int32 or int64, one row a unit; got {out.dtype} {out.shape}"
        )
    return out


class FeedLog:
    """The timestamps of one chain of feeds, as flat machine integers. The timestamps of a feed go into a list, which is
    the cheapest thing to append to while the device waits, and from there into the arrays in one step.

    units: of each feed; if None, they are not checked. outputs: keeps what the runner yields. on_finished: is called at
    the end of each feed; it needs outputs. on_first: is called after the first yield of a feed that has several.
    """

    def __init__(
        self,
        units: int | None = None,
        outputs: Outputs | None = None,
        on_finished: OnFinished | None = None,
        on_first: OnFirst | None = None,
    ) -> None:
        self.serials, self.due_ns, self.issued_ns, self.ends = array("q"), array("q"), array("q"), array("q")
        self.yields = array("q")
        """For each yield its timestamp in ns and its units, in turn."""
        self.units, self.outputs, self.on_finished, self.on_first = units, outputs, on_finished, on_first
        self.previous, self.digest = -1, b""
        """The number of the last feed, and the digest of its output; -1 and empty before the first feed."""

    def run(
        self,
        runner: Runner,
        feed: Feed,
        now_ns: Clock,
        due_ns: int | None = None,
        serial: int = 0,
        until_ns: float = math.inf,
        on_output: OnOutput | None = None,
    ) -> tuple[list[int], bytes]:
        """Runs one feed. Returns its yields as (timestamp in ns, units) in turn, and the digest of its output, which is
        empty if no outputs are kept.

        due_ns: if None, the feed is due when it is issued, as in a closed loop. until_ns: a feed that is still running
        then is broken off after its second yield or a later one. on_output: is called after the last timestamp and
        before the digest.

        A yield is copied before its timestamp, so what an engine writes into its array later is neither timed nor
        audited. Raises WrongOutput if the runner yields nothing, or another number of units than the feed has; a feed
        that never ends is stopped.
        """
        yields: list[int] = []
        parts: list[bytes] = []
        append, keep, array_type = yields.append, parts.append, np.ndarray
        checked = None  # numpy's dtypes are singletons: one identity test a unit instead of a look-up
        complete = True
        on_first = self.on_first
        most = self.units and self.units + 1  # one yield more shows that there are too many
        issued = now_ns()
        for out in islice(runner(feed), most):
            if type(out) is not array_type or out.dtype is not checked:
                out = host_array(out)
                checked = out.dtype
            values = out.tobytes()
            if len(values) > UNIT_BYTES and len(values) > len(out) * UNIT_BYTES:
                raise WrongOutput(f"a unit's output has {len(values) / max(1, len(out)) / 2**20:.0f} MiB")
            keep(values)
            now = now_ns()
            append(now)
            append(len(out))
            if on_first:
                if len(out) != self.units:
                    on_first(serial, len(out), digest(serial, parts[0]))
                on_first = None
            if now >= until_ns and len(yields) > 2:
                complete = False
                break
        if not yields:
            raise WrongOutput(NO_OUTPUT)
        if complete and self.units and sum(yields[1::2]) != self.units:
            more = "at least " if len(parts) == most else ""
            raise WrongOutput(
                f"the runner yielded {more}{counted(int(sum(yields[1::2])), 'unit')} for a feed of {self.units}"
            )
        if on_output:
            on_output(np.frombuffer(b"".join(parts), out.dtype).reshape(-1, *out.shape[1:]))
        if self.outputs:
            self.digest = self.outputs.add(serial, parts, out, self.previous)
            self.previous = serial
            if self.on_finished:
                self.on_finished(serial, self.digest)
        self.yields.fromlist(yields)
        self.serials.append(serial)
        self.due_ns.append(issued if due_ns is None else due_ns)
        self.issued_ns.append(issued)
        self.ends.append(len(self.yields) // 2)
        return yields, self.digest


def merged(logs: Iterable[FeedLog]) -> Completions:
    """The logs of all issue threads as one table, in the order of issue. Raises ValueError if no feed finished."""
    logs = list(logs)
    due = np.concatenate([np.array(log.due_ns, np.int64) for log in logs])
    issued = np.concatenate([np.array(log.issued_ns, np.int64) for log in logs])
    counts = np.concatenate([np.diff(np.array(log.ends, np.int64), prepend=0) for log in logs])
    yields = np.concatenate([np.array(log.yields, np.int64) for log in logs])
    timestamps, units = yields[0::2], yields[1::2]
    order = np.argsort(issued, kind="stable")
    begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)[:-1]))[order]
    ends = np.cumsum(counts[order])
    rows = np.arange(len(timestamps)) - np.repeat(ends - counts[order] - begins, counts[order])
    return Completions(due[order], issued[order], ends, timestamps[rows], units[rows])


def serials(logs: Iterable[FeedLog]) -> npt.NDArray[np.int64]:
    """[feeds], the numbers of the feeds of all issue threads, in the order of `merged`."""
    logs = list(logs)
    issued = np.concatenate([np.array(log.issued_ns, np.int64) for log in logs])
    return np.concatenate([np.array(log.serials, np.int64) for log in logs])[np.argsort(issued, kind="stable")]


def closed_loop(
    runner: Runner,
    feeds: NextFeed,
    limits: Limits,
    threads: int = 1,
    enough: Callable[[Completions], bool] = lambda done: True,
    new_log: Callable[[], FeedLog] = FeedLog,
    ahead: bool = False,
    pool: Executor | None = None,
) -> Completions:
    """The single-stream scenario (one issue thread) and the offline scenario (as many as the runner's concurrency):
    each thread issues its next feed when its last one is finished, until the window of `limits` is over.

    enough: decides, once `min_ns` and `min_feeds` are reached, whether the feeds of one thread suffice. It is called
    between two feeds and ever more seldom, since the window goes on meanwhile. When it returns True all threads end: a
    thread alone would have the whole device, and show half of its rate.

    new_log: makes the log of each chain of feeds. ahead: the next feed of each issue thread is made by another thread
    while a feed runs. Its feeds then form two chains that alternate; within a chain a feed follows from the previous
    output. Limits that cut off break off the feeds that are still running at `max_ns`. A runner's error passes through.

    pool: has at least one thread for each issue thread; by default they are new.
    """
    now_ns = clock.now_ns
    begin = now_ns()
    until_ns = begin + limits.max_ns if limits.cut_off else math.inf
    lock = threading.Lock()
    issued = done = 0
    over = False

    def make(digest: bytes) -> tuple[int, Feed]:
        nonlocal issued
        with lock:
            serial = issued
            issued += 1
        return serial, feeds(serial, digest)

    def issue(logs: Sequence[FeedLog]) -> None:
        nonlocal done, over
        look_ns = limits.min_ns
        with ExitStack() as stack:
            maker = stack.enter_context(ThreadPoolExecutor(1)) if ahead else None

            def next_of(log: FeedLog) -> Callable[[], tuple[int, Feed]]:
                return maker.submit(make, log.digest).result if maker else partial(make, log.digest)

            waiting = deque((log, next_of(log)) for log in logs)
            while True:
                log, made = waiting.popleft()
                serial, feed = made()
                elapsed = log.run(runner, feed, now_ns, serial=serial, until_ns=until_ns)[0][-2] - begin
                done += 1
                if over or elapsed >= limits.max_ns:
                    return
                if elapsed >= look_ns and done >= limits.min_feeds:
                    if enough(merged(log for log in logs if log.ends)):
                        over = True
                        return
                    look_ns = int(elapsed * LOOK_GROWTH)
                waiting.append((log, next_of(log)))

    return in_threads(issue, [[new_log() for _ in range(chains(ahead))] for _ in range(threads)], pool)


def open_loop(
    runner: Runner,
    feeds: NextFeed,
    arrivals_ns: Iterator[int],
    limits: Limits,
    threads: int = 1,
    new_log: Callable[[], FeedLog] = FeedLog,
    pool: Executor | None = None,
) -> Completions:
    """The server scenario: feeds arrive on a schedule of their own and wait in a queue.

    arrivals_ns: when the feeds are due, counted from the start. The schedule ends once `min_ns` has passed and
    `min_feeds` have arrived; all feeds that arrived are run to their end. An issue thread that waits sleeps, so that it
    takes no core from the device. Raises Overloaded if a feed would be issued more than `max_ns` after it was due.
    """
    now_ns = clock.now_ns
    begin = now_ns()
    lock = threading.Lock()
    arrived = 0

    def issue(logs: Sequence[FeedLog]) -> None:
        nonlocal arrived
        (log,) = logs
        while True:
            with lock:
                due = next(arrivals_ns)
                if due >= limits.min_ns and arrived >= limits.min_feeds:
                    return
                serial = arrived
                arrived += 1
            feed = feeds(serial, log.digest)
            while (late := now_ns() - begin - due) < 0:
                clock.sleep(-late / 1e9)
            if late > limits.max_ns:
                raise Overloaded(f"feed {serial} waited {duration(late)} for its turn: the queue grows")
            log.run(runner, feed, now_ns, begin + due, serial)

    return in_threads(issue, [[new_log()] for _ in range(threads)], pool)


def made_ahead(device: Device, batch: int) -> bool:
    """Whether the next feed is made while the device works on one: for batches on a device that leaves the cores of the
    CPU free. A feed of one sample is small, and an engine that knew it early could run two samples at once against the
    rules of its scenario; the size of a batch is the engine's choice anyway."""
    return device.kind != "cpu" and batch > 1


def chains(ahead: bool) -> int:
    """The number of chains of each issue thread; in a chain each feed follows from the previous output."""
    return 2 if ahead else 1


def in_threads(
    issue: Callable[[Sequence[FeedLog]], None], logs: Sequence[Sequence[FeedLog]], pool: Executor | None
) -> Completions:
    """Runs a thread of the pool for each group of logs; a single group is run in this thread. Raises the error of the
    first group that has one."""
    if len(logs) == 1:
        issue(logs[0])
    elif pool is None:
        with ThreadPoolExecutor(len(logs)) as own:
            return in_threads(issue, logs, own)
    else:
        running = [pool.submit(issue, group) for group in logs]
        wait(running)
        for group in running:
            group.result()
    return merged(log for group in logs for log in group if log.ends)


def warm_up(runner: Runner, feeds: Iterator[Feed], limits: Limits) -> int:
    """Runs feeds for `warmup_ns`, and until one yield at least. The last feed is broken off: its generator is closed.
    Returns the longest time of a feed, in ns. Raises WrongOutput if the runner yields nothing."""
    now_ns = clock.now_ns
    begin = issued = now = now_ns()
    longest = 0
    while True:
        out = None
        for out in runner(next(feeds)):
            host_array(out)
            now = now_ns()
            longest = max(longest, now - issued)
            if now - begin >= limits.warmup_ns:
                return longest
        if out is None:
            raise WrongOutput(NO_OUTPUT)
        issued = now


def break_off(runner: Runner, feeds: Iterator[Feed]) -> BrokenOff:
    """Closes a feed after its first yield, and runs another one. Raises what the runner raises."""
    feed = runner(next(feeds))
    host_array(next(feed))
    begin_ns = clock.now_ns()
    if isinstance(feed, Iterator) and hasattr(feed, "close"):
        feed.close()
    closing_ns = clock.now_ns() - begin_ns
    for out in runner(next(feeds)):
        host_array(out)
    return BrokenOff(closing_ns=closing_ns)
