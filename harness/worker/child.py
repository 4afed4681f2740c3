"""The worker's own process. It sends a `Hello`, and then serves calls until its parent is gone.

It holds an adapter and the suites that the adapter opened, or a plugin of another kind (`services`). If a plugin raises
an exception, the parent gets its failure, and the traceback goes to the worker's log. This module and its imports need
numpy, pydantic and psutil, and no other package, so a vendor's own interpreter need not have the rest of Mixmark's
dependencies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import io
import itertools
import math
import os
import platform
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, BinaryIO, Concatenate, TypeVar

import numpy as np

from mixmark.harness import VERSION
from mixmark.harness.contracts import protocols, schema, seeds
from mixmark.harness.contracts.errors import MixmarkError, Unsupported, WrongOutput
from mixmark.harness.contracts.numbers import duration, significant
from mixmark.harness.contracts.seeds import nonce, poisson
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.statistics import intervals, timestamps
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Kind
from mixmark.harness.resources import clock, memory
from mixmark.harness.worker import batch_search, calls, load_generator, messages, services
from mixmark.harness.worker.calls import Call, Later, P, Reply, failed, serve
from mixmark.harness.worker.failures import Overloaded, WorkerFailed
from mixmark.harness.worker.messages import AdapterCalls, MeterCalls, ParentCalls, SuiteCalls, WatcherCalls
from mixmark.harness.worker.outputs import Outputs, digest

Item = TypeVar("Item", Call, Reply)
MOST_TEXT = 200  # characters of a name or a value that an adapter discloses
RUNTIME_BYTES = 512 << 20  # interpreter, framework and activations at batch 1, on top of weights and state


@dataclass
class LoadedSuite:
    """A suite that is loaded on a device."""

    suite: protocols.Suite
    runner: protocols.Runner
    device: schema.Device
    threads: int = 1
    """The number of feeds in flight at once."""
    pool: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    """The issue threads. An engine may take long for the first feed of each thread (torch 57 ms on an H200: cuDNN's
    plans are of a thread), so each is warm before a window, and those of the search issue the window's feeds, too."""
    batch: int = 1
    rate_per_s: float | None = None
    feeds: protocols.Feeds | None = None
    """Makes the feeds of the window; None before `begin`."""
    ahead: bool = False
    """Whether the next feed is made while one runs."""
    loop: messages.LoopChoice | None = None
    """Issues the feeds of the window in place of an open or a closed loop."""
    log: load_generator.FeedLog = field(default_factory=load_generator.FeedLog)


class Channel:
    """The stream to the parent. Several threads may send, and several may wait for what it sends.

    One of the threads that wait reads the stream at a time, and files a line for another thread under its kind. So the
    reply to `outputs_full` overtakes the calls that wait. interface: the class whose methods the parent may call.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, interface: type) -> None:
        self._reader, self._writer, self._interface = reader, writer, interface
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._reading = self._closed = False
        self._calls: deque[Call] = deque()
        self._replies: deque[Reply] = deque()

    def send(self, line: bytes) -> None:
        with self._sending:
            self._writer.write(line)
            self._writer.flush()

    def call(self, method: Callable[Concatenate[Any, P], object], *args: P.args, **arguments: P.kwargs) -> None:
        """Calls a method of `ParentCalls`."""
        self.send(calls.write_call(method, *args, **arguments))

    def __iter__(self) -> Iterator[Call]:
        """The calls of the parent, until it is gone."""
        while (call := self._next(self._calls)) is not None:
            yield call

    def reply(self) -> Reply:
        """The parent's next reply. Raises MixmarkError once the parent is gone."""
        reply = self._next(self._replies)
        if reply is None:
            raise MixmarkError("the parent is gone")
        return reply

    def _next(self, wanted: deque[Item]) -> Item | None:
        while True:
            with self._changed:
                while self._reading and not wanted:
                    self._changed.wait()
                if wanted:
                    return wanted.popleft()
                if self._closed:
                    return None
                self._reading = True
            received = None
            try:
                line = self._reader.readline()
                received = calls.read(line, self._interface) if line else None
            finally:
                with self._changed:
                    self._reading = False
                    self._closed = received is None
                    if isinstance(received, Call):
                        self._calls.append(received)
                    elif isinstance(received, Reply):
                        self._replies.append(received)
                    self._changed.notify_all()


