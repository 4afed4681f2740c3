"""The worker's own process. It says hello, and then answers requests until its parent is gone.

It holds an adapter and everything that it opened, or a meter. Whatever a plugin raises is sent to the parent as a
`Failed`, its traceback left in the log. This module and what it imports need numpy, pydantic and psutil, and no other
package: an interpreter of a vendor's own need not have the rest of Mixmark's dependencies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import math
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from mixmark.harness import VERSION
from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.arrivals import poisson
from mixmark.harness.contracts.errors import MixmarkError, PluginError, Unsupported, UsageError, WrongOutput
from mixmark.harness.contracts.protocols import Adapter, Discloses, Feed, Feeds, Helpers, Meter, Runner, Suite, Use
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Absent, Completions, Device, Failure, Limits, RateTrial
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.statistics import intervals, steadiness, timestamps
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import batch_search, load_generator, messages, runner_check
from mixmark.harness.worker.failures import WorkerFailed, failure_of
from mixmark.harness.worker.outputs import Outputs
from mixmark.harness.worker.process import memory
from mixmark.harness.worker.software import packages, python

MAX_CONCURRENCY = 64
MOST_TEXT = 200  # characters of a name or a value that an adapter discloses
RUNTIME_BYTES = 512 << 20  # interpreter, framework and activations at batch 1, on top of weights and state


@dataclass
class Opened:
    """A suite that is loaded on a device."""

    suite: Suite
    runner: Runner
    device: Device
    threads: int = 1
    """How many feeds are in flight at once."""
    batch: int = 1
    rate_per_s: float | None = None
    feeds: Feeds | None = None
    """Makes the feeds of the window, once it has begun."""
    seed: int | None = None
    """The seed of the window; None: the nonces of its feeds come one by one."""
    ahead: bool = False
    """Whether the next feed is made while one runs."""
    log: load_generator.FeedLog = field(default_factory=load_generator.FeedLog)


class Line:
    """What the parent says. Replies to questions overtake the requests that nobody has read: whoever waits for either
    reads, and leaves what is for others."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._reading = self._over = False
        self._read: tuple[deque[messages.Message], deque[messages.Message]] = (deque(), deque())
        """Requests and replies."""

    def request(self) -> messages.Message | None:
        """The next request; None once the parent is gone."""
        return self._next(0)

    def sampling_key(self) -> int:
        """The key that the parent sends after `OutputsFull`."""
        message = self._next(1)
        if not isinstance(message, messages.SamplingKey):
            raise MixmarkError("the parent is gone")
        return message.key

    def _next(self, box: int) -> messages.Message | None:
        while True:
            with self._changed:
                while self._reading and not self._read[box]:
                    self._changed.wait()
                if self._read[box]:
                    return self._read[box].popleft()
                if self._over:
                    return None
                self._reading = True
            message = None
            try:
                line = self._stream.readline()
                message = messages.read(line) if line else None
            finally:
                with self._changed:
                    self._reading = False
                    self._over = message is None
                    if message is not None:
                        self._read[isinstance(message, messages.SamplingKey)].append(message)
                    self._changed.notify_all()


