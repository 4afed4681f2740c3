"""A worker: one process for one way onto one device, and the parent's handle on it.

The two speak JSON lines over a private pair of pipes (vendor libraries print to stdout), arrays travel by
file. Whatever happens to the process (a crash, a kill, a hang, a full memory) reaches the parent as a
`Failure`; nothing that a vendor's code does can take the run down with it.

Requests: {"op": a public method of `_Served`, …its arguments}.
Answers: any number of {"stage": "loading"}, then {"done": {…}} or {"failure": {…}}, in the order of the requests; only
feeds that a runner with several slots has in flight may overtake each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import psutil

from harness import drive, plugins
from harness.arrivals import poisson
from harness.contracts import Adapter, Feed, Runner, Suite
from harness.errors import MixmarkError, Unsupported, WrongAnswer
from harness.judge import stats, steady
from harness.plugins import Plugin
from harness.schema import BITS_PER_WEIGHT, Completions, Device, Failure, Limits, RateTrial, Trial
from harness.watch import system

MOST_SLOTS = 64
DISTURBED = ("measuring", "feed")  # by somebody who reads the process's page tables
RUNTIME_BYTES = 512 << 20  # interpreter, framework and activations at batch 1, on top of weights and state


# --- the parent's side ------------------------------------------------------------------------------------------


class WorkerFailed(Exception):
    """Carries the `Failure` that becomes the record's error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Worker:
    """A running worker. Use as a context manager: leaving it kills the process and all its children.

    log: where its stdout and stderr go. scratch: its TMPDIR, which the caller removes. cores: that it is pinned to,
    before its adapter is loaded; any where there are none.
    """

    def __init__(
        self,
        adapter: Plugin,
        options: Mapping[str, str],
        scratch: Path,
        log: Path,
        python: str = sys.executable,
        cores: Sequence[int] = (),
    ) -> None:
        self.log = log
        self.peak_pss_bytes = 0
        self._oom_kills = _oom_kills()
        self.stages_ns: dict[str, int] = {}
        """When each stage was last heard of, on this process's clock."""
        self.seal: str | None = None
        """Of the answers that the last window had, told when it ended: what is handed over later must have it."""
        self._pending = b""
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._stage = ""
        command = [python, "-P", "-m", "harness.worker", str(requests), str(answers)]
        setup = {"adapter": [adapter.name, adapter.spec], "options": dict(options), "cores": list(cores)}
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [*command, json.dumps(setup)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(requests, answers),
                    start_new_session=True,  # Ctrl-C is the parent's to handle, and a group can be killed whole
                    env={**os.environ, "TMPDIR": str(scratch)},
                )
        except OSError as error:
            os.close(self._requests)
            os.close(self._answers)
            message = f"cannot start {python}: {error.strerror or error}"
            raise WorkerFailed(
                Failure(kind="crashed", message=message, hint="check python = … in mixmark.toml")
            ) from error
        finally:
            os.close(requests)
            os.close(answers)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._requests)
        os.close(self._answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def call(
        self,
        op: str,
        timeout_s: float,
        on_stage: Callable[[str], None] = lambda stage: None,
        each_stage: bool = False,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Sends a request and waits for its answer. Raises WorkerFailed; after a hang or a death the worker is gone.

        each_stage: the time is of each stage and not of all, for a worker that is trusted to have an end.
        """
        self.post(op, **arguments)
        return self.answer(timeout_s, on_stage, each_stage)

    def post(self, op: str, **arguments: Any) -> None:
        """Sends a request; `answer` takes what comes of it. Raises WorkerFailed where the worker is gone."""
        request = json.dumps({"op": op, **arguments}, allow_nan=False) + "\n"
        self._stage = op
        try:
            os.write(self._requests, request.encode())
        except BrokenPipeError:
            raise WorkerFailed(self._death()) from None

    def answer(
        self, timeout_s: float, on_stage: Callable[[str], None] = lambda stage: None, each_stage: bool = False
    ) -> dict[str, Any]:
        """The next answer that is due. Raises WorkerFailed as `call` does."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._line(deadline)
            if line is None:
                self.kill()
                message = f"no answer within {timeout_s:.0f} s while {self._stage}"
                raise WorkerFailed(
                    Failure(kind="hung", message=message, hint=f"see {self.log.name}; --timeout gives it longer")
                )
            if not line:
                raise WorkerFailed(self._death())
            answer = json.loads(line)
            if "stage" in answer:
                if each_stage:
                    deadline = time.monotonic() + timeout_s
                self._stage = answer["stage"]
                self.stages_ns[self._stage] = time.monotonic_ns()
                self.seal = answer.get("seal", self.seal)
                on_stage(self._stage)
            elif "failure" in answer:
                raise WorkerFailed(Failure.model_validate(answer["failure"]))
            else:
                if self._stage not in DISTURBED:
                    self._sample_memory()
                return dict(answer["done"])

    def _line(self, deadline: float) -> bytes | None:
        """The next line; empty at the end of the stream, None at the deadline."""
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            ready, _, _ = select.select([self._answers], [], [], min(left, 0.5))
            if ready:
                chunk = os.read(self._answers, 1 << 16)
                if not chunk:
                    return b""
                self._pending += chunk
            elif self._stage not in DISTURBED:
                self._sample_memory()
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _sample_memory(self) -> None:
        total = 0
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._process.pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    full = process.memory_full_info()
                    total += getattr(full, "pss", full.uss)
        self.peak_pss_bytes = max(self.peak_pss_bytes, total)

    def _death(self) -> Failure:
        """Why the stream ended."""
        status = self._process.wait()
        last = _last_line(self.log)
        if status == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            return Failure(kind="out of memory", message="the kernel killed the worker: out of memory")
        if status < 0:
            cause = f"the worker was killed by {signal.Signals(-status).name} while {self._stage}"
        else:
            cause = f"the worker ended with exit code {status} while {self._stage}"
        return Failure(
            kind="crashed", message=f"{cause}; it last said: {last}" if last else cause, hint=f"see {self.log.name}"
        )


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return "".join(c for c in lines[-1] if c.isprintable())[:200] if lines else ""
    return ""


def _oom_kills() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def load_completions(path: Path) -> Completions:
    """The stamps that a worker left, by file."""
    with np.load(path, allow_pickle=False) as columns:
        return Completions(**columns)


# --- the child's side -------------------------------------------------------------------------------------------


@dataclass
class _Opened:
    """A suite that is loaded on a device."""

    suite: Suite
    runner: Runner
    device: Device
    feeds: Iterator[tuple[int, Feed]] = field(default_factory=lambda: iter(()))
    log: drive.Log = field(default_factory=drive.Log)


class _Served:
    """The state of a worker: its adapter and what it has open, by the key of the share."""

    def __init__(self, setup: Mapping[str, Any], say: Callable[[Mapping[str, Any]], None]) -> None:
        name, spec = setup["adapter"]
        self.say = say
        loaded = Plugin("adapters", name, spec, "").load()
        if loaded.name != name:
            raise MixmarkError(f"the adapter listed as {name} calls itself {loaded.name}")
        self.adapter: Adapter = loaded(setup["options"])
        self.stack = contextlib.ExitStack()
        self.opened: dict[str, _Opened] = {}
        self.lanes = ThreadPoolExecutor(MOST_SLOTS)
        self.in_flight: list[Future[None]] = []
        self.running = ""

    def discover(self) -> dict[str, Any]:
        devices = [Device.model_validate(device) for device in self.adapter.discover()]
        return {"devices": [device.model_dump() for device in devices]}

    def open(
        self,
        key: str,
        device: dict[str, Any],
        suite: dict[str, Any],
        precision: str,
        free_bytes: int | None,
        reference: bool = False,
    ) -> dict[str, Any]:
        """reference: what the auditor runs in place of the suite.

        The adapter gets a suite of its own: whatever it does to it, the harness's feeds and units are others.
        """
        self.say({"stage": "loading"})
        place, built, runs = Device.model_validate(device), plugins.suite(**suite), plugins.suite(**suite)
        runs = runs.reference() if reference else runs
        need = needed_bytes(runs, precision)
        if free_bytes is not None and need > free_bytes:
            needs, free = f"{need / 2**30:.1f} GiB", f"{free_bytes / 2**30:.1f} GiB"
            message = f"needs {needs} of {place.memory_pool} memory, {free} are free"
            failure = Failure(kind="refused", message=message, hint="take a smaller --tier, or --suite to leave it out")
            raise WorkerFailed(failure)
        begin = time.monotonic_ns()
        runner = self.stack.enter_context(self.adapter.open(place, runs, precision))
        took_ns = time.monotonic_ns() - begin
        if type(runner.slots) is not int or not 1 <= runner.slots <= MOST_SLOTS:
            raise MixmarkError(f"the runner has {runner.slots!r} slots", f"give a whole number from 1 to {MOST_SLOTS}")
        self.opened[key] = _Opened(built, runner, place)
        return {"load_ns": took_ns, "needed_bytes": need, "facts": _facts(runner), "slots": runner.slots}

    def measure(
        self,
        key: str,
        scenario: str,
        batch: int | None,
        rate_per_s: float | None,
        seed: int,
        limits: dict[str, Any],
        out: str,
        answers: str,
    ) -> dict[str, Any]:
        """A closed or an open loop of its own. Leaves the stamps in the file `out`, what was yielded in `answers`."""
        it = self.opened[key]
        bounds = Limits.model_validate(limits)
        lanes = 1 if scenario in ("single-stream", "probe") else it.runner.slots
        trials: tuple[Trial, ...] = ()
        rate_trials: tuple[RateTrial, ...] = ()
        if batch is None:
            self.say({"stage": "searching the best batch"})
            batch, trials = drive.best_batch(
                it.runner,
                lambda size: it.suite.feeds(size, feed_seed(seed, "search")),
                bounds,
                lambda: _room(it.device),
                units=it.suite.units,
            )
        self.say({"stage": "warming up"})
        drive.warm_up(it.runner, it.suite.feeds(batch, feed_seed(seed, "warm-up")), bounds)
        if scenario == "server" and rate_per_s is None:
            self.say({"stage": "searching the highest rate"})
            rate_per_s, rate_trials = _highest_rate(it, bounds, seed)
        feeds = it.suite.feeds(batch, seed)
        feeds = itertools.chain([next(feeds)], feeds)  # the pool is made before the window
        units, kept = it.suite.units(batch), drive.Answers()
        self.say({"stage": "measuring"})
        if rate_per_s is None:
            enough = functools.partial(steady.enough, bounds)
            done = drive.closed_loop(it.runner, feeds, bounds, lanes=lanes, enough=enough, units=units, answers=kept)
        else:
            bounds = _enough(it.suite, bounds, rate_per_s)
            arrivals = poisson(rate_per_s, seed)
            done = drive.open_loop(it.runner, feeds, arrivals, bounds, lanes=lanes, units=units, answers=kept)
        self.say({"stage": "measured", "seal": kept.seal})
        with open(out, "wb") as file:
            np.savez(file, allow_pickle=False, **vars(done))
        kept.save(Path(answers))
        return {
            "batch": batch,
            "trials": [trial.model_dump() for trial in trials],
            "ended_by": _ended_by(bounds, done) if rate_per_s is None else "time",
            "rate_per_s": rate_per_s,
            "rate_trials": [trial.model_dump() for trial in rate_trials],
            "facts": _facts(it.runner),
        }

    def prepare(self, key: str, batch: int, seed: int, limits: dict[str, Any]) -> dict[str, Any]:
        """Warms up for single feeds, which then come by `feed`."""
        it = self.opened[key]
        self.say({"stage": "warming up"})
        warm = it.suite.feeds(batch, feed_seed(seed, "warm-up"))
        drive.warm_up(it.runner, warm, Limits.model_validate(limits))
        feeds = it.suite.feeds(batch, seed)
        it.feeds = enumerate(itertools.chain([next(feeds)], feeds))
        it.log = drive.Log(it.suite.units(batch), drive.Answers())
        return {"facts": _facts(it.runner)}

    def feed(self, key: str) -> None:
        """One feed of a suite. Says its marks, (stamp in ns, units) in turn, and its answer's digest when it is over;
        where the runner has several slots the next one begins meanwhile, but never one of another suite."""
        it = self.opened[key]
        if self.running != key:
            wait(self.in_flight)
            self.in_flight, self.running = [], key
        serial, feed = next(it.feeds)

        def run() -> None:
            try:
                issued_ns, marks, digest = it.log.feed(it.runner, feed, time.monotonic_ns, serial=serial)
                self.say({"done": {"key": key, "issued_ns": issued_ns, "marks": marks, "digest": digest.hex()}})
            except Exception as error:
                self.say({"failure": told(error)})

        if it.runner.slots == 1:
            run()
        else:
            self.in_flight = [each for each in self.in_flight if not each.done()]
            self.in_flight.append(self.lanes.submit(run))

    def hand_over(self, key: str, answers: str) -> dict[str, Any]:
        """Leaves in the file what a suite's feeds yielded."""
        kept = self.opened[key].log.answers
        assert kept is not None  # `prepare` made it
        kept.save(Path(answers))
        return {}

    def audit(self, key: str, batch: int, seed: int, answers: str) -> dict[str, Any]:
        """Compares answers with those of the reference that is open, on the feeds that they are said to be of, made
        anew from the seed. answers: a file as `Answers.save` writes it. `problem` says why one could not be compared.
        """
        it = self.opened[key]
        with np.load(answers, allow_pickle=False) as kept:
            wanted = dict(zip(kept["serials"].tolist(), kept["answers"], strict=True))
        values: dict[int, float] = {}
        problem = ""
        feeds = enumerate(it.suite.feeds(batch, seed))
        while wanted and not problem:
            serial, feed = next(feeds)
            if (answer := wanted.pop(serial, None)) is None:
                continue
            self.say({"stage": "auditing"})
            try:
                reference = np.concatenate([drive.plain(out) for out in it.runner({**feed, "answer": answer})])
                values[serial] = float(it.suite.quality(answer, reference))
                if not math.isfinite(values[serial]):
                    raise WrongAnswer(f"the gate's metric of feed {serial} is {values.pop(serial)}")
            except WrongAnswer as error:
                problem = f"feed {serial}: {error}"
        return {"feeds": list(values), "values": list(values.values()), "problem": problem}

    def close(self) -> dict[str, Any]:
        wait(self.in_flight)
        self.stack.close()
        self.opened.clear()
        return {}


def feed_seed(seed: int, *of: object) -> int:
    """Another seed: who sees the feeds of this one cannot tell those of `seed`."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, (seed, *of))).encode()).digest()[:4], "big")


def _facts(runner: Runner) -> dict[str, str]:
    return {str(key): str(value) for key, value in runner.facts.items()}


def _enough(suite: Suite, bounds: Limits, rate_per_s: float) -> Limits:
    """As many feeds as the latency limit's percentile takes, where they arrive in time."""
    needed = stats.sample_needed(suite.latency.percentile) if suite.latency else 0
    fits = needed / rate_per_s * 1e9 <= bounds.max_ns
    return bounds.model_copy(update={"min_feeds": needed}) if fits and needed > bounds.min_feeds else bounds


def _highest_rate(it: _Opened, bounds: Limits, seed: int) -> tuple[float, tuple[RateTrial, ...]]:
    """Starts at half of what a closed loop does. Raises WorkerFailed where the time allows no answer."""
    limits = it.suite.latency
    if limits is None:
        raise Unsupported(f"{it.suite.name} has no latency limits, so it has no highest rate", "give a --rate")
    seeds = (feed_seed(seed, "rate", trial) for trial in itertools.count())
    units = it.suite.units(1)
    begin = time.monotonic_ns()
    once = bounds.model_copy(update={"min_ns": bounds.warmup_ns // 2, "max_ns": bounds.warmup_ns, "min_feeds": 1})
    closed = drive.closed_loop(it.runner, it.suite.feeds(1, next(seeds)), once, units=units)
    service_s = stats.in_flight_ns(closed) / len(closed) / 1e9
    needed = stats.sample_needed(limits.percentile)
    if needed * service_s * 1e9 > bounds.max_ns:
        message = f"{needed} feeds carry a p{limits.percentile * 100:g}; at {service_s:.3g} s each the time does not"
        raise WorkerFailed(Failure(kind="refused", message=message, hint="--preset standard gives it more time"))
    longest_ns = max(limits.total_ns or 0, limits.first_ns or 0)
    trial = bounds.model_copy(update={"min_ns": 0, "max_ns": longest_ns, "min_feeds": needed})

    def keeps(rate_per_s: float) -> tuple[int, bool]:
        seed = next(seeds)
        feeds, arrivals = it.suite.feeds(1, seed), poisson(rate_per_s, seed)
        try:
            done = drive.open_loop(it.runner, feeds, arrivals, trial, lanes=it.runner.slots, units=units)
        except drive.Overloaded:
            return 0, False
        return len(done), bool(stats.keeps(done, limits))

    rate_per_s, trials = drive.highest_rate(keeps, 0.5 / service_s, begin + bounds.search_ns)
    if rate_per_s is None:
        message = f"no rate keeps the latency limits, down to {trials[-1].rate_per_s:.3g} feeds a second"
        raise WorkerFailed(Failure(kind="overloaded", message=message))
    return rate_per_s, trials


def _room(device: Device) -> int | None:
    return system.memory_available_bytes() if device.memory_pool == "host" else None


def _ended_by(limits: Limits, done: Completions) -> str:
    if limits.half_width is None:
        return "time"
    return "cap" if done.marks_ns.max() - done.issued_ns[0] >= limits.max_ns else "precision"


def needed_bytes(suite: Suite, precision: str) -> int:
    """What a suite takes at batch 1: its weights at the precision, every graph's state, and the runtime."""
    weights = suite.weights()
    shapes = [weights.spec(name).shape for name in weights.names()]
    shapes += [spec.shape for graph in suite.graphs().values() for spec in graph.state.values()]
    elements = sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)
    return elements * BITS_PER_WEIGHT[precision] // 8 + RUNTIME_BYTES


def told(error: BaseException) -> dict[str, Any]:
    """Leaves the traceback in the worker's log."""
    traceback.print_exception(error)
    sys.stderr.flush()
    return failure_of(error).model_dump()


def failure_of(error: BaseException) -> Failure:
    """Sorts what a plugin raised."""
    if isinstance(error, WorkerFailed):
        return error.failure
    if isinstance(error, drive.Overloaded):
        return Failure(kind="overloaded", message=str(error), hint="a lower --rate, or --rate max finds one")
    if isinstance(error, WrongAnswer):
        return Failure(kind="wrong answer", message=str(error), hint=error.hint)
    if isinstance(error, Unsupported):
        return Failure(kind="unsupported", message=str(error), hint=error.hint)
    if isinstance(error, MixmarkError):
        return Failure(kind="raised", message=str(error), hint=error.hint)
    kind: Literal["out of memory", "raised"] = "out of memory" if drive.out_of_memory(error) else "raised"
    return Failure(kind=kind, message=f"{type(error).__name__}: {error}"[:500])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # if memory ends, the worker goes, not the harness


def serve(requests: TextIO, answers: TextIO, setup: Mapping[str, Any]) -> None:
    """Answers requests until the parent closes its end."""

    lock = threading.Lock()

    def say(message: Mapping[str, Any]) -> None:
        line = json.dumps(message, allow_nan=False) + "\n"
        with lock:
            answers.write(line)
            answers.flush()

    served: _Served | None = None
    for line in requests:
        try:
            request = json.loads(line)
            served = served or _Served(setup, say)
            done = getattr(served, request.pop("op"))(**request)
            if done is not None:  # a feed speaks for itself
                say({"done": done})
        except (Exception, SystemExit) as error:
            say({"failure": told(error)})


def main() -> None:
    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(requests, False)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    _die_with_parent()
    setup = json.loads(sys.argv[3])
    if setup["cores"]:
        os.sched_setaffinity(0, setup["cores"])
    with open(requests) as reader, open(answers, "w") as writer:
        serve(reader, writer, setup)


if __name__ == "__main__":
    main()