class AdapterService(AdapterCalls):
    """The state of a worker with an adapter: the adapter and its loaded suites, by the key of the share."""

    def __init__(self, setup: messages.Setup, parent: Channel) -> None:
        self.parent = parent
        loaded = services.plugin_of(setup).load()
        if loaded.name != setup.name:
            raise MixmarkError(f"the adapter listed as {setup.name} calls itself {loaded.name}")
        self.adapter: protocols.Adapter = loaded(setup.options)
        self.stack = contextlib.ExitStack()
        self.loaded: dict[str, LoadedSuite] = {}
        self.in_flight: dict[Future[None], int] = {}
        """The concurrency of the runner of each feed that was begun."""
        self.secrets: dict[int, int] = {}
        """The secrets of the turns that have come."""
        self.waiting_for_secret = threading.Lock()

    def _stage(self, name: messages.StageName) -> None:
        self.parent.call(ParentCalls.stage, name=name)

    def discover(self) -> messages.Discovered:
        found: object = self.adapter.discover()
        if not isinstance(found, Iterable):
            raise MixmarkError(f"discover returned {found!r:.80}, and not devices")
        devices = []
        for device in found:
            if not isinstance(device, schema.Device):
                raise MixmarkError(f"discover yielded {device!r:.80}, and not a Device")
            devices.append(schema.Device.model_validate(device.model_dump()))  # model_copy validates nothing
        return messages.Discovered(devices=tuple(devices), vendor=_disclosed(self.adapter))

    def open(
        self,
        *,
        key: str,
        device: schema.Device,
        suite: messages.SuiteChoice,
        precision: schema.Precision,
        scenario: schema.ScenarioName,
        free_bytes: int | None,
        reference: bool = False,
    ) -> messages.Opened:
        """Loads a suite. The adapter gets a suite object of its own, so it cannot change the feeds of the harness."""
        self._stage("loading")
        own, adapters = (registry.build_suite(**dict(suite)) for _ in range(2))
        adapters = adapters.reference() if reference else adapters
        need = needed_bytes(adapters, precision)
        if free_bytes is not None and need > free_bytes:
            needs, free = f"{need / 2**30:.1f} GiB", f"{free_bytes / 2**30:.1f} GiB"
            message = f"needs {needs} of {device.memory_pool} memory, {free} are free"
            failure = schema.Failure(
                kind="refused", message=message, hint="take a smaller --tier, or --suite to leave it out"
            )
            raise WorkerFailed(failure)
        begin = clock.now_ns()
        opening: object
        if reference and isinstance(adapters, protocols.OwnReference):
            opening = adapters.open_reference()
        else:
            opening = self.adapter.open(device, adapters, precision, protocols.Use.of(scenario))
        if not isinstance(opening, AbstractContextManager):
            raise MixmarkError(f"open returned {opening!r:.80}, and not a context manager")
        runner = self.stack.enter_context(opening)
        took_ns = clock.now_ns() - begin
        if missing := [name for name in ("concurrency", "facts", "__call__") if not hasattr(runner, name)]:
            raise MixmarkError(f"open gave {runner!r:.80}, which is not a runner: it lacks {', '.join(missing)}")
        if type(runner.concurrency) is not int or not 1 <= runner.concurrency <= messages.MAX_CONCURRENCY:
            raise MixmarkError(
                f"the runner has concurrency {runner.concurrency!r}",
                f"give a whole number from 1 to {messages.MAX_CONCURRENCY}",
            )
        self.loaded[key] = LoadedSuite(own, runner, device)
        return messages.Opened(load_ns=took_ns, needed_bytes=need, facts=_facts(runner), concurrency=runner.concurrency)

    def measured(self, *, suite: messages.SuiteChoice) -> messages.Measured:
        found: messages.Measured = registry.build_suite(**dict(suite)).measured()
        return found

    def prepare(
        self,
        *,
        key: str,
        scenario: schema.ScenarioName,
        batch: int | None,
        seed: int,
        limits: schema.Limits,
        rate_per_s: float | None = None,
    ) -> messages.Prepared:
        loaded = self.loaded[key]
        loaded.threads = protocols.Use.of(scenario).in_flight or loaded.runner.concurrency
        loaded.pool = ThreadPoolExecutor(max(loaded.threads, loaded.runner.concurrency))
        found: batch_search.BatchFound | None = None
        rate_trials: tuple[schema.RateTrial, ...] = ()
        if batch is None:
            search = batch_search.BatchSearch(
                loaded.runner,
                lambda size: _untimed(loaded.suite, size, seed, "search"),
                limits.search_ns,
                lambda: memory.available_bytes() if loaded.device.in_host_memory else None,
                units=loaded.suite.units,
                threads=loaded.threads,
                pool=loaded.pool,
                ahead=functools.partial(load_generator.made_ahead, loaded.device),
                on_prepare=lambda: self._stage("preparing a batch size"),
                on_search=lambda: self._stage("searching the best batch"),
            )
            found = search.run()
            batch = found.batch
        warm_up = _untimed(loaded.suite, batch, seed, "warm-up")
        if found is None:
            self._stage("preparing a batch size")
            batch_search.prepare(loaded.runner, warm_up)
        self._stage("warming up")
        feed_ns = load_generator.warm_up(loaded.runner, warm_up, limits)
        if found is None and (loaded.threads > 1 or load_generator.made_ahead(loaded.device, batch)):
            # a pool begins a thread while the others are busy, as they are with a slow first feed
            brief = limits.model_copy(update={"warmup_ns": 0})
            once = functools.partial(load_generator.warm_up, loaded.runner, warm_up, brief)
            for each in [loaded.pool.submit(once) for _ in range(loaded.threads)]:
                each.result()
        if scenario == "server" and rate_per_s is None:
            self._stage("searching the highest rate")
            rate_per_s, rate_trials = _highest_rate(loaded, limits, seed)
        loaded.batch, loaded.rate_per_s = batch, rate_per_s
        return messages.Prepared(
            batch=batch,
            trials=found.trials if found else (),
            search_ended_by=found.ended_by if found else None,
            rate_per_s=rate_per_s,
            rate_trials=rate_trials,
            feed_ns=feed_ns,
            facts=_facts(loaded.runner),
            processes=tuple(map(int, loaded.runner.processes)) if isinstance(loaded.runner, protocols.Helpers) else (),
        )

    def begin(self, *, key: str, pool: int, ahead: bool = False, loop: messages.LoopChoice | None = None) -> None:
        loaded = self.loaded[key]

        def draw_key(done: int, commitment: str) -> int:
            self.parent.call(ParentCalls.outputs_full, key=key, done=done, commitment=commitment)
            return self.parent.reply().of(ParentCalls.outputs_full)

        def first(serial: int, units: int, digest: bytes) -> None:
            self.parent.call(ParentCalls.first_yielded, key=key, serial=serial, units=units, digest=digest.hex())

        self.secrets.clear()
        loaded.feeds, loaded.ahead = loaded.suite.feeds(loaded.batch, pool), ahead
        loaded.loop = loop
        loaded.log = load_generator.FeedLog(loaded.suite.units(loaded.batch), Outputs(draw_key), on_first=first)

    def measure(self, *, key: str, seed: int, limits: schema.Limits, out: str, report_feeds: bool = False) -> None:
        """Runs an open loop if there is an arrival rate, else a closed one. Keeps no outputs if feeds are cut off."""
        loaded = self.loaded[key]
        make, units = loaded.feeds, loaded.log.units
        outputs = None if limits.cut_off else loaded.log.outputs
        assert make is not None  # `begin` made it
        turns: list[int] = []  # of the feeds of an open loop

        def feeds(serial: int, previous_digest: bytes) -> protocols.Feed:
            own = seed
            if loaded.rate_per_s or report_feeds:
                own = self._secret(turns[serial] if loaded.rate_per_s else serial)
            return make(nonce(own, serial, previous_digest))

        def arrivals_ns(rate_per_s: float) -> Iterator[int]:
            for due_ns in poisson(rate_per_s, seed):
                turns.append(due_ns // seeds.SLOT_NS)
                yield due_ns

        def finished(serial: int, digest: bytes) -> None:
            self.parent.call(ParentCalls.feed_finished, key=key, serial=serial, digest=digest.hex())

        on_finished, on_first = (finished, loaded.log.on_first) if report_feeds else (None, None)
        logs: list[load_generator.FeedLog] = []

        def new_log() -> load_generator.FeedLog:
            logs.append(load_generator.FeedLog(units, outputs, on_finished, on_first))
            return logs[-1]

        if loop := loaded.loop:
            done = resolve_name(loop.spec)(
                loaded.runner, feeds, threads=loaded.threads, new_log=new_log, pool=loaded.pool, **loop.arguments
            )
        elif loaded.rate_per_s is None:
            enough = functools.partial(intervals.enough, limits)
            done = load_generator.closed_loop(
                loaded.runner,
                feeds,
                limits,
                threads=loaded.threads,
                enough=enough,
                new_log=new_log,
                ahead=loaded.ahead,
                pool=loaded.pool,
            )
        else:
            due_ns = arrivals_ns(loaded.rate_per_s)
            done = load_generator.open_loop(
                loaded.runner, feeds, due_ns, limits, threads=loaded.threads, new_log=new_log, pool=loaded.pool
            )
        self.parent.call(ParentCalls.sealed, key=key, commitment=outputs.commitment if outputs else "")
        with open(out, "wb") as file:
            serials = load_generator.serials(log for log in logs if log.ends)
            np.savez(file, serials=serials, **vars(done))

    def reveal(self, *, key: str, turn: int, secret: int) -> Later[None]:
        self.secrets[turn] = secret
        return Later()

    def _secret(self, turn: int) -> int:
        """The secret of a turn; waits until the turn comes. Raises MixmarkError once the parent is gone."""
        with self.waiting_for_secret:  # one issue thread reads the calls, in place of `serve`
            while turn not in self.secrets:
                call = next(iter(self.parent), None)
                if call is None or call.method is not AdapterCalls.reveal:
                    raise MixmarkError("the parent is gone")
                self.reveal(**call.arguments)
            return self.secrets[turn]

    def feed(self, *, key: str, serial: int, nonce: int, take: str = "", give: str = "") -> Later[messages.Fed]:
        """Runs a feed, and sends the reply itself. If the runner takes several feeds at once, the next feed may begin
        meanwhile, also one of another suite. If feeds are made ahead, the next one is at least made meanwhile."""
        loaded = self.loaded[key]
        assert loaded.feeds is not None  # `begin` made it
        feed, carried_ns = loaded.feeds(nonce), 0
        if take:
            begin_ns = clock.now_ns()
            feed = {**feed, **_given(loaded.suite, np.load(take, allow_pickle=False))}
            carried_ns = clock.now_ns() - begin_ns

        def write(output: protocols.Array) -> None:
            nonlocal carried_ns
            begin_ns = clock.now_ns()
            np.save(give, output)
            carried_ns += clock.now_ns() - begin_ns

        def run() -> None:
            try:
                yields, hashed = loaded.log.run(
                    loaded.runner, feed, clock.now_ns, serial=serial, on_output=write if give else None
                )
                fed = messages.Fed(key=key, serial=serial, yields=yields, digest=hashed.hex(), carried_ns=carried_ns)
                self.parent.send(calls.write_reply(AdapterCalls.feed, fed))
            except Exception as error:
                self.parent.send(failed(error))

        concurrency = loaded.runner.concurrency
        self._wait_for_room(concurrency)
        if concurrency == 1 and not loaded.ahead:
            run()
        else:
            self.in_flight[loaded.pool.submit(run)] = concurrency
        return Later()

    def _wait_for_room(self, concurrency: int) -> None:
        """Waits until fewer feeds are in flight than this concurrency, and than the concurrency of each feed in
        flight."""
        while len(self.in_flight) >= min((concurrency, *self.in_flight.values())):
            left = wait(self.in_flight, return_when=FIRST_COMPLETED).not_done
            self.in_flight = {feed: most for feed, most in self.in_flight.items() if feed in left}

    def hand_over(self, *, key: str, outputs: str) -> dict[str, str]:
        loaded = self.loaded[key]
        assert loaded.log.outputs is not None  # `begin` made it
        loaded.log.outputs.save(Path(outputs))
        return _facts(loaded.runner)

    def compare_outputs(
        self, *, key: str, batch: int, pool: int, seeds: dict[int, int], outputs: str, sha256: str
    ) -> messages.OutputsCompared:
        """Makes the audited feeds anew, and compares their outputs with the reference's."""
        loaded = self.loaded[key]
        content = Path(outputs).read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            return _compared({}, "the file of the outputs was changed after it was written")
        with np.load(io.BytesIO(content), allow_pickle=False) as kept:
            among = np.isin(kept["serials"], list(seeds))
            serials, outputs_of = kept["serials"][among].tolist(), kept["outputs"][among]
            previous = [row.tobytes() if row.any() else b"" for row in kept["previous_digests"][among]]
            given_by = (
                zip(kept["taken_serials"][among].tolist(), kept["taken"][among], strict=True) if "taken" in kept else ()
            )
        rows = zip((seeds[serial] for serial in serials), serials, previous, outputs_of, strict=True)
        values: dict[int, float] = {}
        feeds = loaded.suite.feeds(batch, pool)
        for (seed, serial, previous_digest, output), given in itertools.zip_longest(rows, given_by):
            self._stage("auditing")
            feed = feeds(nonce(seed, serial, previous_digest))
            try:
                if given:
                    if digest(given[0], given[1].tobytes()) != previous_digest:
                        raise WrongOutput("it continued other bytes than the stage before had delivered")
                    feed = {**feed, **_given(loaded.suite, given[1])}
                yields = loaded.runner({**feed, "output": output})
                reference = np.concatenate([load_generator.host_array(value) for value in yields])
                _refuse_not_finite(serial, reference)
                error = float(loaded.suite.quality(output, reference))
                if not math.isfinite(error):
                    raise WrongOutput(f"the gate's metric of feed {serial} is {error}")
            except WrongOutput as wrong:
                return _compared(values, f"feed {serial}: {wrong}")
            values[serial] = error
        return _compared(values)

    def break_off(self, *, key: str, seed: int) -> messages.BrokenOff:
        loaded = self.loaded[key]
        return load_generator.break_off(loaded.runner, _untimed(loaded.suite, loaded.batch, seed, "runner check"))

    def close(self) -> None:
        wait(self.in_flight)
        self.stack.close()
        self.loaded.clear()


def _given(suite: protocols.Suite, output: protocols.Array) -> protocols.Feed:
    """The arrays of a feed that the output of the stage before replaces."""
    if not isinstance(suite, protocols.Continues):
        raise MixmarkError(f"{suite.name} continues no other suite")
    return suite.given(output)


def _refuse_not_finite(serial: int, reference: np.ndarray[Any, Any]) -> None:
    """Without this the adapter would be blamed for weights whose network overflows in fp32."""
    if not np.isfinite(reference).all():
        raise MixmarkError(
            f"the reference's own output of feed {serial} is not finite in fp32",
            "the weights are damaged, or of another model: give another checkpoint",
        )


def _untimed(suite: protocols.Suite, batch: int, seed: int, *use: object) -> Iterator[protocols.Feed]:
    """Feeds that occur in no window. A map, because several threads may ask it for the next feed at once."""
    own = seeds.derived(seed, *use)
    return map(suite.feeds(batch, seeds.pool(own)), map(functools.partial(nonce, own), itertools.count()))


def _compared(values: Mapping[int, float], problem: str = "") -> messages.OutputsCompared:
    return messages.OutputsCompared(
        feeds=tuple(values), values=tuple(values.values()), problem=problem, software=_software()
    )


def _software() -> dict[str, str]:
    """The versions of Python and of the loaded packages that compute a reference."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch", "onnxruntime"):
        if name in sys.modules:
            versions[name] = plain(str(getattr(sys.modules[name], "__version__", "?")), MOST_TEXT)
    return versions


def _disclosed(adapter: protocols.Adapter) -> dict[str, str]:
    """The versions of the vendor's software that the adapter discloses, or the error that it raised."""
    try:
        disclosed = adapter.disclose() if isinstance(adapter, protocols.Discloses) else {}
        return {plain(str(name), MOST_TEXT): plain(str(value), MOST_TEXT) for name, value in disclosed.items()}
    except Exception as error:
        traceback.print_exception(error)
        return {"not disclosed": plain(f"{type(error).__name__}: {error}", MOST_TEXT)}


def _facts(runner: protocols.Runner) -> dict[str, str]:
    return {str(key): str(value) for key, value in runner.facts.items()}


def _highest_rate(loaded: LoadedSuite, bounds: schema.Limits, seed: int) -> tuple[float, tuple[schema.RateTrial, ...]]:
    """Searches from half of a closed loop's rate. Raises WorkerFailed if the time is too short for the percentile."""
    limits = loaded.suite.latency
    if limits is None:
        raise Unsupported(f"{loaded.suite.name} has no latency limits, so it has no highest rate", "give a --rate")
    trials_so_far = itertools.count()
    new_log = functools.partial(load_generator.FeedLog, loaded.suite.units(1))
    begin = clock.now_ns()
    once = bounds.model_copy(update={"min_ns": bounds.warmup_ns // 2, "max_ns": bounds.warmup_ns, "min_feeds": 1})
    first = _untimed(loaded.suite, 1, seed, "rate", next(trials_so_far))
    closed = load_generator.closed_loop(loaded.runner, lambda *_: next(first), once, new_log=new_log)
    service_s = timestamps.in_flight_ns(closed) / len(closed) / 1e9
    needed = intervals.sample_needed(limits.percentile)
    if needed * service_s * 1e9 > bounds.max_ns:
        each, percentile = duration(service_s * 1e9), f"p{limits.percentile * 100:g}"
        message = f"a {percentile} needs {needed} feeds; at {each} each they do not fit into the time limit"
        raise WorkerFailed(schema.Failure(kind="refused", message=message, hint="--preset standard gives it more time"))
    longest_ns = max(limits.total_ns or 0, limits.first_ns or 0)
    trial = bounds.model_copy(update={"min_ns": 0, "max_ns": longest_ns, "min_feeds": needed})

    def keeps(rate_per_s: float) -> tuple[int, bool]:
        use = "rate", next(trials_so_far)
        feeds = _untimed(loaded.suite, 1, seed, *use)
        arrivals = poisson(rate_per_s, seeds.derived(seed, *use, "arrivals"))
        threads = loaded.runner.concurrency
        try:
            done = load_generator.open_loop(
                loaded.runner,
                lambda *_: next(feeds),
                arrivals,
                trial,
                threads=threads,
                new_log=new_log,
                pool=loaded.pool,
            )
        except Overloaded:
            return 0, False
        return len(done), bool(timestamps.keeps_up(done, threads) and intervals.within_limits(done, limits))

    rate_per_s, trials = batch_search.highest_rate(keeps, 0.5 / service_s, begin + bounds.search_ns)
    if rate_per_s is None:
        message = f"no rate keeps the latency limits, down to {significant(trials[-1].rate_per_s)} feeds a second"
        raise WorkerFailed(schema.Failure(kind="overloaded", message=message))
    return rate_per_s, trials


def needed_bytes(suite: protocols.Suite, precision: str) -> int:
    """The memory of a suite at batch 1: its weights at the precision, the state of every graph, and the runtime."""
    weights = suite.weights()
    shapes = [weights.spec(name).shape for name in weights.names()]
    shapes += [spec.shape for graph in suite.graphs().values() for spec in graph.state.values()]
    elements = sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)
    return elements * schema.BITS_PER_WEIGHT[precision] // 8 + RUNTIME_BYTES


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # out of memory kills the worker, not the harness


SERVED: Mapping[Kind, tuple[type, Callable[[messages.Setup, Channel], object]]] = {
    "adapters": (AdapterCalls, AdapterService),
    "meters": (MeterCalls, services.PluginService),
    "watchers": (WatcherCalls, services.PluginService),
    "suites": (SuiteCalls, services.SuiteService),
}
"""The calls that the worker of each kind of the core takes, and the class that serves them."""


def work(reader: BinaryIO, writer: BinaryIO, setup: messages.Setup) -> None:
    """Serves calls until the parent closes its end. The plugin is loaded at the first call."""
    served = SERVED.get(setup.kind) or registry.kind_of(setup.kind).served
    assert served, f"no process holds {setup.kind}"
    interface, make = served
    parent = Channel(reader, writer, interface)
    python, packages = messages.python_version(), messages.package_versions()
    hello = messages.Hello(mixmark=VERSION, protocol=messages.PROTOCOL, python=python, packages=packages)
    parent.send(hello.model_dump_json().encode() + b"\n")
    serve(parent, functools.cache(functools.partial(make, setup, parent)), parent.send)


def _setup(text: str) -> messages.Setup:
    """Parses the setup. A parent of another version may send other fields; it refuses this worker by its hello."""
    try:
        return messages.Setup.model_validate_json(text)
    except ValueError:
        return messages.Setup(kind="adapters", name="")


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    os.dup2(2, 1)
    _die_with_parent()
    setup = _setup(sys.argv[2])
    with channel, channel.makefile("rb") as reader, channel.makefile("wb") as writer:
        work(reader, writer, setup)
