"""A worker that is a thread of the test's own process: as quick as a call, but it cannot be killed."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mixmark.harness.worker import child, messages


class InlineProcess:
    """Stands in for `mixmark.harness.worker.process.child_process.ChildProcess`."""

    pid = os.getpid()

    def __init__(
        self,
        python: str,
        code: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        isolated: bool = False,
        tracked: bool = True,
        current: Path | None = None,
    ) -> None:
        log.touch()
        setup = messages.Setup.model_validate_json(arguments[0])
        self._channel, far_end = socket.socketpair()

        def work() -> None:
            with (
                contextlib.suppress(BrokenPipeError),  # the parent has closed its end, where a process would be killed
                far_end,
                far_end.makefile("rb") as reader,
                far_end.makefile("wb") as writer,
            ):
                child.work(reader, writer, setup)

        self._thread = threading.Thread(target=work, name="inline", daemon=True)
        self._thread.start()

    def send(self, line: bytes) -> None:
        self._channel.sendall(line)

    def receive(self, timeout_s: float) -> bytes | None:
        ready, _, _ = select.select([self._channel], [], [], timeout_s)
        return self._channel.recv(1 << 16) if ready else None

    def kill(self) -> None: ...

    def wait(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return 0

    def out_of_memory(self) -> bool:
        return False

    def close(self, spared: Collection[int] = ()) -> tuple[str, ...]:
        self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._thread.join(1)
        return ()