class Served:
    """The state of a worker: its adapter and what it has open, by the key of the share.

    line: what the parent says. say: sends a message to the parent; several threads may call it at once. Each request
    has a method, which returns the answer, or None where it sends the answer itself.
    """

    def __init__(self, setup: messages.Setup, line: Line, say: Callable[[messages.Message], None]) -> None:
        self.line, self.say = line, say
        loaded = _plugin(setup).load()
        if loaded.name != setup.name:
            raise MixmarkError(f"the adapter listed as {setup.name} calls itself {loaded.name}")
        self.adapter: Adapter = loaded(setup.options)
        self.stack = contextlib.ExitStack()
        self.opened: dict[str, Opened] = {}
        self.feed_threads = ThreadPoolExecutor(MAX_CONCURRENCY)
        self.in_flight: list[Future[None]] = []
        self.running = ""

    def answer(self, request: messages.Message) -> messages.Reply | None:
        match request:
            case messages.Discover():
                return self.discover()
            case messages.Open():
                return self.open(request)
            case messages.Prepare():
                return self.prepare(request)
            case messages.Begin():
                return self.begin(request)
            case messages.Measure():
                return self.measure(request)
            case messages.Feed():
                self.feed(request)
                return None
            case messages.HandOver():
                return self.hand_over(request)
            case messages.Audit():
                return self.audit(request)
            case messages.CheckRunner():
                return self.check_runner(request)
            case messages.Close():
                return self.close()
        raise MixmarkError(f"{type(request).__name__} is no request")

    def discover(self) -> messages.Discovered:
        told: object = self.adapter.discover()
        if not isinstance(told, Iterable):
            raise MixmarkError(f"discover returned {told!r:.80}, and not devices")
        devices = []
        for each in told:
            if not isinstance(each, Device):
                raise MixmarkError(f"discover yielded {each!r:.80}, and not a Device")
            devices.append(Device.model_validate(each.model_dump()))  # a copy may have been updated with anything
        return messages.Discovered(devices=tuple(devices), vendor=_disclosed(self.adapter))

    def open(self, asked: messages.Open) -> messages.Opened:
        """The adapter gets a suite of its own: whatever it does to it, the harness's feeds and units are others."""
        self.say(messages.Stage(name="loading"))
        built, runs = (registry.build_suite(**dict(asked.suite)) for _ in range(2))
        runs = runs.reference() if asked.reference else runs
        need = needed_bytes(runs, asked.precision)
        if asked.free_bytes is not None and need > asked.free_bytes:
            needs, free = f"{need / 2**30:.1f} GiB", f"{asked.free_bytes / 2**30:.1f} GiB"
            message = f"needs {needs} of {asked.device.memory_pool} memory, {free} are free"
            failure = Failure(kind="refused", message=message, hint="take a smaller --tier, or --suite to leave it out")
            raise WorkerFailed(failure)
        begin = time.monotonic_ns()
        opening: object = self.adapter.open(asked.device, runs, asked.precision, Use.of(asked.scenario))
        if not isinstance(opening, AbstractContextManager):
            raise MixmarkError(f"open returned {opening!r:.80}, and not a context manager")
        runner = self.stack.enter_context(opening)
        took_ns = time.monotonic_ns() - begin
        if missing := [name for name in ("concurrency", "facts", "__call__") if not hasattr(runner, name)]:
            raise MixmarkError(f"open gave {runner!r:.80}, which is no runner: it lacks {', '.join(missing)}")
        if type(runner.concurrency) is not int or not 1 <= runner.concurrency <= MAX_CONCURRENCY:
            raise MixmarkError(
                f"the runner has concurrency {runner.concurrency!r}", f"give a whole number from 1 to {MAX_CONCURRENCY}"
            )
        self.opened[asked.key] = Opened(built, runner, asked.device)
        return messages.Opened(load_ns=took_ns, needed_bytes=need, facts=_facts(runner), concurrency=runner.concurrency)

    def prepare(self, asked: messages.Prepare) -> messages.Prepared:
        it, seed, limits = self.opened[asked.key], asked.seed, asked.limits
        it.threads = Use.of(asked.scenario).in_flight or it.runner.concurrency
        batch, rate_per_s = asked.batch, asked.rate_per_s
        found: batch_search.BatchFound | None = None
        rate_trials: tuple[RateTrial, ...] = ()
        if batch is None:
            search = batch_search.BatchSearch(
                it.runner,
                lambda size: _untimed(it.suite, size, seed, "search"),
                limits.search_ns,
                lambda: _room(it.device),
                units=it.suite.units,
                threads=it.threads,
                ahead=functools.partial(load_generator.made_ahead, it.device),
                on_prepare=lambda: self.say(messages.Stage(name="preparing a batch size")),
                on_search=lambda: self.say(messages.Stage(name="searching the best batch")),
            )
            found = search.run()
            batch = found.batch
        warm_up = _untimed(it.suite, batch, seed, "warm-up")
        if found is None:
            self.say(messages.Stage(name="preparing a batch size"))
            batch_search.prepare(it.runner, warm_up)
        self.say(messages.Stage(name="warming up"))
        load_generator.warm_up(it.runner, warm_up, limits)
        if asked.scenario == "server" and rate_per_s is None:
            self.say(messages.Stage(name="searching the highest rate"))
            rate_per_s, rate_trials = _highest_rate(it, limits, seed)
        it.batch, it.rate_per_s = batch, rate_per_s
        return messages.Prepared(
            batch=batch,
            trials=found.trials if found else (),
            search_ended_by=found.ended_by if found else None,
            rate_per_s=rate_per_s,
            rate_trials=rate_trials,
            facts=_facts(it.runner),
            processes=_processes(it.runner),
        )

    def begin(self, asked: messages.Begin) -> messages.Begun:
        it = self.opened[asked.key]

        def draw_key(done: int, commitment: str) -> int:
            self.say(messages.OutputsFull(key=asked.key, done=done, commitment=commitment))
            return self.line.sampling_key()

        it.feeds, it.seed, it.ahead = it.suite.feeds(it.batch, asked.pool), asked.seed, asked.ahead
        it.log = load_generator.FeedLog(it.suite.units(it.batch), Outputs(draw_key))
        return messages.Begun()

    def measure(self, asked: messages.Measure) -> messages.Measured:
        """A closed loop, or an open one where there is a rate of arrivals. No answer of a screening run is kept."""
        it, limits = self.opened[asked.key], asked.limits
        make, seed, units = it.feeds, it.seed, it.log.units
        outputs = None if limits.screening else it.log.outputs
        assert make is not None and seed is not None  # `begin` was told them

        def feeds(serial: int, before: bytes) -> Feed:
            return make(seeds.nonce(seed, serial, before))

        self.say(messages.Stage(name="measuring"))
        if it.rate_per_s is None:
            enough = functools.partial(steadiness.enough, limits)
            done = load_generator.closed_loop(
                it.runner,
                feeds,
                limits,
                threads=it.threads,
                enough=enough,
                units=units,
                outputs=outputs,
                ahead=it.ahead,
            )
        else:
            limits = _enough(it.suite, limits, it.rate_per_s)
            arrivals_ns = poisson(it.rate_per_s, seeds.arrivals(seed))
            done = load_generator.open_loop(
                it.runner, feeds, arrivals_ns, limits, threads=it.threads, units=units, outputs=outputs
            )
        self.say(messages.Stage(name="measured", commitment=outputs.commitment if outputs else ""))
        with open(asked.out, "wb") as file:
            np.savez(file, allow_pickle=False, **vars(done))
        return messages.Measured(ended_by="time" if it.rate_per_s else _ended_by(limits, done))

    def feed(self, asked: messages.Feed) -> None:
        """Sends the answer itself when the feed is over. Where the runner has several slots the next feed begins
        meanwhile, but never one of another suite; where feeds are made ahead it is at least made meanwhile."""
        key, it = asked.key, self.opened[asked.key]
        assert it.feeds is not None  # `begin` made it
        feed, serial = it.feeds(asked.nonce), asked.serial
        if self.running != key:
            wait(self.in_flight)
            self.in_flight, self.running = [], key

        def run() -> None:
            try:
                issued_ns, yields, digest = it.log.run(it.runner, feed, time.monotonic_ns, serial=serial)
                self.say(messages.Fed(key=key, serial=serial, issued_ns=issued_ns, yields=yields, digest=digest.hex()))
            except Exception as error:
                self.say(failed(error))

        if it.runner.concurrency == 1 and not it.ahead:
            run()
        else:
            self.in_flight = [each for each in self.in_flight if not each.done()]
            if len(self.in_flight) >= it.runner.concurrency:  # a feed that is sent ahead waits here
                self.in_flight = [*wait(self.in_flight, return_when=FIRST_COMPLETED).not_done]
            self.in_flight.append(self.feed_threads.submit(run))

    def hand_over(self, asked: messages.HandOver) -> messages.HandedOver:
        kept = self.opened[asked.key].log.outputs
        assert kept is not None  # `begin` made it
        kept.save(Path(asked.outputs))
        return messages.HandedOver(facts=_facts(self.opened[asked.key].runner))

    def audit(self, asked: messages.Audit) -> messages.Audited:
        """The feeds are made anew from the window's seed."""
        it = self.opened[asked.key]
        with np.load(asked.outputs, allow_pickle=False) as kept:
            previous = [row.tobytes() if row.any() else b"" for row in kept["previous_digests"]]
            rows = list(zip(kept["serials"].tolist(), previous, kept["outputs"], strict=True))
        values: dict[int, float] = {}
        problem = ""
        feeds = it.suite.feeds(asked.batch, seeds.pool(asked.seed))
        for serial, before, output in rows:
            self.say(messages.Stage(name="auditing"))
            feed = feeds(seeds.nonce(asked.seed, serial, before))
            try:
                reference = np.concatenate(
                    [load_generator.host_array(out) for out in it.runner({**feed, "output": output})]
                )
                values[serial] = float(it.suite.quality(output, reference))
                if not math.isfinite(values[serial]):
                    raise WrongOutput(f"the gate's metric of feed {serial} is {values.pop(serial)}")
            except WrongOutput as error:
                problem = f"feed {serial}: {error}"
                break
        return messages.Audited(
            feeds=tuple(values),
            values=tuple(values.values()),
            problem=problem,
            software=_software(),
        )

    def check_runner(self, asked: messages.CheckRunner) -> messages.RunnerChecked:
        opened = self.opened[asked.key]
        return runner_check.check(opened.runner, _untimed(opened.suite, opened.batch, asked.seed, "runner check"))

    def close(self) -> messages.Closed:
        wait(self.in_flight)
        self.stack.close()
        self.opened.clear()
        return messages.Closed()


