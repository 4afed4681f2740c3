"""The parent's handle on a worker: one process for one way onto one device, or for one meter.

Whatever happens to the process (a crash, a kill, a hang, a full memory, garbage on its stream) reaches the parent as a
`Failure`; nothing that a vendor's code does can take the run down with it. `worker.child` is the process,
`worker.messages` the messages, `worker.process` where it runs.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import platformdirs

from mixmark.harness import VERSION
from mixmark.harness.contracts.schema import Completions, Failure
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import messages
from mixmark.harness.worker.failures import Misused, NotStarted, WorkerFailed
from mixmark.harness.worker.isolation import Isolation
from mixmark.harness.worker.messages import AnswerT, Request
from mixmark.harness.worker.process import Host
from mixmark.harness.worker.process.local import Local

FINISHES_WITHIN_S = 30.0
TRACED = ("raised", "out of memory", "wrong output")  # failures whose cause the log shows
LOG_LINES = 5  # of a worker that crashed: as much as shows the cause of a traceback
SAMPLE_S = 0.5  # how often the memory is looked at while the worker is waited for

Replies = Callable[[messages.Question], messages.Reply]


def unasked(question: messages.Question) -> messages.Reply:
    """Raises Garbled: a worker has questions only while it runs feeds of a window."""
    raise messages.Garbled(f"{type(question).__name__} was not due")


class Worker:
    """A running worker. Use it as a context manager: leaving it kills the process and all its children.

    log: the file that its stdout and stderr go to. scratch: its TMPDIR, which the caller removes. cores: the CPU cores
    that it is pinned to before its plugin is loaded; empty: it may run on any. isolation: how it is kept apart from
    what is installed beside Mixmark; None: it is not.
    """

    def __init__(
        self,
        plugin: Plugin,
        options: Mapping[str, str],
        scratch: Path,
        log: Path,
        python: str = sys.executable,
        cores: Sequence[int] = (),
        host: Host | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        self.log = log
        self.peak_pss_bytes = 0
        self.stages_ns: dict[str, int] = {}
        """When each stage was last heard of, on this process's clock."""
        self.seal: str | None = None
        """The hash of the answers that the last window had, which was sent when it ended: what is handed over later
        must have the same."""
        self.hello: messages.Hello | None = None
        """What the worker said first; None until an answer was waited for."""
        self.helpers: tuple[int, ...] = ()
        """The processes outside of the worker's tree that its runners named. They are not ended with it."""
        self.left_behind: tuple[str, ...] = ()
        """The names of the processes that had left the worker's process group and lived on when it had ended, until
        they were killed. Where several workers live at once, the last one to end has those that lost their parent."""
        self._python = python
        self._pending = b""
        self._doing = "starting"
        self._timed = False
        """Whether a feed is being timed: reading the process's page tables would disturb it."""
        host = host or Local()
        setup = messages.Setup(
            kind="meters" if plugin.kind == "meters" else "adapters",
            name=plugin.own_name or plugin.name,
            spec=plugin.spec,
            origin=plugin.origin,
            options=dict(options),
            cores=tuple(cores),
        )
        try:
            variables = {**(isolation.variables if isolation else {}), "TMPDIR": str(scratch)}
            code = (isolation.prelude if isolation else "") + messages.BOOTSTRAP
            helps = setup.kind == "meters"
            words = [setup.model_dump_json()]
            self._process = host.start(python, code, words, variables, log, isolation is not None, helps)
        except OSError as error:
            message = f"cannot start {python}: {error.strerror or error}"
            hint = f"[{plugin.kind[:-1]}.{plugin.name}] python = … in mixmark.toml names the interpreter"
            raise NotStarted(Failure(kind="crashed", message=message, hint=hint)) from error

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.left_behind = self._process.close(self.helpers)

    @property
    def pid(self) -> int:
        return self._process.pid

    def memory_bytes(self) -> int:
        """The memory of the process and its descendants, now."""
        return self._process.memory_bytes()

    def kill(self) -> None:
        self._process.kill()

    def finish(self) -> Failure | None:
        """Lets the worker close what it has open, so that an adapter can end what it started; returns what went wrong.
        It is killed where that takes longer than FINISHES_WITHIN_S."""
        try:
            self.call(messages.Close(), FINISHES_WITHIN_S)
        except WorkerFailed as failed:
            return failed.failure
        return None

    def call(
        self,
        request: Request[AnswerT],
        timeout_s: float,
        on_stage: Callable[[str], None] = lambda stage: None,
        each_stage: bool = False,
        replies: Replies = unasked,
    ) -> AnswerT:
        """Sends a request and waits for its answer. Raises WorkerFailed; after a hang or a death the worker is gone.

        each_stage: each stage has the whole time, for a worker that is trusted to come to an end. replies: replies to
        the worker's questions.
        """
        self.post(request)
        return self.answer(request.answered_by(), timeout_s, on_stage, each_stage, replies)

    def post(self, request: Request[AnswerT]) -> None:
        """Sends a request, whose answer `answer` returns. Raises WorkerFailed where the worker is gone."""
        self._doing, self._timed = request.doing, isinstance(request, messages.Feed | messages.Read)
        try:
            self._send(request)
        except BrokenPipeError:
            if self.hello is None and (line := self._line(time.monotonic())):
                self._greeted(line)  # which says why it went, if it could
            raise WorkerFailed(self._death()) from None

    def answer(
        self,
        kind: type[AnswerT],
        timeout_s: float,
        on_stage: Callable[[str], None] = lambda stage: None,
        each_stage: bool = False,
        replies: Replies = unasked,
    ) -> AnswerT:
        """The next answer that is due, which must be of that kind. Raises WorkerFailed as `call` does."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._line(deadline)
            if line is None:
                self.kill()
                late = f"no answer within {timeout_s:.0f} s while {self._doing}"
                raise WorkerFailed(
                    Failure(kind="hung", message=late, hint=f"see {self.log.name}; --timeout gives it longer")
                )
            if not line:
                raise WorkerFailed(self._death())
            if self.hello is None:
                self.hello = self._greeted(line)
                continue
            try:
                message = messages.read(line)
            except messages.Garbled as error:
                raise self._garbled(str(error)) from error
            if isinstance(message, messages.Stage):
                if each_stage:
                    deadline = time.monotonic() + timeout_s
                self._doing, self._timed = message.name, message.name == "measuring"
                self.stages_ns[message.name] = time.monotonic_ns()
                self.seal = message.seal or self.seal
                on_stage(message.name)
            elif isinstance(message, messages.Question):
                self._reply(message, replies)
            elif isinstance(message, messages.Failed):
                raise Misused(message.failure) if message.misuse else WorkerFailed(self._traced(message.failure))
            elif isinstance(message, kind):
                if not self._timed:
                    self._sample_memory()
                return message
            else:
                raise self._garbled(f"{kind.__name__} was due, {type(message).__name__} came")

    def _reply(self, question: messages.Question, replies: Replies) -> None:
        try:
            self._send(replies(question))
        except messages.Garbled as error:
            raise self._garbled(str(error)) from error
        except BrokenPipeError:
            raise WorkerFailed(self._death()) from None

    def _send(self, message: messages.Message) -> None:
        self._process.send(messages.write(message))

    @staticmethod
    def completions(stamps: Path) -> Completions:
        """The stamps that the worker left in a file. Raises ValueError, TypeError, OSError or EOFError where there are
        none."""
        with np.load(stamps, allow_pickle=False) as columns:
            return Completions(**columns)

    def _greeted(self, line: bytes) -> messages.Hello:
        """Raises WorkerFailed where the worker cannot be used."""
        try:
            return messages.greeting(line)
        except messages.Incompatible as error:
            self.kill()
            hint = f"install the same version there: {install(self._python)}"
            message = f"the interpreter {self._python} {error}"
            raise NotStarted(Failure(kind="crashed", message=message, hint=hint)) from error
        except messages.Garbled as error:
            raise self._garbled(str(error)) from error

    def _line(self, deadline: float) -> bytes | None:
        """The next line; empty at the end of the stream, None at the deadline."""
        while b"\n" not in self._pending:
            if len(self._pending) > messages.LONGEST_BYTES:
                raise self._garbled(f"a line of more than {messages.LONGEST_BYTES >> 20} MiB")
            left = deadline - time.monotonic()
            received = self._process.receive(min(max(left, 0), SAMPLE_S))
            if received == b"":
                return b""
            if received:
                self._pending += received
            elif left <= 0:
                return None
            elif not self._timed:
                self._sample_memory()
        line, end, self._pending = self._pending.partition(b"\n")
        return line + end

    def _sample_memory(self) -> None:
        self.peak_pss_bytes = max(self.peak_pss_bytes, self.memory_bytes())

    def _garbled(self, cause: str) -> WorkerFailed:
        """Ends the worker: whoever writes garbage to the private stream cannot be trusted with the next line."""
        self.kill()
        message = f"the worker's answer while {self._doing} cannot be read: {cause}"
        return WorkerFailed(Failure(kind="crashed", message=message, hint=f"see {self.log.name}"))

    def _traced(self, failure: Failure) -> Failure:
        """The failure with the name of the log that holds its traceback, where no other step is next."""
        traced = failure.kind in TRACED and not failure.hint
        return failure.model_copy(update={"hint": f"see {self.log.name}"}) if traced else failure

    def _death(self) -> Failure:
        """Why the stream ended."""
        status = self._process.wait()
        last = "".join(last_lines(self.log, 1))
        if status == -signal.SIGKILL and self._process.out_of_memory():
            return Failure(kind="out of memory", message="the kernel killed the worker: out of memory")
        if status < 0:
            cause = f"the worker was killed by {_signal_name(-status)} while {self._doing}"
        else:
            cause = f"the worker ended with exit code {status} while {self._doing}"
        return Failure(
            kind="crashed", message=f"{cause}; it last said: {last}" if last else cause, hint=f"see {self.log.name}"
        )


def install(python: str) -> str:
    """The command that installs this version of Mixmark for another interpreter."""
    return f"{python} -m pip install mixmark=={VERSION}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def last_lines(log: Path, most: int) -> list[str]:
    """The end of a log, in printable characters; empty where there is none."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400 * most))
        lines = file.read().decode(errors="replace").strip().splitlines()
        return ["".join(c for c in line if c.isprintable()).strip()[:200] for line in lines[-most:]]
    return []


def why(failure: Failure, log: Path) -> str:
    """A failure in words, for a log that no result folder holds. Where the log says more it is kept, and named."""
    if not failure.hint.startswith(f"see {log.name}"):
        return f"{failure.message}; {failure.hint}".removesuffix("; ")
    told = failure.message
    if failure.kind in ("crashed", "hung") and (end := " | ".join(last_lines(log, LOG_LINES))):
        told += f"; its log ends with: {end}"
    kept = _kept(log)
    return f"{told}; see {kept}" if kept else told


def _kept(log: Path) -> str:
    """Where a copy of a log lies from now on; it replaces an earlier log of the same name. Empty where no copy can
    be made."""
    folder = platformdirs.user_log_path("mixmark")
    with contextlib.suppress(OSError, RuntimeError):
        folder.mkdir(parents=True, exist_ok=True)
        return re.sub(f"^{re.escape(str(Path.home()))}/", "~/", str(shutil.copy(log, folder / log.name)))
    return ""
