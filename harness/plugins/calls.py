"""Calls into plugins: each is given up after some time, and its errors become plain words that name the line."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.text import plain

MAX_REASON = 1000  # characters: some fixes are two commands
OURS = {"mixmark", "", *sys.stdlib_module_names}  # packages that are no plugin
MAX_WORDS = 500  # characters of an error's own words
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


def words(error: BaseException) -> str:
    """An error that nobody raised on purpose: its type, its words, and the line of the plugin's code that it came
    through, as in `ValueError: no device (acme.py, line 12)`."""
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    line = _line(error)
    return f"{told[:MAX_WORDS]} ({line})" if line else told[:MAX_WORDS]


def _line(error: BaseException) -> str:
    """The deepest line of the plugin that was called first; empty where no plugin was. What a plugin calls, such as its
    vendor's library, would tell its author less; a suite's loop runs an adapter's session, so it counts only where
    there is no other plugin."""
    found = [(_package(frame.f_globals), frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    called = [package for package, _, _ in found if package not in OURS]
    first = next((each for each in called if each != "suites"), "suites")
    lines = [
        f"{Path(frame.f_code.co_filename).name}, line {line}" for package, frame, line in found if package == first
    ]
    return lines[-1] if lines else ""


def _package(module: Mapping[str, object]) -> str:
    """The package of a module's globals. The built-in adapters are plugins and not part of the harness."""
    name = str(module.get("__name__", ""))
    found = re.match(r"mixmark\.(?:harness\.)?(adapters|suites)\.", name)
    return found[1] if found else name.partition(".")[0]
