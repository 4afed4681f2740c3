"""A worker that is a thread of the test's own process: as quick as a call, but it cannot be killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from mixmark.harness.contracts.schema import Conditions
from mixmark.harness.resources import clock
from mixmark.harness.worker import child, messages
from tests.fakes.streams import connection


def canary() -> Conditions:
    """`mixmark.harness.machine.sampling.canary` of a core that is always as fast."""
    begin_ns = clock.now_ns()
    clock.sleep(0.02)
    return Conditions(begin_ns=begin_ns, end_ns=clock.now_ns(), canary_ns=(4_000_000,) * 5)


class InlineProcess:
    """Stands in for `mixmark.harness.worker.process.child_process.ChildProcess`."""

    pid = os.getpid()

    def __init__(
        self, python: str, code: str, arguments: Sequence[str], variables: Mapping[str, str], log: Path, *_: object
    ) -> None:
        log.touch()
        setup = messages.Setup.model_validate_json(arguments[0])
        self._channel, far_end = connection()

        def work() -> None:
            with suppress(BrokenPipeError):
                child.work(cast(BinaryIO, far_end), cast(BinaryIO, far_end), setup)
            far_end.close()

        self._thread = threading.Thread(target=work, name="inline", daemon=True)
        self._thread.start()

    def send(self, line: bytes) -> None:
        self._channel.sendall(line)

    def receive(self, timeout_s: float) -> bytes | None:
        return self._channel.recv(1 << 16, timeout_s)

    def kill(self) -> None:
        self._channel.close()

    def wait(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return 0

    def out_of_memory(self) -> bool:
        return False

    def close(self, spared: Collection[int] = ()) -> tuple[str, ...]:
        self._channel.close()
        self._thread.join()
        return ()
