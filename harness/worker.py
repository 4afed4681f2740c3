"""A worker: one process for one way onto one device, and the parent's handle on it.

The two speak JSON lines over a private pair of pipes (vendor libraries print to stdout), arrays travel by
file. Whatever happens to the process (a crash, a kill, a hang, a full memory) reaches the parent as a
`Failure`; nothing that a vendor's code does can take the run down with it.

Requests: {"op": "discover" | "open" | "measure" | "close", …}.
Answers: any number of {"stage": "loading"}, then {"done": {…}} or {"failure": {…}}.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import psutil

from harness import drive, plugins, stats, steady, system
from harness.arrivals import poisson
from harness.contracts import Adapter, Runner, Suite
from harness.errors import MixmarkError, Unsupported
from harness.plugins import Plugin
from harness.schema import BITS_PER_WEIGHT, Completions, Device, Failure, Limits, RateTrial, Trial

RUNTIME_BYTES = 512 << 20  # interpreter, framework and activations at batch 1, on top of weights and state


# --- the parent's side ------------------------------------------------------------------------------------------


class WorkerFailed(Exception):
    """Carries the `Failure` that becomes the record's error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Worker:
    """A running worker. Use as a context manager: leaving it kills the process and all its children.

    log: where its stdout and stderr go. scratch: its TMPDIR, which the caller removes.
    """

    def __init__(
        self, adapter: Plugin, options: Mapping[str, str], scratch: Path, log: Path, python: str = sys.executable
    ) -> None:
        self.log = log
        self.peak_pss_bytes = 0
        self._oom_kills = _oom_kills()
        self._pending = b""
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._stage = ""
        command = [python, "-P", "-m", "harness.worker", str(requests), str(answers)]
        setup = {"adapter": [adapter.name, adapter.spec], "options": dict(options)}
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
        self, op: str, timeout_s: float, on_stage: Callable[[str], None] = lambda stage: None, **arguments: Any
    ) -> dict[str, Any]:
        """Sends a request and waits for its answer. Raises WorkerFailed; after a hang or a death the worker is gone."""
        request = json.dumps({"op": op, **arguments}, allow_nan=False) + "\n"
        try:
            os.write(self._requests, request.encode())
        except BrokenPipeError:
            raise WorkerFailed(self._death()) from None
        deadline = time.monotonic() + timeout_s
        self._stage = op
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
                self._stage = answer["stage"]
                on_stage(self._stage)
            elif "failure" in answer:
                raise WorkerFailed(Failure.model_validate(answer["failure"]))
            else:
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
            elif self._stage != "measuring":  # reading a process's page tables disturbs it
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


