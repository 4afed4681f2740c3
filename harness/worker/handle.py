"""The parent's handle on a worker: a process for one target, or for one plugin that is no adapter.

Whatever happens to the process (a crash, a kill, a hang, full memory, garbage on its socket) reaches the parent as a
`Failure`, so a vendor's code cannot end the run. The process itself is `worker.child`, its calls are `worker.messages`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Concatenate

import numpy as np
import platformdirs

from mixmark.harness.contracts.schema import Completions, Failure, Int64s
from mixmark.harness.plugins import install, registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock, cpus
from mixmark.harness.resources.files import archive
from mixmark.harness.worker import calls, messages, sealed
from mixmark.harness.worker.calls import Call, Failed, P, T
from mixmark.harness.worker.failures import Misused, NotStarted, WorkerFailed
from mixmark.harness.worker.isolation import Isolation
from mixmark.harness.worker.messages import AdapterCalls, ParentCalls, Window
from mixmark.harness.worker.process.child_process import ChildProcess

FINISHES_WITHIN_S = 30.0
TRACED = ("raised", "out of memory", "wrong output")  # failures whose cause the log shows
SAMPLE_S = 0.5  # between two samples of the memory, while a reply is waited for

OnStage = Callable[[str], None]
NO_WINDOW = Window()
TIMED = (AdapterCalls.measure, AdapterCalls.reveal, AdapterCalls.feed)


class Worker:
    """A running worker. A context manager: leaving it kills the process and all its descendants.

    log: the file for its stdout and stderr. scratch: its TMPDIR, which the caller removes. cores: the CPU cores to
    which it is pinned before its plugin is loaded; empty: all. isolation: starts it as an auditor or a witness, see
    `worker.isolation`. variables: more variables of its environment. tracked: what it leaves behind is killed at its
    end, and its memory is sampled; of adapters only. longest_bytes: a longer line of it is an error. Raises NotStarted.
    """

    def __init__(
        self,
        plugin: Plugin,
        options: Mapping[str, str],
        scratch: Path,
        log: Path,
        python: str = sys.executable,
        cores: Sequence[int] = (),
        isolation: Isolation | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
        tracked: bool = True,
        longest_bytes: int = calls.LONGEST_BYTES,
    ) -> None:
        self.log = log
        self._longest_bytes = longest_bytes
        self.peak_pss_bytes = 0
        self.hello: messages.Hello | None = None
        """The worker's first line; None before the first reply."""
        self.helpers: tuple[int, ...] = ()
        """The ids of processes outside of the worker's tree that its runners named. They outlive the worker."""
        self.surviving_processes: tuple[str, ...] = ()
        """The names of descendants that escaped the process group and were killed at the end. If several workers live
        at once, orphans are attributed to the worker that ends last."""
        self._python = python
        self._pending = b""
        self._interrupt: BaseException | None = None
        self._doing = "starting"
        self._timed = False
        """Whether a feed is being timed: reading the process's page tables would disturb it."""
        setup = messages.Setup(
            kind=plugin.kind,
            name=plugin.own_name or plugin.name,
            spec=plugin.spec,
            options=dict(options),
            cores=tuple(cores),
        )
        kept = isolation.variables if isolation else {}
        variables = {**cpus.thread_variables(len(cores)), **kept, **variables, "TMPDIR": str(scratch)}
        own = (sealed.own(),) if python == sys.executable and sys.platform != "win32" else ()
        codes = (*own, isolation.suite) if isolation and isolation.suite else own
        code = sealed.prelude(*codes) + (isolation.prelude if isolation else "") + messages.BOOTSTRAP
        isolated, self._tracked = isolation is not None, tracked and setup.kind == "adapters"
        try:
            words = [setup.model_dump_json()]
            shared = [each.descriptor for each in codes]
            self._process = ChildProcess(python, code, words, variables, log, isolated, self._tracked, shared)
        except OSError as error:
            message = f"cannot start {python}: {error.strerror or error}"
            hint = f"[{registry.singular(plugin.kind)}.{plugin.name}] python = … in mixmark.toml names the interpreter"
            raise NotStarted(Failure(kind="crashed", message=message, hint=hint)) from error

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.surviving_processes = self._process.close(self.helpers)

    @property
    def pid(self) -> int:
        return self._process.pid

    def memory_bytes(self) -> int:
        """The memory of the process and its descendants, now."""
        return self._process.memory_bytes()

    def kill(self) -> None:
        self._process.kill()

    def finish(self) -> Failure | None:
        """Lets the adapter close its suites and end what it started. Returns the failure, if there was one. The worker
        is killed after FINISHES_WITHIN_S."""
        try:
            self.call(AdapterCalls.close, FINISHES_WITHIN_S)()
        except WorkerFailed as failed:
            return failed.failure
        return None

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Ends the worker if the block is left in the middle of a call. Its next reply would be taken for that of
        another call, so an interrupt of one call is raised again by each later call."""
        if self._interrupt:
            raise self._interrupt
        try:
            yield
        except WorkerFailed:
            raise
        except BaseException as error:
            self._interrupt = None if isinstance(error, Exception) else error
            self.kill()
            raise

    def call(
        self,
        method: Callable[Concatenate[Any, P], T],
        timeout_s: float,
        on_stage: OnStage = lambda stage: None,
        per_stage: bool = False,
        window: Window = NO_WINDOW,
    ) -> Callable[P, T]:
        """A function that calls a method of the plugin's kind and returns the reply. It raises WorkerFailed; after a
        hang or a death the worker is gone.

        per_stage: each stage may take `timeout_s`. window: takes the worker's calls while feeds run.
        """

        def calling(*args: P.args, **arguments: P.kwargs) -> T:
            with self._whole():
                self.send(method, *args, **arguments)
                return self._receive(method, timeout_s, on_stage, per_stage, window)

        return calling

    def send(self, method: Callable[Concatenate[Any, P], object], *args: P.args, **arguments: P.kwargs) -> None:
        """Sends a call without waiting for its reply. Raises WorkerFailed if the worker is gone."""
        self._doing = f"calling {method.__name__}"
        self._timed = method in TIMED
        try:
            self._process.send(calls.write_call(method, *args, **arguments))
        except BrokenPipeError:
            if self.hello is None and (line := self._line(clock.now_s())):
                self._greeted(line)  # a worker that cannot run says so in its first line
            raise WorkerFailed(self._death()) from None

    def fed(self, timeout_s: float, window: Window) -> messages.Fed:
        """The next feed that is finished. Raises WorkerFailed as `call` does."""
        with self._whole():
            fed: Any = self._receive(AdapterCalls.feed, timeout_s, window=window)
        assert isinstance(fed, messages.Fed)
        return fed

    def _receive(
        self,
        method: Callable[Concatenate[Any, P], T],
        timeout_s: float,
        on_stage: OnStage = lambda stage: None,
        per_stage: bool = False,
        window: Window = NO_WINDOW,
    ) -> T:
        deadline = clock.now_s() + timeout_s
        while True:
            received = self._received(deadline, timeout_s)
            if clock.now_s() > deadline:  # also if lines never stop to come
                raise self._hung(timeout_s)
            try:
                if isinstance(received, Failed):
                    raise Misused(received.failure) if received.misuse else WorkerFailed(self._traced(received.failure))
                if isinstance(received, calls.Reply):
                    value = received.of(method)
                    if not self._timed:
                        self._sample_memory()
                    return value
                if received.method is not ParentCalls.stage:
                    self._in_window(received, window)
                elif self._timed:
                    raise calls.Garbled(f"{method.__name__} was due, but stage came")
                else:
                    if per_stage:
                        deadline = clock.now_s() + timeout_s
                    self._doing = received.arguments["name"]
                    on_stage(self._doing)
            except calls.Garbled as error:
                raise self._garbled(str(error)) from error

    @staticmethod
    def completions(path: Path) -> tuple[Completions, Int64s]:
        """Reads the timestamps that the worker wrote to a file, and the numbers of the feeds in the same order. Raises
        ValueError, TypeError, LookupError, OSError or EOFError."""
        with np.load(io.BytesIO(archive(path)), allow_pickle=False) as columns:
            return Completions(**{each.name: columns[each.name] for each in fields(Completions)}), columns["serials"]

    def _received(self, deadline: float, timeout_s: float) -> Call | calls.Reply | Failed:
        """What the worker sent next after its greeting. Raises WorkerFailed."""
        while True:
            line = self._line(deadline)
            if line is None:
                raise self._hung(timeout_s)
            if not line:
                raise WorkerFailed(self._death())
            if self.hello is None:
                self.hello = self._greeted(line)
                continue
            try:
                return calls.read(line, ParentCalls)
            except calls.Garbled as error:
                raise self._garbled(str(error)) from error

    def _hung(self, timeout_s: float) -> WorkerFailed:
        self.kill()
        late = f"no reply within {timeout_s:.0f} s while {self._doing}"
        return WorkerFailed(Failure(kind="hung", message=late, hint=f"see {self.log.name}; --timeout gives it longer"))

    def _in_window(self, call: Call, window: Window) -> None:
        """Raises Garbled if the call may not come now."""
        value = getattr(window, call.name)(**call.arguments)
        if call.method is Window.sealed:
            self._timed = False
        if call.method is Window.outputs_full:
            try:
                self._process.send(calls.write_reply(call.method, value))
            except BrokenPipeError:
                raise WorkerFailed(self._death()) from None

    def _greeted(self, line: bytes) -> messages.Hello:
        """Parses the greeting. Raises WorkerFailed if the worker cannot be used."""
        try:
            return messages.greeting(line)
        except messages.Incompatible as error:
            self.kill()
            hint = f"install the same version there: {install.command(python=self._python)}"
            message = f"the interpreter {self._python} {error}"
            raise NotStarted(Failure(kind="crashed", message=message, hint=hint)) from error
        except calls.Garbled as error:
            raise self._garbled(str(error)) from error

    def _line(self, deadline: float) -> bytes | None:
        """The next line; empty at the end of the stream, None at the deadline."""
        while b"\n" not in self._pending:
            if len(self._pending) > self._longest_bytes:
                raise self._garbled(f"a line of more than {self._longest_bytes >> 20} MiB")
            left_s = deadline - clock.now_s()
            received = self._process.receive(min(max(left_s, 0), SAMPLE_S))
            if received == b"":
                return b""
            if received:
                self._pending += received
            elif left_s <= 0:
                return None
            elif not self._timed:
                self._sample_memory()
        line, end, self._pending = self._pending.partition(b"\n")
        return line + end

    def _sample_memory(self) -> None:
        if self._tracked:
            self.peak_pss_bytes = max(self.peak_pss_bytes, self.memory_bytes())

    def _garbled(self, cause: str) -> WorkerFailed:
        """Kills the worker, because no later line of it can be trusted, and returns the failure."""
        self.kill()
        message = f"the worker's reply while {self._doing} cannot be read: {cause}"
        return WorkerFailed(Failure(kind="crashed", message=message, hint=f"see {self.log.name}"))

    def _traced(self, failure: Failure) -> Failure:
        """The failure with a hint at the log that holds its traceback, unless it has a hint already."""
        traced = failure.kind in TRACED and not failure.hint
        return failure.model_copy(update={"hint": f"see {self.log.name}"}) if traced else failure

    def _death(self) -> Failure:
        """Why the stream ended."""
        status = self._process.wait()
        if self._process.out_of_memory():
            return Failure(kind="out of memory", message="the kernel killed the worker: out of memory")
        if status < 0:
            name = next((each.name for each in signal.Signals if each == -status), f"signal {-status}")
            cause = f"the worker was killed by {name} while {self._doing}"
        else:
            cause = f"the worker ended with exit code {status} while {self._doing}"
        last = last_line(self.log)
        hint = f"see {self.log.name}" + (f", whose last line is: {last}" if last else "")
        return Failure(kind="crashed", message=cause, hint=hint)


def last_line(log: Path) -> str:
    """The last line of a log, in printable characters; empty if there is none."""
    with contextlib.suppress(OSError, IndexError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        last = file.read().decode(errors="replace").strip().splitlines()[-1]
        return "".join(c for c in last if c.isprintable()).strip()[:200]
    return ""


def why(failure: Failure, log: Path) -> str:
    """A failure in words, for a worker whose log is in no result folder: the log is copied if the words name it."""
    hint, named = failure.hint, f"see {log.name}"
    if hint.startswith(named):
        last = "" if failure.kind == "hung" else hint.removeprefix(named)  # --timeout is about measurements
        hint = f"see {_copied(log) or log.name}{last}"
    return f"{failure.message}; {hint}".removesuffix("; ")


def _copied(log: Path) -> str:
    """Copies a log to the user's log folder, in place of an earlier one of that name. Returns the path of the copy;
    empty if it cannot be made."""
    folder = platformdirs.user_log_path("mixmark")
    with contextlib.suppress(OSError, RuntimeError):
        folder.mkdir(parents=True, exist_ok=True)
        return re.sub(f"^{re.escape(str(Path.home()))}/", "~/", str(shutil.copy(log, folder / log.name)))
    return ""
