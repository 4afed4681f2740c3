"""Turns an error of a worker into the `Failure` that its record keeps."""

from __future__ import annotations

from typing import Literal

from mixmark.harness.contracts.errors import MixmarkError, Unsupported, WrongOutput
from mixmark.harness.contracts.schema import Failure
from mixmark.harness.plugins.calls import error_with_line
from mixmark.harness.worker.batch_search import out_of_memory
from mixmark.harness.worker.load_generator import Overloaded


class WorkerFailed(Exception):
    """Carries the `Failure` that becomes the record's error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class NotStarted(WorkerFailed):
    """The interpreter does not exist, or has no Mixmark of this version: no code of the adapter has run."""


class Misused(WorkerFailed):
    """The adapter refused its configuration, such as an option that it does not know."""


def failure_of(error: BaseException) -> Failure:
    """The failure that stands for an exception, whichever plugin or framework raised it."""
    if isinstance(error, WorkerFailed):
        return error.failure
    if isinstance(error, Overloaded):
        return Failure(kind="overloaded", message=str(error), hint="a lower --rate, or --rate max finds one")
    if isinstance(error, WrongOutput):
        return Failure(kind="wrong output", message=str(error), hint=error.hint)
    if isinstance(error, Unsupported):
        return Failure(kind="unsupported", message=str(error), hint=error.hint)
    if isinstance(error, MixmarkError):
        return Failure(kind="raised", message=str(error), hint=error.hint)
    kind: Literal["out of memory", "raised"] = "out of memory" if out_of_memory(error) else "raised"
    return Failure(kind=kind, message=error_with_line(error))
