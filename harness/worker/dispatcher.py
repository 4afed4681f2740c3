"""Serves the calls of a peer: of a worker's parent, and of the process that leads an agent."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.worker.calls import Call, Failed, Later, write_failed, write_reply
from mixmark.harness.worker.failures import failure_of


def serve(calls: Iterable[Call], service: Callable[[], object], send: Callable[[bytes], object]) -> None:
    """Serves calls one after the other. An exception that a call raises becomes the line `failed`.

    service: returns the object that has the methods.
    """
    for call in calls:
        try:
            value = getattr(service(), call.name)(**call.arguments)
            if not isinstance(value, Later):
                send(write_reply(call.method, value))
        except (Exception, SystemExit) as error:  # of a plugin, the disk or the call
            send(failed(error))


def failed(error: BaseException) -> bytes:
    """The line about an exception. Writes the traceback to the log of this process."""
    traceback.print_exception(error)
    sys.stderr.flush()
    return write_failed(Failed(failure=failure_of(error), misuse=isinstance(error, UsageError)))