class _Served:
    """The state of a worker: its adapter and what it has open."""

    def __init__(self, setup: Mapping[str, Any], say: Callable[[Mapping[str, Any]], None]) -> None:
        name, spec = setup["adapter"]
        self.say = say
        loaded = Plugin("adapters", name, spec, "").load()
        if loaded.name != name:
            raise MixmarkError(f"the adapter listed as {name} calls itself {loaded.name}")
        self.adapter: Adapter = loaded(setup["options"])
        self.open_suites = contextlib.ExitStack()
        self.suite: Suite
        self.runner: Runner
        self.device: Device
        self.precision = ""

    def discover(self) -> dict[str, Any]:
        devices = [Device.model_validate(device) for device in self.adapter.discover()]
        return {"devices": [device.model_dump() for device in devices]}

    def open(
        self, device: dict[str, Any], suite: dict[str, Any], precision: str, free_bytes: int | None
    ) -> dict[str, Any]:
        self.say({"stage": "loading"})
        self.device = Device.model_validate(device)
        self.suite = plugins.suite(**suite)
        self.precision = precision
        need = needed_bytes(self.suite, precision)
        if free_bytes is not None and need > free_bytes:
            needs, free = f"{need / 2**30:.1f} GiB", f"{free_bytes / 2**30:.1f} GiB"
            message = f"needs {needs} of {self.device.memory_pool} memory, {free} are free"
            failure = Failure(kind="refused", message=message, hint="take a smaller --tier, or --suite to leave it out")
            raise WorkerFailed(failure)
        begin = time.monotonic_ns()
        self.runner = self.open_suites.enter_context(self.adapter.open(self.device, self.suite, precision))
        facts = {str(key): str(value) for key, value in self.runner.facts.items()}
        return {"load_ns": time.monotonic_ns() - begin, "needed_bytes": need, "facts": facts}

    def measure(
        self, scenario: str, batch: int | None, rate_per_s: float | None, seed: int, limits: dict[str, int], out: str
    ) -> dict[str, Any]:
        bounds = Limits.model_validate(limits)
        lanes = 1 if scenario == "single-stream" else self.runner.slots
        trials: tuple[Trial, ...] = ()
        rate_trials: tuple[RateTrial, ...] = ()
        if batch is None:
            self.say({"stage": "searching the best batch"})
            batch, trials = drive.best_batch(
                self.runner, lambda size: self.suite.feeds(size, seed + 1), bounds, self._room
            )
        self.say({"stage": "warming up"})
        drive.warm_up(self.runner, self.suite.feeds(batch, seed + 2), bounds)
        if scenario == "server" and rate_per_s is None:
            self.say({"stage": "searching the highest rate"})
            rate_per_s, rate_trials = self._highest_rate(bounds, seed + 3)
        feeds = self.suite.feeds(batch, seed)
        feeds = itertools.chain([next(feeds)], feeds)  # the pool is made before the window
        self.say({"stage": "measuring"})
        if rate_per_s is None:
            done = drive.closed_loop(
                self.runner, feeds, bounds, lanes=lanes, enough=functools.partial(steady.enough, bounds)
            )
        else:
            done = drive.open_loop(
                self.runner, feeds, poisson(rate_per_s, seed), self._enough(bounds, rate_per_s), lanes=lanes
            )
        with open(out, "wb") as file:
            np.savez(file, allow_pickle=False, **vars(done))
        return {
            "batch": batch,
            "trials": [trial.model_dump() for trial in trials],
            "ended_by": _ended_by(bounds, done) if rate_per_s is None else "time",
            "rate_per_s": rate_per_s,
            "rate_trials": [trial.model_dump() for trial in rate_trials],
            "latency_limits": self.suite.latency and self.suite.latency.model_dump(),
            "costs": [cost.model_dump() for cost in self.suite.costs(self.precision, batch)],
        }

    def _enough(self, bounds: Limits, rate_per_s: float) -> Limits:
        """As many feeds as the latency limit's percentile takes, where they arrive in time."""
        needed = stats.sample_needed(self.suite.latency.percentile) if self.suite.latency else 0
        fits = needed / rate_per_s * 1e9 <= bounds.max_ns
        return bounds.model_copy(update={"min_feeds": needed}) if fits and needed > bounds.min_feeds else bounds

    def _highest_rate(self, bounds: Limits, seed: int) -> tuple[float, tuple[RateTrial, ...]]:
        """Starts at half of what a closed loop does. Raises WorkerFailed where the time allows no answer."""
        limits = self.suite.latency
        if limits is None:
            raise Unsupported(f"{self.suite.name} has no latency limits, so it has no highest rate", "give a --rate")
        serials = itertools.count(seed)
        begin = time.monotonic_ns()
        once = bounds.model_copy(update={"min_ns": bounds.warmup_ns // 2, "max_ns": bounds.warmup_ns, "min_feeds": 1})
        closed = drive.closed_loop(self.runner, self.suite.feeds(1, next(serials)), once)
        service_s = stats.in_flight_ns(closed) / len(closed) / 1e9
        needed = stats.sample_needed(limits.percentile)
        if needed * service_s * 1e9 > bounds.max_ns:
            message = (
                f"{needed} feeds carry a p{limits.percentile * 100:g}; at {service_s:.3g} s each the time does not"
            )
            raise WorkerFailed(Failure(kind="refused", message=message, hint="--preset standard gives it more time"))
        longest_ns = max(limits.total_ns or 0, limits.first_ns or 0)
        trial = bounds.model_copy(update={"min_ns": 0, "max_ns": longest_ns, "min_feeds": needed})

        def keeps(rate_per_s: float) -> tuple[int, bool]:
            serial = next(serials)
            feeds, arrivals = self.suite.feeds(1, serial), poisson(rate_per_s, serial)
            try:
                done = drive.open_loop(self.runner, feeds, arrivals, trial, lanes=self.runner.slots)
            except drive.Overloaded:
                return 0, False
            return len(done), bool(stats.keeps(done, limits))

        rate_per_s, trials = drive.highest_rate(keeps, 0.5 / service_s, begin + bounds.search_ns)
        if rate_per_s is None:
            message = f"no rate keeps the latency limits, down to {trials[-1].rate_per_s:.3g} feeds a second"
            raise WorkerFailed(Failure(kind="overloaded", message=message))
        return rate_per_s, trials

    def close(self) -> dict[str, Any]:
        self.open_suites.close()
        return {}

    def _room(self) -> int | None:
        return system.memory_available_bytes() if self.device.memory_pool == "host" else None


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


def failure_of(error: BaseException) -> Failure:
    """Sorts what a plugin raised."""
    if isinstance(error, WorkerFailed):
        return error.failure
    if isinstance(error, drive.Overloaded):
        return Failure(kind="overloaded", message=str(error), hint="a lower --rate, or --rate max finds one")
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

    def say(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message, allow_nan=False) + "\n")
        answers.flush()

    served: _Served | None = None
    for line in requests:
        try:
            request = json.loads(line)
            served = served or _Served(setup, say)
            say({"done": getattr(served, request.pop("op"))(**request)})
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            sys.stderr.flush()
            say({"failure": failure_of(error).model_dump()})


def main() -> None:
    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(requests, False)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    _die_with_parent()
    with open(requests) as reader, open(answers, "w") as writer:
        serve(reader, writer, json.loads(sys.argv[3]))


if __name__ == "__main__":
    main()