class ServedMeter:
    """A worker's meter, in an interpreter of its own. The harness stamps the reads; this side only reads."""

    def __init__(self, setup: messages.Setup) -> None:
        self.meter: Meter = _plugin(setup).load()(setup.options)
        self.begin_ns = 0

    def answer(self, request: messages.Message) -> messages.Reply:
        match request:
            case messages.Cover():
                told = list(self.meter.domains(request.devices))
                absent = tuple(each for each in told if isinstance(each, Absent))
                domains = tuple(each for each in told if not isinstance(each, Absent))
                self.begin_ns = time.process_time_ns()
                return messages.Covered(domains=domains, absent=absent)
            case messages.Read():
                samples = tuple((float(each.value), each.at_ns) for each in self.meter.read(request.domain))
                return messages.Readings(samples=samples, cpu_ns=time.process_time_ns() - self.begin_ns)
        raise MixmarkError(f"{type(request).__name__} is no request to a meter")


def _untimed(suite: Suite, batch: int, seed: int, *use: object) -> Iterator[Feed]:
    """Feeds that no window has. Several threads may ask for the next one at once, which a generator would refuse."""
    own = seeds.derived(seed, *use)
    return map(suite.feeds(batch, seeds.pool(own)), map(functools.partial(seeds.nonce, own), itertools.count()))


