"""The errors of a worker, and the `Failure` that a record keeps of each."""

from __future__ import annotations

import errno
import os
from typing import Literal

from mixmark.harness.contracts.errors import REMEDIES, MixmarkError, ResultError, Unsupported, WrongOutput
from mixmark.harness.contracts.schema import Failure
from mixmark.harness.plugins.calls import error_with_line

LOST = (
    *("device lost", "device_lost", "device removed", "device_removed"),  # Vulkan, Direct3D, WebGPU
    *("unspecified launch failure", "fallen off the bus"),  # CUDA, HIP, the NVIDIA driver
)
"""What frameworks say when a driver has given its device up. They have no common error type for it."""
GET_BACK = "the driver gave the device up: look into the system's log, reset the device or restart, and run again"


class WorkerFailed(Exception):
    """Carries the `Failure` that becomes the record's error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class NotStarted(WorkerFailed):
    """The interpreter does not exist, or has no Mixmark of this version: no code of the adapter has run."""


class Misused(WorkerFailed):
    """The adapter refused its configuration, such as an option that it does not know."""


class Overloaded(Exception):
    """Feeds arrive faster than the device completes them."""


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
    message = error_with_line(error)
    if any(sign in message.lower() for sign in LOST):
        return Failure(kind="device lost", message=message, hint=GET_BACK)
    kind: Literal["out of memory", "raised"] = "out of memory" if out_of_memory(error) else "raised"
    return Failure(kind=kind, message=message)


def refuse_full_disk(failure: Failure | None) -> None:
    """Raises ResultError if a disk was full, which says nothing about the plugin: a resumed run measures again."""
    if failure and any(os.strerror(number) in failure.message for number in (errno.ENOSPC, errno.EDQUOT)):
        raise ResultError(f"a disk is full: {failure.message}", REMEDIES[errno.ENOSPC])


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is used up. Frameworks have no common error type for it (torch raises
    RuntimeError), so the message counts too."""
    words = f"{type(error).__name__}: {error}".lower()
    signs = ("outofmemory", "out of memory", "can't allocate memory", "failed to allocate memory")
    return isinstance(error, MemoryError) or any(sign in words for sign in signs)
