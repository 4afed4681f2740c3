"""Calls into plugins that run in this process: each is given up after some time, and its errors become plain words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from harness.errors import MixmarkError
from harness.text import plain

MAX_REASON = 1000  # characters: some fixes are two commands
Answer = TypeVar("Answer")


def within(seconds: float, call: Callable[[], Answer], what: str) -> Answer:
    """The call's answer. It runs in a thread of its own, and raises here what it raises there.

    Raises TimeoutError, which begins with `what`, where the call takes longer; the call is then left to itself, and
    does not keep the program alive.
    """
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="guarded", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"{what} took longer than {seconds:g} s")
    return answers[0]


def reason(error: BaseException) -> str:
    """The error's own words where a plugin raised it on purpose, else its type and its words."""
    hint = getattr(error, "hint", "")
    message = str(error) if isinstance(error, MixmarkError) else f"{type(error).__name__}: {error}"
    return plain(f"{message}; {hint}" if hint else message, MAX_REASON)