def _plugin(setup: messages.Setup) -> Plugin:
    """The plugin to load. Raises PluginError where this interpreter has none of that name."""
    if setup.spec:
        return Plugin(setup.kind, setup.name, setup.spec, setup.origin)
    found = registry.find(setup.kind)
    if setup.name not in found:
        kind = setup.kind[:-1]
        raise PluginError(
            f"the interpreter {sys.executable} has no {kind} {setup.name}, it has {', '.join(found)}",
            hint=f"install the {kind}'s package there, with an entry point of the group mixmark.{setup.kind}",
        )
    return found[setup.name]


def _hello(setup: messages.Setup) -> messages.Hello:
    try:
        plugin = _plugin(setup)
        origin, spec = plugin.origin, plugin.spec
        source, sha256 = registry.source_hash(plugin)
    except PluginError:  # the answer to the first request says so
        origin = spec = source = sha256 = ""
    return messages.Hello(
        mixmark=VERSION,
        protocol=messages.PROTOCOL,
        python=python(),
        packages=packages(),
        origin=origin,
        spec=spec,
        source=source,
        sha256=sha256,
    )


def _software() -> dict[str, str]:
    """The versions of what computes a reference, as far as it is loaded."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch"):
        if name in sys.modules:
            versions[name] = plain(str(getattr(sys.modules[name], "__version__", "?")), MOST_TEXT)
    return versions


def _disclosed(adapter: Adapter) -> dict[str, str]:
    """What the adapter tells of its vendor's software, where it does. An error is told in place of it."""
    try:
        told = adapter.disclose() if isinstance(adapter, Discloses) else {}
        return {plain(str(name), MOST_TEXT): plain(str(value), MOST_TEXT) for name, value in told.items()}
    except Exception as error:
        traceback.print_exception(error)
        return {"not disclosed": plain(f"{type(error).__name__}: {error}", MOST_TEXT)}


def _facts(runner: Runner) -> dict[str, str]:
    return {str(key): str(value) for key, value in runner.facts.items()}


def _processes(runner: Runner) -> tuple[int, ...]:
    return tuple(int(each) for each in runner.processes) if isinstance(runner, Helpers) else ()


def _enough(suite: Suite, bounds: Limits, rate_per_s: float) -> Limits:
    """As many feeds as the latency limit's percentile takes, where they arrive in time."""
    needed = intervals.sample_needed(suite.latency.percentile) if suite.latency else 0
    fits = needed / rate_per_s * 1e9 <= bounds.max_ns
    return bounds.model_copy(update={"min_feeds": needed}) if fits and needed > bounds.min_feeds else bounds


def _highest_rate(it: Opened, bounds: Limits, seed: int) -> tuple[float, tuple[RateTrial, ...]]:
    """Starts at half of what a closed loop does. Raises WorkerFailed where the time allows no answer."""
    limits = it.suite.latency
    if limits is None:
        raise Unsupported(f"{it.suite.name} has no latency limits, so it has no highest rate", "give a --rate")
    trials_so_far = itertools.count()
    units = it.suite.units(1)
    begin = time.monotonic_ns()
    once = bounds.model_copy(update={"min_ns": bounds.warmup_ns // 2, "max_ns": bounds.warmup_ns, "min_feeds": 1})
    first = _untimed(it.suite, 1, seed, "rate", next(trials_so_far))
    closed = load_generator.closed_loop(it.runner, load_generator.independent_feeds(first), once, units=units)
    service_s = timestamps.in_flight_ns(closed) / len(closed) / 1e9
    needed = intervals.sample_needed(limits.percentile)
    if needed * service_s * 1e9 > bounds.max_ns:
        message = f"{needed} feeds carry a p{limits.percentile * 100:g}; at {service_s:.3g} s each the time does not"
        raise WorkerFailed(Failure(kind="refused", message=message, hint="--preset standard gives it more time"))
    longest_ns = max(limits.total_ns or 0, limits.first_ns or 0)
    trial = bounds.model_copy(update={"min_ns": 0, "max_ns": longest_ns, "min_feeds": needed})

    def keeps(rate_per_s: float) -> tuple[int, bool]:
        use = "rate", next(trials_so_far)
        feeds = load_generator.independent_feeds(_untimed(it.suite, 1, seed, *use))
        arrivals = poisson(rate_per_s, seeds.derived(seed, *use, "arrivals"))
        try:
            done = load_generator.open_loop(
                it.runner, feeds, arrivals, trial, threads=it.runner.concurrency, units=units
            )
        except load_generator.Overloaded:
            return 0, False
        return len(done), bool(intervals.within_limits(done, limits))

    rate_per_s, trials = batch_search.highest_rate(keeps, 0.5 / service_s, begin + bounds.search_ns)
    if rate_per_s is None:
        message = f"no rate keeps the latency limits, down to {trials[-1].rate_per_s:.3g} feeds a second"
        raise WorkerFailed(Failure(kind="overloaded", message=message))
    return rate_per_s, trials


def _room(device: Device) -> int | None:
    return memory.available_bytes() if device.in_host_memory else None


def _ended_by(limits: Limits, done: Completions) -> Literal["precision", "cap", "time"]:
    if limits.half_width is None:
        return "time"
    return "cap" if done.yielded_ns.max() - done.issued_ns[0] >= limits.max_ns else "precision"


def needed_bytes(suite: Suite, precision: str) -> int:
    """What a suite takes at batch 1: its weights at the precision, every graph's state, and the runtime."""
    weights = suite.weights()
    shapes = [weights.spec(name).shape for name in weights.names()]
    shapes += [spec.shape for graph in suite.graphs().values() for spec in graph.state.values()]
    elements = sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)
    return elements * BITS_PER_WEIGHT[precision] // 8 + RUNTIME_BYTES


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # if memory ends, the worker goes, not the harness


def failed(error: BaseException) -> messages.Failed:
    """What the parent is sent for an exception, whose traceback goes to the worker's log."""
    traceback.print_exception(error)
    sys.stderr.flush()
    return messages.Failed(failure=failure_of(error), misuse=isinstance(error, UsageError))


def serve(requests: BinaryIO, answers: BinaryIO, setup: messages.Setup) -> None:
    """Answers requests until the parent closes its end. The plugin is loaded when the first request comes."""
    lock = threading.Lock()

    def say(message: messages.Message) -> None:
        line = messages.write(message)
        with lock:
            answers.write(line)
            answers.flush()

    say(_hello(setup))
    line = Line(requests)
    served: Served | ServedMeter | None = None
    while (request := line.request()) is not None:
        try:
            served = served or (ServedMeter(setup) if setup.kind == "meters" else Served(setup, line, say))
            answer = served.answer(request)
            if answer is not None:
                say(answer)
        except (Exception, SystemExit) as error:
            say(failed(error))


def _setup(words: str) -> messages.Setup:
    """What the parent said. One of another version may say it in other fields: it learns from the hello which version
    this is, and refuses it."""
    try:
        return messages.Setup.model_validate_json(words)
    except ValueError:
        return messages.Setup(kind="adapters", name="")


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    os.dup2(2, 1)
    _die_with_parent()
    setup = _setup(sys.argv[2])
    with channel, channel.makefile("rb") as reader, channel.makefile("wb") as writer:
        serve(reader, writer, setup)
